"""The bi-encoders: loading, pooling, encoding, and the relevance head."""
