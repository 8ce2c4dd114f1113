"""The quick start: train on the sample collection, compare with baselines, calibrate, and write a report."""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bixse.data.collection import Collection, save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_PYTHON, PYDOCS_SCALE, load_pydocs
from bixse.data.run import open_run
from bixse.encoders.loading.build import demo_model_path
from bixse.evaluation.systems import Bm25System, EncoderSystem, System
from bixse.files.files import write_atomically
from bixse.lab.comparison import COMPARED, Comparer, calibrate_on_dev
from bixse.rendering.schema import ReportData, load_report_data
from bixse.search.bm25 import BM25_NAME
from bixse.training.config import TUNED_FOLDER, MergeConfig, OptimizerConfig, TrainConfig
from bixse.training.train import train_into

if TYPE_CHECKING:
    from bixse.lab.lab_config import QuickstartConfig
    from bixse.progress import ProgressBars
    from bixse.training.recipe import TrainResult

MODEL = "demo"
"""The name for all-MiniLM-L6-v2 in the extra `bixse[demo]`."""
LABELS = {"bixse": "BiXSE", "infonce": "InfoNCE"}
"""Loss -> its name in tables. Other losses keep their own name."""
# One pass, short texts and few merge weights, because the quick start must end in minutes on two CPU cores.
DOCUMENTS_PER_QUERY, FAST_DOCUMENTS = 3, 2
TRAIN_LENGTH, FAST_TRAIN_LENGTH = 64, 32
"""Number of tokens read per text in training, without and with `--fast`. All other steps read complete texts."""
MERGE = MergeConfig(weights=(0.3, 0.5, 1.0), keep_tuned=True)
ABOUT = {
    "title": "bixse quickstart: search over Python's documentation",
    "description": "BM25, the base model and the trained one on the same held-out queries, graded by a language model.",
}
NOTES = [
    "Every system reads texts up to the model's own limit. Training alone reads the first 64 tokens (32 with --fast), "
    "so that this ends in minutes.",
    "Guard queries are about modules that few training queries ask for (numbers, dates, text). They choose the merge "
    "weight, as dev does, and there are few of them.",
    "The same language model wrote the queries and graded the documents; an independent second reading agrees with "
    "it (quadratic-weighted kappa .976 on 580 pairs of the first edition, .975 on 562 of those added since).",
    "Documents outside the judged pool count as irrelevant: compare systems, and ignore the absolute level.",
    "The interval covers the choice of queries, not the randomness of training: one seed is shown.",
]


ARTIFACTS = {"report": "report.html", "model": "bixse/model", "record": "run.json", "results": "results.json",
             "runs": "runs", "config": "train.yaml", "collection": "collection", "pairs": "train.jsonl"}  # fmt: skip
"""Name -> file or folder that a quick start leaves."""


@dataclass(frozen=True)
class QuickstartResult:
    """The result of a quick start, which its folder holds."""

    verdicts: list[str]
    """Lines with verdict and interval: BiXSE against the base model and each other loss, then the guard queries."""
    warnings: list[str]
    reused: bool = False
    folder: Path = Path()

    @cached_property
    def report(self) -> ReportData:
        return load_report_data(self.folder / ARTIFACTS["results"])

    @property
    def artifacts(self) -> dict[str, str]:
        return {name: str(self.folder / path) for name, path in ARTIFACTS.items()}


@contextmanager
def _stage(say: Callable[[str], object], timings: defaultdict[str, float], name: str) -> Iterator[list[str]]:
    """Announce and time a block, then report the notes that the block added to the list."""
    started, notes = time.perf_counter(), list[str]()
    say(f"{name} ...")
    yield notes
    seconds = time.perf_counter() - started
    timings[name] += seconds
    say(f"  {'; '.join([*notes, f'{seconds:.1f} s'])}")


