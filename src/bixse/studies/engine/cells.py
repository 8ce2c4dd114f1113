"""A study's cell: one training with one seed, measured on the test queries; what it left stands in one file."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from bixse.data.io.files import read_text, storage_errors, write_atomically
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.data.run_record import RUN_FILE
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.errors import BixseError, InterruptedRunError, OutputExistsError, StorageError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.systems import Bm25System, EncoderSystem
from bixse.evaluation.tasks import collection_task
from bixse.studies.engine.study_config import merged, train_config
from bixse.training.recipe import MODEL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.evaluate import Evaluation
    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task
    from bixse.grading.rank import JudgeRanking
    from bixse.studies.engine.inputs import StudyInputs
    from bixse.training.config import TrainConfig

RESULT_FILE = "result.json"
"""What a finished cell leaves."""


@dataclass(frozen=True)
class Cell:
    """One figure of a study before it is known.

    Example:
        >>> Cell({"loss": "bixse", "noise": 0.1}, seed=2).name
        'loss-bixse-noise-0.1-seed-2-635f37'
    """

    labels: Mapping[str, str | float]
    """What it is called in tables and plots: label -> value."""
    seed: int = 0
    """Training seed."""
    kind: Literal["train", "untrained", "bm25", "memory", "rank"] = "train"
    """What is measured."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `TrainConfig` on top of the study's."""
    pairs: Mapping[str, Any] = field(default_factory=dict)
    """Transforms of the training pairs, see `bixse.studies.engine.cell_pairs`; or other settings of the kind."""

    @property
    def name(self) -> str:
        """A folder's name: the labels in words, and a hash of everything."""
        shown = "-".join(f"{label}-{value}" for label, value in self.labels.items())
        safe = "".join(c if c.isalnum() or c in ".-_" else "_" for c in shown)[:80]
        return f"{safe}-seed-{self.seed}-{self.fingerprint[:6]}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything the cell is."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class CellResult:
    """What a cell came to."""

    labels: Mapping[str, str | float]
    """As in `Cell`."""
    seed: int
    """As in `Cell`."""
    status: Literal["finished", "failed"]
    """"failed": it is tried again by the next call."""
    reason: str = ""
    """Why it failed, in one line."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metric -> mean over the test queries; of several collections the mean of their means."""
    per_query: Mapping[str, float] = field(default_factory=dict)
    """`collection/query` -> nDCG@10."""
    rows: int | None = None
    """Training pairs."""
    seconds: float = 0.0
    """Wall time of training and measuring."""
    fingerprint: str = ""
    """Of the cell."""
    version: str = ""
    """Of bixse."""
    precision: str = ""
    """What was computed in; empty for a cell without a model."""


def known_result(cell: Cell, folder: Path) -> CellResult | None:
    """The finished result of a cell from its folder; None where it has to be made (again)."""
    try:
        found = CellResult(**json.loads(read_text(folder / cell.name / RESULT_FILE)))
    except (BixseError, OSError, ValueError, TypeError):
        return None
    return found if found.status == "finished" and found.fingerprint == cell.fingerprint else None


def run_cell(
    cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs | None, folder: Path, keep_model: bool = False
) -> CellResult:
    """Train and measure one cell; its result is written to its folder before the models there are dropped.

    A training that was interrupted continues from its checkpoint. One that fails becomes a result with the reason.

    Args:
        cell: the cell.
        settings: settings of training that all cells share.
        inputs: where pairs, collections and model are; None for kinds that read none.
        folder: the folder of all cells.
        keep_model: leave the trained model in the cell's folder.

    Raises:
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.
        StorageError: the disk is full.
    """
    own = folder / cell.name
    wanted = merged(settings, cell.train).get("precision")
    precision = "" if cell.kind in ("bm25", "memory") else resolve_precision(wanted)
    started = time.perf_counter()
    with storage_errors(own):
        own.mkdir(parents=True, exist_ok=True)
    try:
        with use_precision(wanted):
            found = _measure(cell, settings, inputs, own)
    except (InterruptedRunError, StorageError, OutputExistsError):
        raise
    except Exception as error:  # whatever a library raises: the other cells stand
        said = " ".join(str(error).split())
        reason = said if isinstance(error, BixseError) else f"{type(error).__name__}: {said}"
        found = CellResult(cell.labels, cell.seed, "failed", reason[:500])
    seconds, version = time.perf_counter() - started, metadata.version("bixse")
    made = {"seconds": seconds, "fingerprint": cell.fingerprint, "version": version, "precision": precision}
    result = CellResult(**{**asdict(found), **made})
    write_atomically(own / RESULT_FILE, json.dumps(asdict(result), indent=1) + "\n")
    drop_files(own, keep_model)
    return result


