"""The CPU cores of this process, and the rank and number of processes that a launcher sets."""

from __future__ import annotations

import os

from bixse.errors import InputError


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # cpu_count() ignores taskset and the limits of batch schedulers; macOS and Windows have no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched_number(name: str, least: int) -> int:
    """Return a whole number that a launcher (torchrun, accelerate launch) sets in the environment, or `least`."""
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"{name}: got {text!r} in the environment; expected a whole number of at least {least}; "
            f"fix: unset {name}, or let a launcher set it"
        )
    return int(text)
