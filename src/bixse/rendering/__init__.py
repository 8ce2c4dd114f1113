"""Tables, plots and self-contained HTML pages, from plain data."""
