"""The exact search of a collection: BM25, cosines, stored embeddings."""
