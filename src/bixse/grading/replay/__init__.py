"""Judges that repeat stored grades."""
