"""A search index on disk: made once, then only read."""
