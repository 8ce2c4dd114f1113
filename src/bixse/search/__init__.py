"""Search a collection exactly: BM25, cosines, stored embeddings."""
