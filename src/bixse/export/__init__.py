"""Models leave bixse: as one graph for other runtimes, with a proof, and as a repository on the hub."""
