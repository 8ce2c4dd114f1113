"""The storage of a ledger: one SQLite file, or a folder of segments that many machines share."""
