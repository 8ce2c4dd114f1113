"""bixse."""
