"""Judgements that other tools left: formats as data (`formats.toml`), one `Source`, one row (`Judgement`)."""
