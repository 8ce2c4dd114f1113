"""Judges behind servers and in this process, and readers of their answers."""
