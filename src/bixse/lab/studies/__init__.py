"""Studies of the paper: their arms, runs and outcome."""
