"""Train one cell of the table of README.md and measure it, merged and as trained, with the commands of bixse.

    python docs/studies/unlabelled/measure.py --data DATA --out runs/unlabelled nfcorpus 1 base 0

DATA holds what ../nfcorpus/prepare.py wrote, and next to it `train.jsonl` and `collection` of `bixse quickstart`.
The words are the training set (nfcorpus, pydocs, a key of MIXTURES, or another YAML file), the passes, an arm, and the
seed. An arm is `zero`, a word of VARIANTS, a key of SETTINGS, a loss of left.py or of bixse, or "then-LOSS": the model
that was trained with `zero` is trained on with that loss, for as many passes again.
What is there is not done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bixse.losses.catalogue import LOSSES

MEASURED_ON = {
    "nfcorpus": ("nfcorpus", "test", 1),
    "scifact": ("scifact", "test", 1),
    "scifact-short": ("scifact-short", "test", 1),
    "pydocs": ("collection", "test", 2),
    "pydocs-dev": ("collection", "dev", 2),
    "pydocs-guard": ("collection", "guard", 2),
}
"""Name of a measured set -> folder in DATA, split, lowest relevant grade."""
MIXTURES = {
    "both": {"pairs": ["pairs.parquet", "train.jsonl"], "task_shares": {"train": 0.33}},  # of pydocs
    "titles": {"pairs": ["pairs.parquet", "titles.parquet"], "task_shares": {"titles": 0.33}},
}
"""Training set -> pairs beyond those of NFCorpus, a third of their queries per pass; the rest is nfcorpus.yaml."""
LEFT = ("spread-out", "cadet", "wasserstein", "wasserstein-6")
"""Losses of left.py."""
VARIANTS = ("base", "half", "prior", "graded", "merged", "tuned", "bias-per-batch")
"""Targets of unlabelled entries, and a bias, of variants.py."""
NEAR = ("frozen", "frozen-3", "orbit")
"""Arms that near.py trains; they have no settings of their own."""
SCRIPTS = {**dict.fromkeys(LEFT, "left.py"), **dict.fromkeys(VARIANTS, "variants.py"), **dict.fromkeys(NEAR, "near.py")}
SETTINGS: dict[str, dict[str, Any]] = {
    **{arm: {} for arm in NEAR},
    "no-dropout": {"dropout": 0.0},
    "bias-fast": {"optimizer": {"bias_lr_multiplier": 1000.0}},
    "bias-prior": {"loss_options": {"bias": "prior"}},
    **{loss: {} for loss in LEFT},
    "wasserstein-6": {"scale": 6.0},  # 10 asks for smaller differences of cosines than there are
}
"""Arm -> settings of `bixse train`; the others, also of the optimizer, are those of `zero`."""
THEN = "then-"
BY_MERGE = ("merge", "dev", "dev_split", "guard", "guard_split")
"""Settings of the choice of a merge weight."""


def bixse(*words: object) -> None:
    """Run a command; raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "bixse", *map(str, words)], check=True)


def train(target: str, *words: object) -> None:
    """Train with a target of unlabelled entries; raises CalledProcessError."""
    if target in SCRIPTS:
        script = Path(__file__).with_name(SCRIPTS[target])
        subprocess.run([sys.executable, str(script), target, *map(str, words)], check=True)
    else:
        bixse("train", *words)


def settings_of(trained_on: str) -> tuple[Path, dict[str, Any]]:
    """Return the file of a training set, and its settings."""
    word = "nfcorpus" if trained_on in MIXTURES else trained_on
    file = Path(word) if word.endswith(".yaml") else Path(__file__).with_name(f"{word}.yaml")
    return file, yaml.safe_load(file.read_text(encoding="utf-8")) | MIXTURES.get(trained_on, {})


def base_model(settings: dict[str, Any], data: Path) -> str:
    """Return the model that is trained: a folder in DATA or a name."""
    name: str = settings.get("model", "demo")
    return str((data / name).resolve()) if (data / name).exists() else name


def train_cell(
    trained_on: str, data: Path, out: Path, passes: int, arm: str, seed: int, as_trained: bool = False
) -> dict[str, Path]:
    """Train an arm and return its folders: `tuned` and, but for `as_trained`, `model`, merged with the base model."""
    cell = out / f"{Path(trained_on).stem}-{passes}-{arm}-{seed}"
    file, settings = settings_of(trained_on)
    settings["optimizer"]["num_train_epochs"] = passes
    settings["model"] = base = base_model(settings, data)
    if "instructions" in settings:  # its path starts at the file, all other paths at the data
        settings["instructions"] = str((file.parent / settings["instructions"]).resolve())
    merge, then = settings["merge"], arm.startswith(THEN)
    collections = ("--dev", data / settings["dev"], "--guard", data / settings["guard"])
    splits = ("--dev-split", settings.get("dev_split", "dev"), "--guard-split", settings["guard_split"])
    if then or as_trained:
        settings = {name: value for name, value in settings.items() if name not in BY_MERGE}
    if then:  # the base of a merge by `bixse train` would be the model of the first loss: `bixse merge` takes its part
        first = train_cell(trained_on, data, out, passes, "zero", seed)["tuned"]
        settings["model"] = str(first.resolve())
    if arm in SETTINGS:
        optimizer = settings["optimizer"] | SETTINGS[arm].get("optimizer", {})
        settings |= {**SETTINGS[arm], "optimizer": optimizer}
    elif (loss := arm.removeprefix(THEN)) in LOSSES:
        settings["loss"] = loss
    config = data / f"{cell.name}.yaml"  # its paths are taken from its folder
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    train(arm, "--config", config, "--seed", seed, "--out", cell)
    if as_trained:
        return {"tuned": cell / "model"}
    if not then:
        return {"model": cell / "model", "tuned": cell / "tuned"}
    merged = cell.with_name(f"{cell.name}-merged")
    if not merged.exists():
        searched = ("--documents", merge["documents"]) if "documents" in merge else ()
        choice = (*collections, *splits, *searched, "--candidates", *merge["weights"])
        bixse("merge", base, cell / "model", *choice, "--out", merged)
    return {"model": merged / "model", "tuned": cell / "model"}


def evaluate(model: str | Path, name: str, data: Path, out: Path) -> None:
    """Write the figures of a model on a set to OUT; finished figures are read again."""
    folder, split, grade = MEASURED_ON[name]
    where = ("--collection", data / folder, "--split", split, "--min-relevant-grade", grade)
    bixse("evaluate", model, *where, "--out", out)


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", nargs="+", choices=MEASURED_ON, default=list(MEASURED_ON), help="sets to measure on")
    parser.add_argument("--as-trained", action="store_true", help="do not merge with the base model")
    parser.add_argument("train_on", help="nfcorpus, pydocs, both, titles, or a YAML file")
    parser.add_argument("passes", type=int)
    arms = {"zero", *VARIANTS, *SETTINGS, *LOSSES, *(THEN + name for name in LOSSES)}
    parser.add_argument("arm", choices=sorted(arms))
    parser.add_argument("seed", type=int)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    models = train_cell(args.train_on, args.data, args.out, args.passes, args.arm, args.seed, args.as_trained)
    base = base_model(settings_of(args.train_on)[1], args.data)
    for name in args.on:
        for kind, model in models.items():
            cell = f"{Path(args.train_on).stem}-{args.passes}-{args.arm}-{args.seed}"
            evaluate(model, name, args.data, args.out / f"{cell}-{kind}-{name}")
        evaluate(base, name, args.data, args.out / f"base-{name}")


if __name__ == "__main__":
    main()
