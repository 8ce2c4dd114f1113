"""The verbs of the command: settings, options and function of each."""
