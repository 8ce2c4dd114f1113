"""The verbs of the command: settings, options and the function of each."""
