"""The arms of a sweep ranked on dev: the rows of `sweep.csv`, and the best arm as a file of settings."""

from __future__ import annotations

import csv
import io
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from bixse.data.io.files import write_atomically
from bixse.experiments.arms import RunStatus, show
from bixse.report.table import format_number, format_table
from bixse.settings import map_paths
from bixse.training.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.experiments.arms import Arm, RunResult

TABLE_FILE = "sweep.csv"
"""The table of a sweep, in its folder."""
BEST_FILE = "best.yaml"
"""The settings of the best arm, in the sweep's folder."""


@dataclass(frozen=True)
class SweepRow:
    """One arm in the table."""

    arm: int
    """Its number, from 1 on."""
    settings: dict[str, Any]
    """Varied key -> value."""
    label: str
    """The varied settings in words."""
    seeds: list[int]
    """Training seeds."""
    precision: str
    """What was computed in."""
    status: RunStatus | Literal["waiting"]
    """Finished when every seed is."""
    before: float | None
    """nDCG@10 on dev before training, the mean over the seeds that finished."""
    best: float | None
    """nDCG@10 on dev of the kept models, the mean over the seeds that finished."""
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
    best_run: str
    """Folder of the run whose kept model is the best of the arm."""
    best_seed: int | None
    """Its seed."""


def rank_arms(arms: Sequence[Arm], seeds: Sequence[int], results: Mapping[str, RunResult]) -> list[SweepRow]:
    """A row per arm, best first: finished ones by their mean on dev, then those that failed or wait.

    An arm of which one seed failed is not ranked by the others: what diverges now and then is not best.

    Args:
        arms: the arms of the sweep.
        seeds: their seeds.
        results: name of a run -> its result; runs that wait have none.
    """
    rows = [_row(number, arm, seeds, results) for number, arm in enumerate(arms, start=1)]
    return sorted(rows, key=lambda row: (row.status != "finished", -(row.best or 0.0), row.arm))


def write_table(path: Path, rows: Sequence[SweepRow]) -> None:
    """Write the table as CSV.

    Raises:
        StorageError: the file cannot be written; an earlier table is left as it was.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured = ["dev_ndcg@10_before", "dev_ndcg@10", "dev_ndcg@10_spread", "best_step", "seconds", "status", "reason"]
    writer.writerow(["rank", "arm", *rows[0].settings, "seeds", "precision", *measured])
    for rank, row in enumerate(rows, start=1):
        figures = ["" if figure is None else f"{figure:.4f}" for figure in (row.before, row.best, row.spread)]
        settings = [show(value) for value in row.settings.values()]
        seeds, steps = (" ".join(map(str, numbers)) for numbers in (row.seeds, row.best_steps))
        writer.writerow([rank if row.status == "finished" else "", row.arm, *settings, seeds, row.precision, *figures,
                         steps, f"{row.seconds:.1f}", row.status, row.reason])  # fmt: skip
    write_atomically(path, text.getvalue())


def write_best(path: Path, row: SweepRow, arm: Arm, arms: int) -> None:
    """Write the best arm's settings as a file for `bixse train --config`; its paths are absolute.

    Args:
        path: the file.
        row: the best arm's row.
        arm: the best arm.
        arms: how many arms it was chosen from.

    Raises:
        StorageError: the file cannot be written; an earlier one is left as it was.
    """
    values = {**(arm.train or {}), "seed": row.best_seed}
    values |= {name: map_paths(values[name], Path.absolute) for name in TrainConfig.path_settings()}
    if Path(values["model"]).is_dir():
        values["model"] = str(Path(values["model"]).absolute())
    lines = [
        f"# The best of {arms} arms on dev: {' '.join(row.label.split())}",
        f"# dev nDCG@10 {row.best:.4f} ({row.before or 0:.4f} before), which flatters: it was chosen for that figure.",
        "# Measure it on test, once.",
    ]
    write_atomically(path, "\n".join(lines) + "\n" + yaml.safe_dump(values, sort_keys=False))


def _row(number: int, arm: Arm, seeds: Sequence[int], results: Mapping[str, RunResult]) -> SweepRow:
    found = [results[name] for seed in seeds if (name := f"{arm.folder}/seed-{seed}") in results]
    ended = [result for result in found if result.status == "finished"]
    broken = next((result for result in found if result.status != "finished"), None)
    scores = {result.seed: result.metrics["after"] for result in ended if "after" in result.metrics}
    before = [result.metrics["before"] for result in ended if "before" in result.metrics]
    best = max(scores, key=lambda seed: scores[seed], default=None)
    reason = "" if broken is None else broken.reason
    return SweepRow(
        arm=number,
        settings=dict(arm.labels),
        label=arm.label,
        seeds=list(seeds),
        precision=(arm.train or {}).get("precision", ""),
        status=broken.status if broken is not None else "finished" if len(ended) == len(seeds) else "waiting",
        before=statistics.fmean(before) if before else None,
        best=statistics.fmean(scores.values()) if scores else None,
        spread=statistics.stdev(scores.values()) if len(scores) > 1 else None,
        best_steps=[int(result.metrics["best_step"]) for result in ended if "best_step" in result.metrics],
        seconds=sum(result.seconds for result in found),
        reason=f"seed {broken.seed}: {reason}" if broken is not None and len(seeds) > 1 else reason,
        warnings=list(dict.fromkeys(warning for result in ended for warning in result.warnings)),
        best_run=f"{arm.folder}/seed-{best}",
        best_seed=best,
    )


def table_text(rows: Sequence[SweepRow]) -> str:
    """The rows for a terminal."""
    several = any(len(row.seeds) > 1 for row in rows)
    table: list[list[str | int | float | None]] = [
        [
            rank if row.status == "finished" else "",
            row.arm,
            *map(show, row.settings.values()),
            format_number(row.before, 4),
            format_number(row.best, 4),
            *([format_number(row.spread, 4)] if several else []),
            " ".join(map(str, row.best_steps)),
            f"{row.seconds:.0f}",
            row.status,
        ]
        for rank, row in enumerate(rows, start=1)
    ]
    spread = ["± over seeds"] if several else []
    varied = [key.rpartition(".")[2] for key in rows[0].settings]
    head = ["rank", "arm", *varied, "dev before", "dev nDCG@10", *spread, "best step", "seconds", "status"]
    return format_table(table, head)


def figures_of(row: SweepRow) -> dict[str, Any]:
    """A row as plain data."""
    names = {"before": "dev_ndcg@10_before", "best": "dev_ndcg@10", "spread": "dev_ndcg@10_spread"}
    names["best_steps"] = "best_step"
    left_out = ("label", "warnings", "best_run", "best_seed")
    figures = {names.get(key, key): value for key, value in asdict(row).items() if key not in left_out}
    return {**figures, "settings": json.loads(json.dumps(row.settings, default=str))}
