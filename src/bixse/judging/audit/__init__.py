"""How well a judge agrees with people, and with the ranking of systems."""
