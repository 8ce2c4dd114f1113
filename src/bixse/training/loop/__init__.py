"""The trainer: batches, arguments, callbacks, checkpoints."""
