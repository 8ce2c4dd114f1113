"""Where a ledger keeps its answers: one SQLite file, or a folder of segments that many machines share."""
