"""Two systems that answer queries, side by side: opened once, in a thread."""
