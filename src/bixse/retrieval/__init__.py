"""Exact search, BM25, stored embeddings and the index."""
