"""Judges behind an OpenAI-compatible server."""
