"""What the cells of a sweep left, ranked on dev: the rows of `sweep.csv`, and the best cell as a file of settings."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from bixse.data.io.files import write_atomically
from bixse.settings import map_paths
from bixse.training.config import TrainConfig
from bixse.training.sweep.sweep_plan import run_folder, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.training.sweep.sweep_plan import Cell

TABLE_FILE = "sweep.csv"
"""The table of a sweep, in its folder."""
BEST_FILE = "best.yaml"
"""The settings of the best cell, in the sweep's folder."""


@dataclass(frozen=True)
class Outcome:
    """What one training run of a cell left."""

    status: Literal["finished", "failed", "refused"]
    """"failed": training could not go on, and is not tried again; "refused": its settings cannot be used here."""
    reason: str = ""
    """Why it did not finish."""
    before: float | None = None
    """nDCG@10 on dev of the encoder before training."""
    best: float | None = None
    """nDCG@10 on dev of the checkpoint that was kept."""
    best_step: int | None = None
    """Step of that checkpoint."""
    seconds: float = 0.0
    """Wall time of training, evaluation included."""
    warnings: list[str] = field(default_factory=list)
    """What the run warned of."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Path setting -> hash of what lay there."""


@dataclass(frozen=True)
class SweepRow:
    """One cell in the table."""

    cell: int
    """Its number."""
    settings: dict[str, Any]
    """Varied key -> value."""
    label: str
    """The varied settings in words."""
    seeds: list[int]
    """Training seeds."""
    precision: str
    """What was computed in."""
    status: Literal["finished", "failed", "refused", "waiting"]
    """Finished when every seed is."""
    before: float | None
    """nDCG@10 on dev before training, the mean over the seeds that finished."""
    best: float | None
    """nDCG@10 on dev of the kept checkpoints, the mean over the seeds that finished."""
    spread: float | None
    """Sample standard deviation of `best` over the seeds; None where fewer than two finished."""
    best_steps: list[int]
    """Step of the kept checkpoint of each seed that finished."""
    seconds: float
    """Wall time of training, all seeds together."""
    reason: str
    """Why it did not finish."""
    warnings: list[str]
    """What its runs warned of."""
    best_seed: int | None
    """The seed whose kept checkpoint is the best of the cell."""


def rank_cells(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[SweepRow]:
    """A row a cell, best first: finished ones by their mean on dev, then those that failed or wait.

    A cell of which one seed failed is not ranked by the others: what diverges now and then is not best.

    Args:
        cells: the cells of the sweep.
        outcomes: run folder, see `run_folder` -> what it left; runs that wait have none.
    """
    rows = [_row(cell, outcomes) for cell in cells]
    return sorted(rows, key=lambda row: (row.status != "finished", -(row.best or 0.0), row.cell))


def write_table(path: Path, rows: Sequence[SweepRow]) -> None:
    """Write the table as CSV.

    Raises:
        StorageError: the file cannot be written; an earlier table is left as it was.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    varied = list(rows[0].settings) if rows else []
    measured = ["dev_ndcg@10_before", "dev_ndcg@10", "dev_ndcg@10_spread", "best_step", "seconds", "status", "reason"]
    writer.writerow(["rank", "cell", *varied, "seeds", "precision", *measured])
    for rank, row in enumerate(rows, start=1):
        figures = ["" if figure is None else f"{figure:.4f}" for figure in (row.before, row.best, row.spread)]
        settings = [show(value) for value in row.settings.values()]
        seeds, steps = (" ".join(map(str, numbers)) for numbers in (row.seeds, row.best_steps))
        writer.writerow([rank if row.status == "finished" else "", row.cell, *settings, seeds, row.precision, *figures,
                         steps, f"{row.seconds:.1f}", row.status, row.reason])  # fmt: skip
    write_atomically(path, text.getvalue())


def write_best(path: Path, row: SweepRow, config: TrainConfig, cells: int) -> None:
    """Write the best cell's settings as a file for `bixse train --config`; its paths are absolute.

    Args:
        path: the file.
        row: the best cell.
        config: its training run that did best.
        cells: how many cells it was chosen from.

    Raises:
        StorageError: the file cannot be written; an earlier one is left as it was.
    """
    values = config.model_dump(mode="json")
    values |= {name: map_paths(values[name], Path.absolute) for name in TrainConfig.path_settings()}
    if Path(config.model).is_dir():
        values["model"] = str(Path(config.model).absolute())
    lines = [
        f"# The best of {cells} cells on dev: {' '.join(row.label.split())}",
        f"# dev nDCG@10 {row.best:.4f} ({row.before or 0:.4f} before), which flatters: it was chosen for that figure.",
        "# Measure it on test, once.",
    ]
    write_atomically(path, "\n".join(lines) + "\n" + yaml.safe_dump(values, sort_keys=False))


def _row(cell: Cell, outcomes: Mapping[str, Outcome]) -> SweepRow:
    """The row of a cell."""
    known = {config.seed: outcomes.get(run_folder(cell, config)) for config in cell.configs}
    found = {seed: outcome for seed, outcome in known.items() if outcome is not None}
    ended = {seed: outcome for seed, outcome in found.items() if outcome.status == "finished"}
    broken = next(((seed, outcome) for seed, outcome in found.items() if outcome.status != "finished"), None)
    scores = {seed: outcome.best for seed, outcome in ended.items() if outcome.best is not None}
    before = [outcome.before for outcome in ended.values() if outcome.before is not None]
    reason = "" if broken is None else broken[1].reason
    return SweepRow(
        cell=cell.number,
        settings=cell.settings,
        label=cell.label,
        seeds=list(known),
        precision=cell.configs[0].precision,
        status=broken[1].status if broken is not None else "finished" if len(ended) == len(known) else "waiting",
        before=statistics.fmean(before) if before else None,
        best=statistics.fmean(scores.values()) if scores else None,
        spread=statistics.stdev(scores.values()) if len(scores) > 1 else None,
        best_steps=[outcome.best_step for outcome in ended.values() if outcome.best_step is not None],
        seconds=sum(outcome.seconds for outcome in found.values()),
        reason=f"seed {broken[0]}: {reason}" if broken is not None and len(known) > 1 else reason,
        warnings=list(dict.fromkeys(warning for outcome in ended.values() for warning in outcome.warnings)),
        best_seed=max(scores, key=lambda seed: scores[seed]) if scores else None,
    )
