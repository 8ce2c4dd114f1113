"""The arithmetic of losses over large batches, in tiles and blocks: the B x N matrix is never kept."""