def quickstart(
    settings: QuickstartConfig,
    out: Path,
    say: Callable[[str], object] = lambda line: None,
    progress: ProgressBars | None = None,
) -> QuickstartResult:
    """Train BiXSE on graded queries over Python's own documentation and compare it on held-out queries.

    BM25, the base encoder and BiXSE (before and after merging with the base encoder's weights) search the test queries.
    They also search guard queries about other modules, which training must not harm. The losses of `settings.compare`
    are trained on the same pairs. The probabilities are calibrated on dev and measured on test. All files are written
    to `out`. A second call continues an interrupted run or shows the finished one.

    Raises:
        OutputExistsError: `out` holds another run.
        ModelError: the extra `bixse[demo]` is not installed.
        InterruptedRunError: stopped by Ctrl-C; the same call continues.
    """
    fast, seed, losses = settings.fast, settings.seed, settings.compare
    config = train_settings(out, fast, seed).resolved()
    demo_model_path()  # raises before anything is written
    collection = load_pydocs()
    identity = {**settings.model_dump(mode="json"), "model": MODEL, "precision": config.precision}
    record = open_run(out, "quickstart", identity, {"python": PYDOCS_PYTHON})
    if record.status == "finished":
        return replace(record.result(QuickstartResult, lambda _: [ARTIFACTS["results"]]), folder=out)
    record.save("running")
    record.saved = "the models that are trained stay"
    stage, comparer = partial(_stage, say, record.timings), Comparer(out / "collection")
    with record.ending():
        with stage("read corpus and grades") as notes:
            save_collection(collection, comparer.folder)
            pairs = Pairs.from_collection(collection, "train", PYDOCS_SCALE)
            save_graded_pairs(pairs, out / "train.jsonl")
            notes += [f"{len(collection.corpus)} documents of Python {PYDOCS_PYTHON}",
                      f"{len(pairs)} training pairs of {len(set(pairs.query_ids))} queries"]  # fmt: skip
        write_atomically(out / "train.yaml", user_config(config))
        trained = _train_and_search(comparer, config, (*losses, "bixse"), out, stage, progress)
        warnings = [f"{name}: {warning}" for name, result in trained.items() for warning in result.warnings]
        with stage("compare, calibrate and write the report"):
            comparer.compare(compared(losses))
            comparer.compare([pair for pair in compared(losses) if pair[1] == "base"], "guard")
            named = {comparer.labels[loss]: str(trained[loss].model_path) for loss in ("bixse", *losses)}
            named[comparer.labels["base"]] = config.model
            calibrations = calibrate_on_dev(named, LABELS["bixse"], collection, PYDOCS_SCALE, seed, progress)
            report = comparer.write_report(
                out, system="bixse", against=["base", *losses], trained=trained, **ABOUT,
                calibrations=calibrations, facts=_facts(collection, config, out, settings), timings=record.timings,
                commands=next_commands(out), notes=[*NOTES, *warnings],
            )  # fmt: skip
        verdicts = [comparer.verdict_line("bixse", baseline) for baseline in ("base", *losses)]
        verdicts += [comparer.verdict_line(system, "base", "guard") for system in ("bixse", "bixse-tuned")]
        metrics = {entry.name: entry.metrics for entry in report.systems}
        record.results = {"warnings": warnings, "verdicts": verdicts, "metrics": metrics}
    return QuickstartResult(verdicts, warnings, folder=out)


def _train_and_search(
    comparer: Comparer,
    config: TrainConfig,
    losses: Sequence[str],
    out: Path,
    stage: Callable[[str], AbstractContextManager[list[str]]],
    progress: ProgressBars | None,
) -> dict[str, TrainResult]:
    """Search with BM25 and the base model; train with each loss, and search before and after merging."""

    def search(name: str, label: str, system: System, *splits: str) -> None:
        with stage(f"search with {label}") as notes:
            notes += comparer.search(name, label, system, progress, splits or tuple(COMPARED))

    trained: dict[str, TrainResult] = {}
    search(BM25_NAME, "BM25", Bm25System(), "test")
    search("base", "base model", EncoderSystem(config.model))
    for loss in losses:
        label = LABELS.get(loss, loss)
        with stage(f"train {label}") as notes:
            settings = config.model_copy(update={"loss": loss})
            trained[loss] = train_into(settings, out / loss, progress is not None, label)
            merged = trained[loss].merge
            notes += [f"weight {merged.weight:g} of the tuned model is kept"] if merged is not None else []
        search(f"{loss}-tuned", f"{label}, not merged", EncoderSystem(out / loss / TUNED_FOLDER))
        search(loss, label, EncoderSystem(trained[loss].model_path))
    return trained


