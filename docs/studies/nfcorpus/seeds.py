"""How far a model trained with several seeds is from the base model: mean and interval over seeds and queries.

    python docs/studies/nfcorpus/seeds.py --base runs/test-0/demo-*/per_query.json runs/test-*/model-*/per_query.json

The files are of `bixse evaluate demo MODEL --collection DIR --out runs/test-SEED`, of one collection. The interval is
the crossed one of the studies.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from numpy import array

from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.lab.studies.study import crossed_interval


def scores(path: Path) -> dict[str, float]:
    """Query -> nDCG@10."""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))[PRIMARY_METRIC]
    return found


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="one file a seed")
    args = parser.parse_args()
    base = scores(args.base)
    gaps = array([[own[query] - base[query] for query in base] for own in map(scores, args.models)])
    gap = crossed_interval(gaps, [0] * len(base))
    print(f"{gap.mean:+.6f} [{gap.low:+.6f}, {gap.high:+.6f}], {len(gaps)} seeds, {gap.queries} queries")


if __name__ == "__main__":
    main()
