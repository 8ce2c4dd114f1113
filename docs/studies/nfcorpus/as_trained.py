"""Every objective of a study as trained, before merging: how far BiXSE is above it, as lines of CSV.

    python docs/studies/nfcorpus/as_trained.py runs/nfcorpus-objectives > docs/results/nfcorpus-as-trained.csv

The study kept the tuned models (`keep_tuned`). Intervals are the crossed ones of the studies, over seeds and queries;
p-values are corrected for all lines together (Holm).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from numpy import array

from bixse.evaluation.statistics import holm
from bixse.lab.studies.study import crossed_interval

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

MEASURED_ON = "nfcorpus, not merged"
OURS = "bixse"


def scores(loss: Path) -> NDArray[float64]:
    """(S, Q) nDCG@10 of every seed and query."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(loss.glob("*/result.json"))]
    found = [run["apart"][MEASURED_ON] for run in runs]
    return array([[own[query] for query in found[0]] for own in found])


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="output folder of `bixse study losses`")
    trained = {path.parent.parent for path in (parser.parse_args().study / "runs").glob("loss=*/*/train")}
    tables = {folder.name.removeprefix("loss="): scores(folder) for folder in sorted(trained)}
    ours = tables.pop(OURS)
    gaps = {loss: crossed_interval(ours - table, [0] * ours.shape[1]) for loss, table in tables.items()}
    corrected = holm([gap.p_value for gap in gaps.values()])
    print("loss,seeds,ndcg@10,bixse above,low,high,p_holm")
    print(f"{OURS},{len(ours)},{ours.mean():.6g},,,,")
    for (loss, gap), p_value in zip(gaps.items(), corrected, strict=True):
        figures = ",".join(f"{value:.6g}" for value in (tables[loss].mean(), gap.mean, gap.low, gap.high, p_value))
        print(f"{loss},{len(tables[loss])},{figures}")


if __name__ == "__main__":
    main()
