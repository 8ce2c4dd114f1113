"""Merging a tuned encoder with its base model."""
