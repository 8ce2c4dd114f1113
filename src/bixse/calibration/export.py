"""The relevance head as one number for any vector store: the cosine at which a probability is reached."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from bixse.files.files import storage_errors, write_atomically
from bixse.report.table import format_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.encoders.head import RelevanceHead

CUTS_FILE = "cuts.json"
STORES = ("langchain", "llama_index", "haystack", "qdrant", "elasticsearch", "opensearch", "pgvector")
"""What there is a snippet for; `snippets/` holds them."""


@dataclass(frozen=True)
class CosineCut:
    """A place to cut a ranking by cosine."""

    probability: float
    cosine: float
    """(logit(p) - intercept) / slope, less beta, over alpha; outside [-1, 1] where no cosine reaches it, or all do."""
    precision: float | None = None
    """What was asked for where the probability is the threshold of a precision."""


def cuts_of(head: RelevanceHead, probabilities: Sequence[float]) -> list[CosineCut]:
    """Cuts at probabilities between 0 and 1 and at the thresholds of a head, the highest cosine first.

    Raises:
        InputError: a probability that is not between 0 and 1, or a head whose slope is 0.

    Example:
        >>> from bixse.encoders.head import RelevanceHead
        >>> [round(cut.cosine, 3) for cut in cuts_of(RelevanceHead(20.0, -10.0), [0.5, 0.9])]
        [0.61, 0.5]
    """
    found = [CosineCut(probability, head.cosine_at(probability)) for probability in probabilities]
    found += [
        CosineCut(threshold.probability, head.cosine_at(threshold.probability), threshold.precision)
        for threshold in head.thresholds
        if 0 < threshold.probability < 1
    ]
    return sorted(found, key=lambda cut: -cut.cosine)


def write_export(cuts: Sequence[CosineCut], model: str, folder: Path) -> dict[str, str]:
    """Write `cuts.json`, and a snippet for every store with the first cut; gives name -> path."""
    files = {"cuts": folder / CUTS_FILE, **{store: folder / f"{store}.py" for store in STORES}}
    shown = {"probability": f"{cuts[0].probability:g}", "cosine": f"{cuts[0].cosine:.6f}", "model": model}
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(files["cuts"], json.dumps([asdict(cut) for cut in cuts], indent=2) + "\n")
        for store in STORES:
            text = resources.files(__package__).joinpath("snippets", f"{store}.py.txt").read_text(encoding="utf-8")
            write_atomically(files[store], Template(text).substitute(shown))
    return {name: str(path) for name, path in files.items()}


def cuts_text(cuts: Sequence[CosineCut]) -> str:
    """A table for a terminal."""
    rows = [
        [f"{cut.probability:.4g}", f"{cut.cosine:.4f}", "–" if cut.precision is None else f"{cut.precision:g}"]
        for cut in cuts
    ]
    return format_table(rows, ["probability", "cut at cosine", "of precision"])