def drop_unbegun(run: Path) -> None:
    """Delete what a training left that was stopped before its record was written."""
    if run.is_dir() and not (run / RUN_FILE).exists():
        shutil.rmtree(run)


def drop_files(own: Path, keep_model: bool) -> None:
    """Delete what a finished cell does not need any more."""
    with suppress(OSError):
        (own / "pairs.parquet").unlink(missing_ok=True)
        if not keep_model:
            shutil.rmtree(own / "run", ignore_errors=True)


def _measure(cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs | None, own: Path) -> CellResult:
    if cell.kind == "memory":
        from bixse.studies.paper.memory import measure_memory

        return CellResult(cell.labels, cell.seed, "finished", metrics=measure_memory(**cell.pairs))
    if inputs is None:
        raise RuntimeError(f"cell {cell.name}: a {cell.kind} cell needs inputs")
    if cell.kind == "rank":
        from bixse.studies.paper.rankers import rank_cell

        return rank_cell(cell, settings, inputs, own)
    if cell.kind == "bm25":
        return scored(cell, inputs, Bm25System())
    if cell.kind == "untrained":
        return scored(cell, inputs, EncoderSystem(untrained(inputs, settings), cache="none"))
    path = own / "pairs.parquet"
    rows = _write_pairs(cell, inputs, path)
    config = cell_config(cell, settings, inputs, path)
    from bixse.training.recipe import train

    drop_unbegun(own / "run")
    train(config, own / "run", progress=False)
    found = scored(cell, inputs, EncoderSystem(own / "run" / MODEL_FOLDER, cache="none"))  # the model is dropped soon
    return CellResult(**{**asdict(found), "rows": rows})


def cell_config(cell: Cell, settings: Mapping[str, Any], inputs: StudyInputs, pairs: Path) -> TrainConfig:
    """The training configuration of a cell.

    Raises:
        ConfigError: an unknown key or a value outside its range.
    """
    dev = list(inputs.dev)
    own = {
        "pairs": pairs,
        "dev": dev[0] if len(dev) == 1 else dev,
        "dev_split": inputs.dev_split,
        "min_relevant_grade": inputs.min_relevant_grade,
        "model": inputs.model,
        "seed": cell.seed,
    }
    return train_config({"merge": None, **merged(settings, cell.train), **own})


def _write_pairs(cell: Cell, inputs: StudyInputs, path: Path) -> int:
    """The training pairs of a cell, transformed; gives their number."""
    from bixse.studies.engine.cell_pairs import transformed

    pairs = transformed(load_graded_pairs(inputs.pairs), cell.pairs, cell.seed)
    with storage_errors(path):
        save_graded_pairs(pairs, path)
    return len(pairs)


def untrained(inputs: StudyInputs, settings: Mapping[str, Any]) -> RelevanceModel:
    """The encoder as training would begin with it: its length, pooling, attention and instructions."""
    from bixse.data.task_instructions import load_instructions
    from bixse.encoders.instructions import set_instructions
    from bixse.encoders.loading.build import build_encoder

    config = train_config({**settings, "pairs": inputs.pairs})
    encoder = build_encoder(
        inputs.model,
        config.max_length,
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
        attention=config.attention,
    )
    if config.instructions is not None:
        set_instructions(encoder, load_instructions(config.instructions))
    return encoder


def scored(cell: Cell, inputs: StudyInputs, system: System) -> CellResult:
    """A system's figures on the test queries."""
    return measured(cell, {name: evaluate(system, test_task(inputs, folder)) for name, folder in inputs.tests.items()})


def test_task(inputs: StudyInputs, folder: Path) -> Task:
    """The test queries of a collection, scored as the study says."""
    return collection_task(
        folder, "test", exclude_self=inputs.exclude_self, min_relevant_grade=inputs.min_relevant_grade
    )


def measured(cell: Cell, found: Mapping[str, Evaluation | JudgeRanking]) -> CellResult:
    """The figures of a cell: of several collections the mean of their means.

    Args:
        cell: the cell.
        found: collection -> what was reached there.
    """
    metrics = {metric: sum(own.metrics[metric] for own in found.values()) / len(found) for metric in METRICS}
    per_query = {
        f"{name}/{query}": value
        for name, own in found.items()
        for query, value in own.per_query[PRIMARY_METRIC].items()
    }
    return CellResult(cell.labels, cell.seed, "finished", metrics=metrics, per_query=per_query)
