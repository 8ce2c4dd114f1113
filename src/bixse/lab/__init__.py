"""Comparisons of systems: suites, studies of the paper, sweeps, and the quick start."""