def train_settings(out: Path, fast: bool, seed: int) -> TrainConfig:
    """Return the settings of the BiXSE run: defaults of `TrainConfig`, reduced to end in minutes."""
    return TrainConfig(
        pairs=out / "train.jsonl",
        dev=out / "collection",
        guard=out / "collection",
        guard_split="guard",
        merge=MERGE,
        evaluations_per_epoch=0,  # saves time: the merge searches dev anyway
        model=MODEL,
        train_max_length=FAST_TRAIN_LENGTH if fast else TRAIN_LENGTH,
        seed=seed,
        optimizer=OptimizerConfig(
            num_train_epochs=1, documents_per_query=FAST_DOCUMENTS if fast else DOCUMENTS_PER_QUERY
        ),
    )


def compared(losses: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs (system, baseline): each trained system against base, BiXSE against the other losses.

    Example:
        >>> compared([])
        [('bixse', 'base'), ('bixse-tuned', 'base')]
    """
    kinds = ("", "-tuned")
    against_base = [(f"{loss}{kind}", "base") for kind in kinds for loss in ("bixse", *losses)]
    return against_base + [(f"bixse{kind}", f"{loss}{kind}") for kind in kinds for loss in losses]


def user_config(config: TrainConfig) -> str:
    """Return a YAML file that repeats this run, with comments on what to change for other data."""
    values = config.model_dump(mode="json")
    paths = {"pairs": "train.jsonl", "dev": "collection", "guard": "collection"}
    lines = ["# Settings for `bixse train --config`. Paths are taken from this file's folder.",
             "# For your own data change `pairs` (a .jsonl, .csv or .parquet file with query, document and",
             "# relevance in [0, 1]) and `dev` (a folder with corpus.jsonl, queries.jsonl, qrels/dev.tsv; or null),",
             "# `guard` (a folder of queries that must not get worse; or null), and set `model` to any",
             "# sentence-transformers model."]  # fmt: skip
    return "\n".join(lines) + "\n" + yaml.safe_dump(values | paths, sort_keys=False)


def next_commands(out: Path) -> list[str]:
    """Return commands to try next."""
    model, collection, config = (shlex.quote(str(out / name)) for name in ("bixse/model", "collection", "train.yaml"))
    return [
        f'bixse search {model} --collection {collection} "copy a folder"',
        f"bixse train --config {config} --out runs/mine",
        f"bixse ui {shlex.quote(str(out))} --systems {MODEL} {model} --collection {collection}",
    ]


def _facts(collection: Collection, config: TrainConfig, out: Path, settings: QuickstartConfig) -> dict[str, str]:
    words = ["bixse", "quickstart", *(["--fast"] if settings.fast else []), "--seed", str(settings.seed)]
    words += [*(["--compare", *settings.compare] if settings.compare else []), "--out", str(out)]
    counts = {split: len(qrels) for split, qrels in collection.qrels.items()}
    return {
        "corpus": f"{len(collection.corpus)} documents: docstrings of Python {PYDOCS_PYTHON}",
        "queries": f"{counts['train']} train, {counts['dev']} dev, {counts['test']} test, {counts['guard']} guard",
        "base model": "sentence-transformers/all-MiniLM-L6-v2",
        "chosen on": "dev and guard alone; test is read for the verdict only",
        "recall and MRR count": f"documents of grade {config.min_relevant_grade:g} and up",
        "tokens read": f"the model's own limit; {config.train_max_length} while training",
        "seed": str(settings.seed),
        "precision": config.precision,
        "command": shlex.join(words),
        "bixse": metadata.version("bixse"),
        "torch": metadata.version("torch"),
    }
