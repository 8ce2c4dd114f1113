"""What the folders of runs say while they are under way."""
