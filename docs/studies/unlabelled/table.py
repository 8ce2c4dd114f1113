"""Add the cells in the folder that measure.py filled to the table of docs/studies/unlabelled.

    python docs/studies/unlabelled/table.py runs/unlabelled docs/results/unlabelled.csv

Each line is a difference in nDCG@10 of one seed, with its 95 % interval over queries: of a trained model from the base
model, or (`target` is "base - zero") of the two targets from each other. Lines of other cells stay, so that machines
can share the seeds.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from measure import MEASURED_ON
from numpy import array

from bixse.lab.studies.study import crossed_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = ("trained on", "passes", "target", "model", "measured on", "seed", "precision")
KINDS = {"tuned": "as trained", "model": "merged"}


def scores(folder: Path) -> dict[str, float] | None:
    """Query -> nDCG@10; None where the folder was not measured."""
    path = folder / "per_query.json"
    if not path.exists():
        return None
    per_query: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["ndcg@10"]
    return per_query


def difference(scores: dict[str, float], base: dict[str, float]) -> tuple[str, ...]:
    """Return the number of queries, the mean difference and its interval, as text."""
    gap = crossed_interval(array([[scores[query] - base[query] for query in base]]), [0] * len(base))
    return (str(gap.queries), *(f"{value:+.4f}" for value in (gap.mean, gap.low, gap.high)))


def lines(runs: Path) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the key and the figures of each line, in the order of the folders."""
    tables: dict[tuple[str, ...], dict[str, float]] = {}
    for cell in sorted(runs.glob("*-*-*-*/run.json")):
        match = re.fullmatch(r"(\w+)-(\d+)-([a-z0-9+-]+)-(\d+)", cell.parent.name)
        if match is None:
            continue
        trained_on, passes, target, seed = match.groups()
        precision = json.loads(cell.read_text(encoding="utf-8"))["config"]["precision"]
        for (kind, words), measured_on in product(KINDS.items(), MEASURED_ON):
            base, of = scores(runs / f"base-{measured_on}"), scores(runs / f"{cell.parent.name}-{kind}-{measured_on}")
            if base is None or of is None:
                continue
            rest = words, measured_on, seed, precision
            yield (trained_on, passes, target, *rest), difference(of, base)
            tables[trained_on, passes, target, *rest] = of
            other = tables.get((trained_on, passes, "base", *rest))  # "base" comes before "zero"
            if target == "zero" and other is not None:
                yield (trained_on, passes, "base - zero", *rest), difference(other, of)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("table", type=Path)
    args = parser.parse_args()
    rows = [tuple(line.split(",")) for line in args.table.read_text(encoding="utf-8").splitlines()[1:]]
    table = {row[: len(KEY)]: row[len(KEY) :] for row in rows} | dict(lines(args.runs))
    text = [
        ",".join((*KEY, "queries", "difference", "low", "high")),
        *(",".join(key + row) for key, row in table.items()),
    ]
    args.table.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
