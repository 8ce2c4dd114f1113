"""Loading an encoder: where it comes from, its parts, attention, precision, saving."""
