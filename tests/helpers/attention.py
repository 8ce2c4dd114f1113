"""Attention inside each text of a flat batch, by SDPA per text, as the kernel of a GPU defines it."""

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention


def per_text(query, key, value, starts, _, longest, __, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    """Return (S, H, d) for (S, H, d) queries, keys and values, and (N + 1,) borders of the texts."""
    parts = []
    left, right = (size if size >= 0 else longest for size in window_size)
    for start, end in pairwise(starts.tolist()):
        flat = [part[start:end].transpose(0, 1)[None] for part in (query, key, value)]
        position = torch.arange(end - start, device=query.device)
        distance = position - position[:, None]  # of the key from the query
        mask = (distance >= -left) & (distance <= right)
        parts.append(scaled_dot_product_attention(*flat, attn_mask=mask, scale=scale, enable_gqa=enable_gqa))
    return torch.cat(parts, dim=2)[0].transpose(0, 1)
