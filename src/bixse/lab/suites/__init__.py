"""Suites of retrieval tasks, each evaluated and compared."""
