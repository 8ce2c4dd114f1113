"""The agreement of judges with people, and of the rankings of systems under both."""
