"""The flag `--seed`, checked before any work."""

from __future__ import annotations

from bixse.errors import SEEDS, InputError


def check_seed(seed: int) -> None:
    """Refuse a seed that a random generator would refuse later.

    Raises:
        InputError: a seed outside 0 to 2**32 - 1.

    Example:
        >>> check_seed(7)
        >>> check_seed(-1)
        Traceback (most recent call last):
        ...
        bixse.errors.InputError: --seed: got -1; expected 0 to 4294967295; fix: leave it out for 0
    """
    if not 0 <= seed < SEEDS:
        raise InputError(f"--seed: got {seed}; expected 0 to {SEEDS - 1}; fix: leave it out for 0")
