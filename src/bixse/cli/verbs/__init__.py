"""The verbs of the command, one a module, each with its `VERB`."""
