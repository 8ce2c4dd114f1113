"""Graded pairs and collections, and their files."""
