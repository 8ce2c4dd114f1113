"""The studies of the paper, one module each."""
