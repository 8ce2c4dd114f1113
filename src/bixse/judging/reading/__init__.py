"""From option-token probabilities to an expected grade."""
