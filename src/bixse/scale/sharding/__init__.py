"""Train an encoder whose weights are shared out among the processes (FSDP2)."""
