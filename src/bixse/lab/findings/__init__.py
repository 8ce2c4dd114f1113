"""What a study found: contrasts, tables, plots."""
