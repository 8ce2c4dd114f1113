"""Train the arms of a search over settings, resumable run by run, and rank the arms on dev."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel

from bixse.data.corpus import judgements_of
from bixse.data.run import open_run
from bixse.data.task_instructions import load_instructions
from bixse.data.trec import read_qrels
from bixse.encoders.loading.build import model_hashes, model_path_settings
from bixse.errors import ERRORS_SHOWN, ConfigError
from bixse.evaluation.statistics import ROUNDING
from bixse.files.files import hash_files, write_atomically
from bixse.lab.experiments import (
    RUNS_FOLDER,
    TRAIN_FOLDER,
    Arm,
    ArmRun,
    Measured,
    RunResult,
    RunStatus,
    clear,
    do_runs,
    opened,
    show,
    train_run,
)
from bixse.progress import progress_bar
from bixse.rendering.wording import format_csv
from bixse.results import too_few
from bixse.settings import map_paths, paths_in
from bixse.training.config import MODEL_FOLDER, TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.sources import split_hashes, splits_of

if TYPE_CHECKING:
    from bixse.lab.lab_config import SweepConfig


TABLE_FILE = "sweep.csv"
BEST_FILE = "best.yaml"
MOST_ARMS = 10_000
"""Maximum number of arms per sweep, because each has a row of the table and a folder."""


@dataclass(frozen=True)
class SweepRow:
    """One arm of the table. Its figures cover the seeds that finished."""

    arm: int
    settings: dict[str, Any]
    label: str
    seeds: list[int]
    precision: str
    status: RunStatus | Literal["waiting"]
    """The status is `finished` if every seed is finished."""
    before: float | None
    """Mean nDCG@10 on dev before training."""
    best: float | None
    """Mean nDCG@10 on dev of the kept models."""
    spread: float | None
    """Sample standard deviation of `best` over the seeds. None for fewer than two."""
    best_steps: list[int]
    seconds: float
    reason: str
    warnings: list[str]
    best_run: str
    """The run with the arm's best kept model, as `ARM/seed-N`."""
    best_seed: int | None


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep."""

    rows: list[SweepRow]
    """One row per arm, best first."""
    table_path: Path
    best: SweepRow | None
    best_path: Path | None
    model_path: Path | None
    """The model of the best arm's best seed. None if no model was kept."""
    warnings: list[str]
    reused: bool
    """True if every run had ended before this call."""
    waiting: int = 0
    """Number of runs that are pending on other ranks."""

    @property
    def failed(self) -> list[SweepRow]:
        return [row for row in self.rows if row.status != "finished"]


def sweep(config: SweepConfig, out: Path, progress: bool = True) -> SweepResult:
    """Train every arm with every seed in its own folder below `out/runs` and rank the arms by nDCG@10 on dev.

    After each run, `out/sweep.csv` and `out/best.yaml` hold the results so far. A second call with the same settings
    keeps finished runs, continues an interrupted run from its checkpoint, and repeats failed runs. A diverged run is
    not repeated, because it would diverge again. To train it anew, delete its folder.

    Args:
        config: the settings that vary, and the shared ones.
        out: output folder.
        progress: show one bar per run, or one bar over all runs if several run at once.

    Raises:
        InputError: an arm's settings, the pairs or the dev collection cannot be used; nothing was trained.
        OutputExistsError: `out` holds another sweep, its inputs changed since, or another process is at work in it.
        StorageError: the disk is full.
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.
    """
    arms = plan_arms(config)
    first = TrainConfig.load(None, arms[0].train)
    seeds = config.seeds or (first.seed,)
    runs = [ArmRun(arm, seed, train_on_dev, {**(arm.train or {}), "seed": seed}) for arm in arms for seed in seeds]
    paths = (*TrainConfig.path_settings(), *model_path_settings(first.model))
    record = open_run(out, "sweep", _identity(config, first, seeds), _input_hashes(config, first), paths)
    judged = [read_qrels(judgements_of(folder, first.dev_split)) for folder in paths_in(first.dev)]
    queries = sum(max(grades.values()) > 0 for qrels in judged for grades in qrels.values())
    titles = {run.name: f"run {n} of {len(runs)}: {run.arm.label}, seed {run.seed}" for n, run in enumerate(runs, 1)}

    def tables(results: Mapping[str, RunResult]) -> list[SweepRow]:
        rows = [_row(number, arm, seeds, results) for number, arm in enumerate(arms, start=1)]
        # finished arms by their mean on dev, best first, then failed and pending arms
        rows.sort(key=lambda row: (row.status != "finished", -(row.best or 0.0), row.arm))
        write_atomically(out / TABLE_FILE, format_csv(table_of(rows)))
        if rows[0].status == "finished":
            write_best(out / BEST_FILE, rows[0], arms[rows[0].arm - 1], len(arms), undecided_of(rows, queries))
        _drop_models(out, runs, results, rows)
        return rows

    engine = config.engine_of(config.jobs)
    with opened(record, engine) as experiment:
        done = do_runs(
            experiment,
            runs,
            titles if progress and engine.here else {},
            keep_models=True,  # `_drop_models` keeps the best
            progress=progress_bar if progress and not engine.here else None,
            wanted=lambda run, results: all(  # an arm with a failed seed is not ranked: skip its others
                results[other.name].status == "finished"
                for other in runs
                if other.arm is run.arm and other.name in results
            ),
            after_each=tables,
        )
        rows = tables(done.of)
        record.save(done.status)
    best = rows[0] if rows[0].status == "finished" else None
    model = out / RUNS_FOLDER / best.best_run / TRAIN_FOLDER / MODEL_FOLDER if best is not None else None
    return SweepResult(
        rows=rows,
        table_path=out / TABLE_FILE,
        best=best,
        best_path=out / BEST_FILE if best is not None else None,
        model_path=model if model is not None and model.is_dir() else None,
        warnings=[*done.warnings, *_warnings(best, undecided_of(rows, queries))],
        reused=done.made == 0,
        waiting=done.waiting,
    )


