"""The loading of an encoder: its origin, its attention, its precision."""
