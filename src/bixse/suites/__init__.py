"""Suites of retrieval tasks: their data, evaluation and comparison."""