def train_on_dev(run: ArmRun, titles: Mapping[str, str], folder: Path) -> Measured:
    """Train a run and measure nDCG@10 on dev, before training and with the kept model."""
    config = TrainConfig.load(None, run.settings)
    result = train_run(config, folder, titles.get(run.name))
    figures = dev_figures(result.history)
    before, after = figures.get(0), figures.get(result.best_step) if result.best_step is not None else None
    if result.merge is not None and result.merge.points:
        before, after = result.merge.dev(0.0), result.merge.dev(result.merge.weight)
    values = {"before": before, "after": after, "best_step": result.best_step}
    metrics = {name: value for name, value in values.items() if value is not None}
    return Measured(metrics, precision=config.precision, warnings=result.warnings)


def _row(number: int, arm: Arm, seeds: Sequence[int], results: Mapping[str, RunResult]) -> SweepRow:
    known = [results[name] for seed in seeds if (name := f"{arm.folder}/seed-{seed}") in results]
    ended = [result for result in known if result.status == "finished"]
    broken = next((result for result in known if result.status != "finished"), None)
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
        # one failed seed keeps the arm out of the ranking: an arm that diverges sometimes is not best
        status=broken.status if broken is not None else "finished" if len(ended) == len(seeds) else "waiting",
        before=statistics.fmean(before) if before else None,
        best=statistics.fmean(scores.values()) if scores else None,
        spread=statistics.stdev(scores.values()) if len(scores) > 1 else None,
        best_steps=[int(result.metrics["best_step"]) for result in ended if "best_step" in result.metrics],
        seconds=sum(result.seconds for result in known),
        reason=f"seed {broken.seed}: {reason}" if broken is not None and len(seeds) > 1 else reason,
        warnings=list(dict.fromkeys(warning for result in ended for warning in result.warnings)),
        best_run=f"{arm.folder}/seed-{best}",
        best_seed=best,
    )


def undecided_of(rows: Sequence[SweepRow], queries: int) -> str:
    """Return why dev has not chosen the best of ranked arms; "" if it has, or for one finished arm.

    Reasons are too few `queries`, equal arms, one seed, and a lead over the next arm within one standard error over
    seeds.
    """
    ended = [row for row in rows if row.status == "finished" and row.best is not None]
    if len(ended) < 2:
        return ""
    if few := too_few(queries, "dev queries"):
        return few
    first, second = ended[0], ended[1]
    lead = (first.best or 0.0) - (second.best or 0.0)
    if lead <= ROUNDING:
        equal = [str(row.arm) for row in ended if (first.best or 0.0) - (row.best or 0.0) <= ROUNDING]
        return f"arms {', '.join(equal)} are equal on dev"
    if len(first.seeds) == 1:
        return "with one seed per arm nobody knows how much is chance; list several under `seeds`"
    error = math.sqrt(sum((row.spread or 0.0) ** 2 / len(row.seeds) for row in (first, second)))
    if lead <= error:
        return f"arm {second.arm} is within one standard error over seeds ({lead:.4f} of {error:.4f})"
    return ""


