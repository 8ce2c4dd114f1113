"""Files of rows (JSONL, CSV, TSV, Parquet): the one reader, the one writer, and the rules for every value."""
