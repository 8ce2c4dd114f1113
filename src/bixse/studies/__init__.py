"""Studies: several systems on the same data, compared with intervals."""
