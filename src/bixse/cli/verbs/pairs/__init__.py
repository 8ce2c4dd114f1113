"""Verbs that make pairs."""
