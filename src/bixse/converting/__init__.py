"""Convert files of other tools, and pairs, to graded pairs."""
