"""Running the arms of a study."""
