"""Bi-encoders: loading, pooling, encoding, the relevance head."""
