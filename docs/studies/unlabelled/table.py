"""Print the table of docs/studies/unlabelled as CSV, from the folder that measure.py filled.

    python docs/studies/unlabelled/table.py runs/unlabelled > docs/results/unlabelled.csv

Each line is a difference in nDCG@10 with its 95 % interval over seeds and queries: of a trained model from the base
model, or (`target` is "base - zero") of the two targets from each other. Cells that were not run are left out.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from measure import MEASURED_ON
from numpy import array

from bixse.lab.studies.study import crossed_interval

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

KINDS = {"tuned": "as trained", "model": "merged"}


def scores(folder: Path) -> dict[str, float] | None:
    """Query -> nDCG@10; None where the folder was not measured."""
    path = folder / "per_query.json"
    if not path.exists():
        return None
    per_query: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["ndcg@10"]
    return per_query


def line(name: str, kind: str, measured_on: str, differences: NDArray[float64]) -> str:
    """One line of CSV for (seeds, queries) differences."""
    gap = crossed_interval(differences, [0] * differences.shape[1])
    figures = ",".join(f"{value:+.4f}" for value in (gap.mean, gap.low, gap.high))
    return f"{name},{kind},{measured_on},{len(differences)},{gap.queries},{figures}"


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for path in sorted(runs.glob("*-*-*-*/run.json")):
        if match := re.fullmatch(r"(\w+)-(\d+)-(zero|base|half|prior|graded|merged|tuned)-(\d+)", path.parent.name):
            trained_on, passes, target, seed = match.groups()
            cells.setdefault((trained_on, passes), {}).setdefault(target, []).append(seed)
    print("trained on,passes,target,model,measured on,seeds,queries,difference,low,high")
    for (trained_on, passes), targets in cells.items():
        for kind, words in KINDS.items():
            for measured_on in MEASURED_ON:
                base = scores(runs / f"base-{measured_on}")
                if base is None:
                    continue
                tables: dict[str, dict[str, list[float]]] = {}
                for target, seeds in targets.items():
                    for seed in seeds:
                        cell = f"{trained_on}-{passes}-{target}-{seed}-{kind}-{measured_on}"
                        if (values := scores(runs / cell)) is not None:
                            tables.setdefault(target, {})[seed] = [values[query] for query in base]
                for target, table in tables.items():
                    gaps = array(list(table.values())) - array(list(base.values()))
                    print(line(f"{trained_on},{passes},{target}", words, measured_on, gaps))
                if both := sorted(tables.get("zero", {}).keys() & tables.get("base", {}).keys()):
                    gaps = array([tables["base"][seed] for seed in both]) - array([tables["zero"][s] for s in both])
                    print(line(f"{trained_on},{passes},base - zero", words, measured_on, gaps))


if __name__ == "__main__":
    main()
