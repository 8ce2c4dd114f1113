"""Training an encoder on graded pairs."""
