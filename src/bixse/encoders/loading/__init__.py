"""Loading an encoder: where it comes from, its attention, its precision."""
