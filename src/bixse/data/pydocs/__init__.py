"""pydocs."""
