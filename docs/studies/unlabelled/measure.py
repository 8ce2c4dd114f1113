"""Train one cell of the table of README.md and measure it, merged and as trained, with the commands of bixse.

    python docs/studies/unlabelled/measure.py --data DATA --out runs/unlabelled nfcorpus 1 base 0

DATA holds what ../nfcorpus/prepare.py wrote, and beside it `train.jsonl` and `collection` of `bixse quickstart`.
The words are the training set, the passes, the target of unlabelled entries (zero, base, half, or a variant of
variants.py) or the name of another loss, and the seed. What is there is not done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import yaml

from bixse.losses.catalogue import LOSSES

MEASURED_ON = {
    "nfcorpus": ("nfcorpus", "test", 1),
    "scifact": ("scifact", "test", 1),
    "pydocs": ("collection", "test", 2),
    "pydocs-guard": ("collection", "guard", 2),
}
"""Name of a measured set -> folder in DATA, split, lowest relevant grade."""
BASE = "demo"
VARIANTS = ("prior", "graded", "merged", "tuned")
OPTIONS = {"zero": {"unlabelled": "zero"}, "half": {"unlabelled": "base", "unlabelled_weight": 0.5}}
"""Target of unlabelled entries -> options of the loss; any other target is made from the base model's probability."""


def bixse(*words: object) -> None:
    """Run a command; raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "bixse", *map(str, words)], check=True)


def train(target: str, *words: object) -> None:
    """Train with a target of unlabelled entries; raises CalledProcessError."""
    if target in VARIANTS:
        script = Path(__file__).with_name("variants.py")
        subprocess.run([sys.executable, str(script), target, *map(str, words)], check=True)
    else:
        bixse("train", *words)


def evaluate(model: str | Path, name: str, data: Path, out: Path) -> None:
    """Write the figures of a model on a set to OUT."""
    if (out / "run.json").exists():
        return
    folder, split, grade = MEASURED_ON[name]
    where = ("--collection", data / folder, "--split", split, "--min-relevant-grade", grade)
    bixse("evaluate", model, *where, "--out", out)


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", nargs="+", choices=MEASURED_ON, default=list(MEASURED_ON), help="sets to measure on")
    parser.add_argument("train_on", choices=("nfcorpus", "pydocs"))
    parser.add_argument("passes", type=int)
    parser.add_argument(
        "target", choices=(*OPTIONS, "base", *VARIANTS, *(name for name in LOSSES if LOSSES[name].alone))
    )
    parser.add_argument("seed", type=int)
    args = parser.parse_args()
    cell = args.out / f"{args.train_on}-{args.passes}-{args.target}-{args.seed}"
    args.out.mkdir(parents=True, exist_ok=True)
    settings = yaml.safe_load(Path(__file__).with_name(f"{args.train_on}.yaml").read_text(encoding="utf-8"))
    settings["optimizer"]["num_train_epochs"] = args.passes
    if args.target in LOSSES:
        settings["loss"] = args.target
    else:
        settings["loss_options"] = OPTIONS.get(args.target, {"unlabelled": "base"})
    config = args.data / f"{cell.name}.yaml"  # its paths are taken from its folder
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    train(args.target, "--config", config, "--seed", args.seed, "--out", cell)
    for name in args.on:
        for model in ("model", "tuned"):
            evaluate(cell / model, name, args.data, args.out / f"{cell.name}-{model}-{name}")
        evaluate(BASE, name, args.data, args.out / f"base-{name}")


if __name__ == "__main__":
    main()
