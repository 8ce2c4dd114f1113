"""Progress bars on standard error, silent where nobody watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def progress_bar(title: str, total: int, unit: str = "it") -> Callable[[int], None]:
    """A bar with rate and time left; call the result with the number of items done since the last call.

    Args:
        title: what stands before the bar.
        total: items in all.
        unit: what an item is called; "B" for bytes shows them as kB, MB, GB.
    """
    from tqdm import tqdm

    bar = tqdm(
        total=total,
        desc=title,
        disable=None,
        file=sys.stderr,
        leave=False,
        unit=unit,
        unit_scale=unit == "B",
    )

    def advance(done: int) -> None:
        bar.update(done)
        if bar.n >= total:
            bar.close()

    return advance
