"""Adapters: a better index of stored vectors, without their model."""
