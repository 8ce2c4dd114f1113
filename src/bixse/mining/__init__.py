"""Prepare graded pairs: convert files of other tools, and mine pairs that are worth grading."""
