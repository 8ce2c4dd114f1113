"""Kinds of judges, behind servers and in this process, and how their answers are read."""
