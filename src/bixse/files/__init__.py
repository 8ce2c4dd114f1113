"""Read and write files safely: rows of any format, Parquet, hashes, caches."""
