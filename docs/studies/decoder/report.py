"""Compare trained decoders with the untrained one and write the report, with calibrated probabilities of the first.

    python docs/studies/decoder/report.py --data DATA --out runs/decoder/report zero=runs/decoder/smollm2-1-zero-0

The words are names and folders of runs that ../unlabelled/measure.py trained with smollm2.yaml; DATA is its data. The
first run's folder gets the calibrated head.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pydantic import TypeAdapter

from bixse.data.collection import load_collection
from bixse.data.pydocs import PYDOCS_SCALE
from bixse.evaluation.systems import Bm25System, EncoderSystem
from bixse.lab.comparison import Comparer, calibrate_on_dev
from bixse.training.recipe import TrainResult

LABELS = {"zero": "BiXSE", "infonce": "InfoNCE", "soft-infonce": "Soft InfoNCE", "distill-kl": "KL"}


def result_of(run: Path) -> TrainResult:
    """Read the result of a finished run."""
    saved = json.loads((run / "run.json").read_text(encoding="utf-8"))["results"]
    return TypeAdapter(TrainResult).validate_python({**saved, "model_path": run / "model", "reused": True})


def main() -> None:
    """Search, compare, calibrate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    args = parser.parse_args()
    trained = {name: result_of(Path(run)) for name, _, run in (word.partition("=") for word in args.runs)}
    folder = args.data / "collection"
    comparer = Comparer(folder)
    print(*comparer.search("bm25", "BM25", Bm25System(), splits=["test"]))
    models = {"base": args.data / "smollm2-12"} | {name: run.model_path for name, run in trained.items()}
    for name, model in models.items():
        label = LABELS.get(name, name) if name in trained else "untrained decoder"
        print(label, *comparer.search(name, label, EncoderSystem(model)))
    first, *others = trained
    against_base = [(name, "base") for name in trained]
    comparer.compare([*against_base, *((first, name) for name in others)])
    comparer.compare(against_base, "guard")
    collection = load_collection(folder)
    first_label = comparer.labels[first]
    calibrations = calibrate_on_dev(
        {first_label: str(trained[first].model_path)}, first_label, collection, PYDOCS_SCALE
    )
    comparer.write_report(
        args.out,
        system=first,
        against=["base", *others],
        trained=trained,
        title="SmolLM2-135M, its lowest twelve layers: search over Python's documentation",
        description="BM25, the untrained decoder and the decoder after one pass, on the same held-out queries.",
        calibrations=calibrations,
    )
    print(*(comparer.verdict_line(first, other) for other in ("base", *others)), sep="\n")


if __name__ == "__main__":
    main()
