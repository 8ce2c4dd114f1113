"""Transforms of graded pairs: sampling, thresholds, filters."""
