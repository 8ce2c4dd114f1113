"""Metrics from a judge's grades of all pairs and people's labels of a sample of them."""
