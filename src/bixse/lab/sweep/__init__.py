"""Searching training settings."""
