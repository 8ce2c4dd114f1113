r"""Add the cells in the folder that measure.py filled to the tables of docs/studies/unlabelled.

    python docs/studies/unlabelled/table.py runs/unlabelled docs/results/unlabelled.csv
    python docs/studies/unlabelled/table.py runs/unlabelled docs/results/objectives.csv --over-seeds \
        --against zero infonce

Each line is a difference in nDCG@10 with its 95 % interval: of a trained model from the base model, or, where `target`
is "ARM - OTHER", of an arm from one of `--against`. Without `--over-seeds` each seed has a line with an interval over
queries, so that machines can share the seeds. With it, the line covers all seeds of the folder, and replaces lines of
other seeds. Lines of other cells stay.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from measure import MEASURED_ON
from numpy import array

from bixse.lab.studies.study import crossed_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Scores = dict[str, float]
"""Query -> nDCG@10."""
KEY = ("trained on", "passes", "target", "model", "measured on", "seed", "precision")
FIGURES = ("queries", "difference", "low", "high")
KINDS = {"tuned": "as trained", "model": "merged"}


def scores(folder: Path) -> Scores | None:
    """Query -> nDCG@10; None where the folder was not measured."""
    path = folder / "per_query.json"
    if not path.exists():
        return None
    per_query: Scores = json.loads(path.read_text(encoding="utf-8"))["ndcg@10"]
    return per_query


def measured(runs: Path) -> Iterator[tuple[tuple[str, ...], Scores, Scores]]:
    """Yield the key of each measured cell with its scores and the base model's, in the order of the folders."""
    for cell in sorted(runs.glob("*-*-*-*/run.json")):
        match = re.fullmatch(r"(\w+)-(\d+)-([a-z0-9+-]+)-(\d+)", cell.parent.name)
        if match is None:
            continue
        trained_on, passes, target, seed = match.groups()
        precision = json.loads(cell.read_text(encoding="utf-8"))["config"]["precision"]
        for (kind, words), measured_on in product(KINDS.items(), MEASURED_ON):
            base, of = scores(runs / f"base-{measured_on}"), scores(runs / f"{cell.parent.name}-{kind}-{measured_on}")
            if base is not None and of is not None:
                yield (trained_on, passes, target, words, measured_on, seed, precision), of, base


def difference(pairs: list[tuple[Scores, Scores]]) -> tuple[str, ...]:
    """Return the number of queries, the mean difference over pairs of scores, and its interval, as text."""
    queries = list(pairs[0][1])
    table = array([[of[query] - other[query] for query in queries] for of, other in pairs])
    gap = crossed_interval(table, [0] * len(queries))
    return (str(gap.queries), *(f"{value:+.4f}" for value in (gap.mean, gap.low, gap.high)))


def lines(
    cells: Mapping[tuple[str, ...], dict[str, tuple[Scores, Scores]]], against: Iterable[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the lines of cells: key without a seed -> seed -> scores and the base model's scores."""
    for key, by_seed in cells.items():
        trained_on, passes, target, *rest, precision = key
        yield (*key[:-1], " ".join(by_seed), precision, *difference(list(by_seed.values())))
        for other in against:
            of_other = cells.get((trained_on, passes, other, *rest, precision), {})
            both = [seed for seed in by_seed if seed in of_other]
            if target != other and both:
                gap = difference([(by_seed[seed][0], of_other[seed][0]) for seed in both])
                yield (trained_on, passes, f"{target} - {other}", *rest, " ".join(both), precision, *gap)


def _without_seed(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value for name, value in zip(KEY, row, strict=False) if name != "seed")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--over-seeds", action="store_true")
    parser.add_argument("--against", nargs="+", default=["zero"], help="arms that the others are compared with")
    args = parser.parse_args()
    groups: dict[str, dict[tuple[str, ...], dict[str, tuple[Scores, Scores]]]] = defaultdict(lambda: defaultdict(dict))
    for (*key, seed, precision), *both in measured(args.runs):
        groups["" if args.over_seeds else seed][(*key, precision)][seed] = (both[0], both[1])
    found = [line for cells in groups.values() for line in lines(cells, args.against)]
    before = args.table.read_text(encoding="utf-8").splitlines()[1:] if args.table.exists() else []
    old = [tuple(line.split(",")) for line in before]
    if args.over_seeds:
        again = {_without_seed(row) for row in found}
        old = [row for row in old if _without_seed(row) not in again]
    table = {row[: len(KEY)]: row[len(KEY) :] for row in [*old, *found]}
    text = [",".join((*KEY, *FIGURES)), *(",".join(key + row) for key, row in table.items())]
    args.table.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
