"""Verbs that ask a judge, or look at what it said."""