def table_of(rows: Sequence[SweepRow]) -> list[dict[str, str]]:
    """Return the ranked arms as a table: column -> text per arm."""
    return [
        {
            "rank": str(rank) if row.status == "finished" else "",
            "arm": str(row.arm),
            **{key: show(value) for key, value in row.settings.items()},
            "seeds": " ".join(map(str, row.seeds)),
            "precision": row.precision,
            "dev_ndcg@10_before": _figure(row.before),
            "dev_ndcg@10": _figure(row.best),
            "dev_ndcg@10_spread": _figure(row.spread),
            "best_step": " ".join(map(str, row.best_steps)),
            "seconds": f"{row.seconds:.1f}",
            "status": row.status,
            "reason": row.reason,
        }
        for rank, row in enumerate(rows, start=1)
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def figures_of(row: SweepRow) -> dict[str, Any]:
    """Return a row as plain data."""
    names = {"before": "dev_ndcg@10_before", "best": "dev_ndcg@10", "spread": "dev_ndcg@10_spread"}
    names["best_steps"] = "best_step"
    left_out = ("label", "warnings", "best_run", "best_seed")
    figures = {names.get(key, key): value for key, value in asdict(row).items() if key not in left_out}
    return {**figures, "settings": json.loads(json.dumps(row.settings, default=str))}


def write_best(path: Path, row: SweepRow, arm: Arm, arms: int, undecided: str = "") -> None:
    """Write the best arm's settings as a file for `bixse train --config`, with absolute paths."""
    values = {**(arm.train or {}), "seed": row.best_seed}
    values |= {name: map_paths(values[name], Path.absolute) for name in TrainConfig.path_settings()}
    if Path(values["model"]).is_dir():
        values["model"] = str(Path(values["model"]).absolute())
    lines = [
        f"# The best of {arms} arms on dev: {' '.join(row.label.split())}",
        f"# dev nDCG@10 {row.best:.4f} ({row.before or 0:.4f} before), which is optimistic: dev chose the arm.",
        "# Measure it on test, once.",
        *([f"# Dev cannot tell which arm is best: {undecided}."] if undecided else []),
    ]
    write_atomically(path, "\n".join(lines) + "\n" + yaml.safe_dump(values, sort_keys=False))


def _identity(config: SweepConfig, first: TrainConfig, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the settings that identify a sweep."""
    settings = first.model_dump(mode="json")
    for key in (*config.vary, "seed"):  # `first` holds the values of one arm
        *parents, last = key.split(".")
        section: Any = settings
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    return settings | {"sweep": {**config.model_dump(mode="json", include={"vary"}), "seeds": list(seeds)}}


def _input_hashes(config: SweepConfig, first: TrainConfig) -> dict[str, str]:
    """Return the content hashes of the runs' inputs. A varied path has one hash per value."""
    hashes = split_hashes(splits_of(first))
    for key in ("pairs", "model", "instructions"):
        for number, value in enumerate(config.vary.get(key, [getattr(first, key)]), start=1):
            name = f"{key}/{number}"
            if key == "model":
                hashes |= {f"{name}/{file}": content for file, content in model_hashes(value).items()}
            elif key == "pairs":
                hashes |= hash_files({f"{name}/{path.name}": path for path in paths_in(value)})
            elif value is not None:
                hashes[name] = load_instructions(Path(value)).content_hash()
    return hashes


def _drop_models(out: Path, runs: Sequence[ArmRun], results: Mapping[str, RunResult], rows: Sequence[SweepRow]) -> None:
    """Delete all models but the best. Pending arms keep their best so far: they may still win."""
    needed = {row.best_run for row in rows if row.status == "waiting" or row is rows[0]}
    for run in runs:
        if run.name in results and run.name not in needed:
            clear(out / RUNS_FOLDER / run.name, results[run.name], keep_models=False)


def _warnings(best: SweepRow | None, undecided: str) -> list[str]:
    warnings = [] if best is None else [f"best arm: {warning}" for warning in best.warnings]
    if undecided:
        warnings.append(f"cannot tell which arm is best: {undecided}; the first of them is taken")
    return warnings


def plan_arms(config: SweepConfig) -> list[Arm]:
    """Return the arms of a sweep with validated settings, in order and without duplicates.

    A ConfigError lists all errors with their arms.

    Example:
        >>> from bixse.lab.lab_config import SweepConfig
        >>> vary = {"scale": [10, 20], "optimizer.num_train_epochs": [3]}
        >>> config = SweepConfig(base={"pairs": "pairs.jsonl", "dev": "toy"}, vary=vary)
        >>> [arm.label for arm in plan_arms(config)]
        ['scale=10, num_train_epochs=3', 'scale=20, num_train_epochs=3']
    """
    base = config.base_settings()
    _refuse(list(_key_errors(config)))
    arms: dict[str, Arm] = {}
    errors: dict[str, list[str]] = {}
    choices = [dict(zip(config.vary, values, strict=True)) for values in itertools.product(*config.vary.values())]
    for choice in choices:
        try:
            # a copy: `load` writes dotted keys into the sections of `base`
            settings = TrainConfig.load(None, deepcopy({**base, **choice})).resolved()
        except ConfigError as error:
            lines = str(error).splitlines()[1:]
        else:
            no_dev = "  dev: got nothing; expected a collection folder to rank the arms by; fix: set it in `base`"
            lines = [] if settings.dev else [no_dev]
            if settings.merge is None and settings.evaluations_per_epoch == 0:
                lines.append("  evaluations_per_epoch: got 0 and no merge, so no figure on dev to rank the arms by; "
                             "expected 1 or more; fix: set it in `base`")  # fmt: skip
            labels = {key: _as_read(settings, key, value) for key, value in choice.items()}
            # keyed by what training reads: 1e-4 and "0.0001" are one arm
            arms.setdefault(settings.model_dump_json(), Arm(labels, train=settings.model_dump(mode="json")))
        for line in lines:
            errors.setdefault(line, []).append(Arm(choice).label)
    _refuse([line + _where(labels, len(choices)) for line, labels in errors.items()])
    # file systems of macOS and Windows ignore case
    folders = Counter(arm.folder.casefold() for arm in arms.values())
    _refuse(
        [
            f"  vary: got two arms for the folder {name!r}; expected values that differ as text; fix: drop one"
            for name, number in folders.items()
            if number > 1
        ]
    )
    return list(arms.values())


def _as_read(config: TrainConfig, key: str, given: Any) -> Any:
    """Return a varied value as training reads it (YAML gives "1e-4" as text). A section stays as given."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return given if isinstance(value, BaseModel) else value


def _key_errors(config: SweepConfig) -> Iterator[str]:
    """Yield the errors of the sweep's own settings."""
    if (number := math.prod(map(len, config.vary.values()))) > MOST_ARMS:
        yield f"  vary: got {number:,} combinations; expected at most {MOST_ARMS:,}; fix: fewer values"
    for key in config.vary:
        if key == "seed":
            yield "  vary.seed: got the training seed; expected it as `seeds`; fix: move the list to `seeds`"
        if key in ("dev", "merge", "merge.documents") or key.startswith(("dev_", "guard")):
            yield (
                f"  vary.{key}: got a setting of the evaluation; expected one of training: figures on other queries or "
                "documents do not compare; fix: set it in `base`"
            )
        for other in config.vary:
            if key.startswith(f"{other}."):
                yield f"  vary.{key}: got a key within {other!r}, which varies too; expected one of them; fix: drop one"


def _where(labels: list[str], arms: int) -> str:
    if len(labels) == arms:
        return " (in every arm)"
    others = len(labels) - 1
    return f" (in arm {labels[0]}{f' and {others} more' if others else ''})"


def _refuse(errors: list[str]) -> None:
    if errors:
        head = f"sweep: {len(errors)} error{'s' if len(errors) != 1 else ''}"
        rest = [f"  ... and {len(errors) - ERRORS_SHOWN} more"] if len(errors) > ERRORS_SHOWN else []
        raise ConfigError("\n".join([head, *errors[:ERRORS_SHOWN], *rest]))
