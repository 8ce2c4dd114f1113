"""Vector databases that an index is exported to, and searched in where it is larger than memory."""
