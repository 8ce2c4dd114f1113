"""Engines: a job does one shard after another, an engine decides in which process and on which machine."""
