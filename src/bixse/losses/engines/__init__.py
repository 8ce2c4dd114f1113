"""What the losses compute with: the fused binary cross-entropy, blocks of rows, pairs, several processes."""
