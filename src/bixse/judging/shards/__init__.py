"""Grading more pairs than fit into memory, cut into shards that engines spread over processes and machines."""
