"""Grading: a judge reads (query, document) pairs and its expected grade becomes relevance."""
