"""Files: atomic writes, hashes, Parquet, caches, strict JSON."""
