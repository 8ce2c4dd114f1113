"""The quick start: several systems on the same data."""
