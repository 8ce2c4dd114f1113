"""Work larger than one process: engines, sharded training, indexes on disk and vector databases."""
