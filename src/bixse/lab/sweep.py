"""Train the arms of a search over settings, resumable run by run, and rank the arms on dev."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel

from bixse.data.run import open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.loading.build import model_hashes, model_path_settings
from bixse.errors import ERRORS_SHOWN, ConfigError
from bixse.files.files import hash_files, write_atomically
from bixse.lab.experiments import (
    RUNS_FOLDER,
    TRAIN_FOLDER,
    Arm,
    ArmRun,
    Measured,
    RunStatus,
    clear,
    do_runs,
    opened,
    show,
    train_run,
)
from bixse.lab.lab_config import MOST_TRIALS, Range
from bixse.progress import progress_bar
from bixse.report.table import format_number, format_table
from bixse.settings import map_paths, paths_in
from bixse.training.config import MODEL_FOLDER, TrainConfig
from bixse.training.dev_evaluation import dev_figures, split_hashes, watched_splits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.lab.experiments import RunResult
    from bixse.lab.lab_config import SweepConfig


TABLE_FILE = "sweep.csv"
BEST_FILE = "best.yaml"


@dataclass(frozen=True)
class SweepRow:
    """One arm of the table. Its figures cover the seeds that finished."""

    arm: int
    """The number of the arm, counted from 1."""
    settings: dict[str, Any]
    """Varied key -> value."""
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
    """The step of the kept checkpoint, per seed."""
    seconds: float
    """Wall time of training, summed over the seeds."""
    reason: str
    """The cause if the arm did not finish."""
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
    """The best arm. None if no arm finished."""
    best_path: Path | None
    """The YAML file with the settings of the best arm, for `bixse train --config`."""
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

    Example:
        ::

            base = {"pairs": "pairs.jsonl", "dev": "my-collection", "model": "demo"}
            vary = {"optimizer.learning_rate": [5e-5, 1e-4], "loss": ["bixse", "infonce"]}
            result = sweep(SweepConfig(base=base, vary=vary), Path("runs/sweep"))
            print(result.best.label, result.best.best)
    """
    arms = plan_arms(config)
    first = TrainConfig.load(None, arms[0].train)
    seeds = config.seeds or (first.seed,)
    runs = [ArmRun(arm, seed, train_on_dev, {**(arm.train or {}), "seed": seed}) for arm in arms for seed in seeds]
    paths = ("trials", *TrainConfig.path_settings(), *model_path_settings(first.model))
    record = open_run(out, "sweep", _identity(config, first, seeds), _input_hashes(config, first), paths)
    titles = {run.name: f"run {n} of {len(runs)}: {run.arm.label}, seed {run.seed}" for n, run in enumerate(runs, 1)}

    def tables(results: Mapping[str, RunResult]) -> list[SweepRow]:
        rows = rank_arms(arms, seeds, results)
        write_table(out / TABLE_FILE, rows)
        if rows[0].status == "finished":
            write_best(out / BEST_FILE, rows[0], arms[rows[0].arm - 1], len(arms))
        _drop_models(config, out, runs, results, rows)
        return rows

    engine = config.engine_of(config.jobs)
    with opened(record, engine) as experiment:
        done = do_runs(
            experiment,
            runs,
            titles if progress and engine.here else {},
            keep_models=config.keep != "none",
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
        warnings=[*done.warnings, *_warnings(config, arms, seeds, best)],
        reused=done.made == 0,
        waiting=done.waiting,
    )


def train_on_dev(run: ArmRun, titles: Mapping[str, str], own: Path) -> Measured:
    """Train a run and measure nDCG@10 on dev, before training and with the kept model."""
    config = TrainConfig.load(None, run.settings)
    result = train_run(config, own, titles.get(run.name))
    figures = dev_figures(result.history)
    before, after = figures.get(0), figures.get(result.best_step) if result.best_step is not None else None
    if result.merge is not None and result.merge.points:
        before, after = result.merge.dev(0.0), result.merge.dev(result.merge.weight)
    found = {"before": before, "after": after, "best_step": result.best_step}
    metrics = {name: value for name, value in found.items() if value is not None}
    return Measured(metrics, precision=config.precision, warnings=result.warnings)


def rank_arms(arms: Sequence[Arm], seeds: Sequence[int], results: Mapping[str, RunResult]) -> list[SweepRow]:
    """Return one row per arm: finished arms by their mean on dev, best first, then failed and pending arms."""
    rows = [_row(number, arm, seeds, results) for number, arm in enumerate(arms, start=1)]
    return sorted(rows, key=lambda row: (row.status != "finished", -(row.best or 0.0), row.arm))


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
        # one failed seed keeps the arm out of the ranking: an arm that diverges sometimes is not best
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


def write_table(path: Path, rows: Sequence[SweepRow]) -> None:
    """Write the table as CSV."""
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


def table_text(rows: Sequence[SweepRow]) -> str:
    """Return the rows as a table for a terminal."""
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
    """Return a row as plain data."""
    names = {"before": "dev_ndcg@10_before", "best": "dev_ndcg@10", "spread": "dev_ndcg@10_spread"}
    names["best_steps"] = "best_step"
    left_out = ("label", "warnings", "best_run", "best_seed")
    figures = {names.get(key, key): value for key, value in asdict(row).items() if key not in left_out}
    return {**figures, "settings": json.loads(json.dumps(row.settings, default=str))}


def write_best(path: Path, row: SweepRow, arm: Arm, arms: int) -> None:
    """Write the best arm's settings as a file for `bixse train --config`, with absolute paths."""
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


def _identity(config: SweepConfig, first: TrainConfig, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the settings that identify a sweep. `trials` is separate, because it may be raised later."""
    settings = first.model_dump(mode="json")
    for key in (*config.vary, "seed"):
        *parents, last = key.split(".")
        section: Any = settings
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    own = config.model_dump(mode="json", include={"search", "vary", "seed", "keep"})
    return settings | {"sweep": {**own, "seeds": list(seeds)}, "trials": config.trials}


def _input_hashes(config: SweepConfig, first: TrainConfig) -> dict[str, str]:
    """Return the content hashes of the runs' inputs. A varied path has one hash per value."""
    hashes = split_hashes(watched_splits(first))
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


def _drop_models(
    config: SweepConfig, out: Path, runs: Sequence[ArmRun], results: Mapping[str, RunResult], rows: Sequence[SweepRow]
) -> None:
    """Delete all models but the best for `keep: best`. Pending arms keep their best so far: they may still win."""
    if config.keep != "best":
        return
    kept = {row.best_run for row in rows if row.status == "waiting" or row is rows[0]}
    for run in runs:
        if run.name in results and run.name not in kept:
            clear(out / RUNS_FOLDER / run.name, results[run.name], keep_models=False)


def _warnings(config: SweepConfig, arms: Sequence[Arm], seeds: Sequence[int], best: SweepRow | None) -> list[str]:
    warnings = [] if best is None else [f"best arm: {warning}" for warning in best.warnings]
    if config.trials is not None and len(arms) < config.trials:
        warnings.append(f"{config.trials} arms were drawn, {len(arms)} of them different: the others are left out")
    if len(seeds) == 1 and len(arms) > 1:
        warnings.append("one seed per arm: nobody knows how much of a difference is chance; list several under `seeds`")
    return warnings


def plan_arms(config: SweepConfig) -> list[Arm]:
    """Return the arms of a sweep with validated settings, in order and without duplicates.

    A random arm depends only on the sweep's seed and its own number. A ConfigError lists all errors with their arms.

    Example:
        >>> from bixse.lab.lab_config import SweepConfig
        >>> vary = {"scale": [10, 20], "optimizer.epochs": [3]}
        >>> config = SweepConfig(base={"pairs": "pairs.jsonl", "dev": "toy"}, vary=vary)
        >>> [arm.label for arm in plan_arms(config)]
        ['scale=10, epochs=3', 'scale=20, epochs=3']
    """
    base = config.base_settings()
    _refuse(list(_key_errors(config)))
    arms: dict[str, Arm] = {}
    errors: dict[str, list[str]] = {}
    choices = list(_choices(config))
    for choice in choices:
        try:
            settings = TrainConfig.load(None, deepcopy({**base, **choice})).resolved()
        except ConfigError as error:
            found = str(error).splitlines()[1:]
        else:
            found = list(_arm_errors(settings, choice))
            labels = {key: _as_read(settings, key, value) for key, value in choice.items()}
            arms.setdefault(settings.model_dump_json(), Arm(labels, train=settings.model_dump(mode="json")))
        for line in found:
            errors.setdefault(line, []).append(Arm(choice).label)
    _refuse([line + _where(labels, len(choices)) for line, labels in errors.items()])
    folders = Counter(arm.folder.casefold() for arm in arms.values())
    _refuse(
        [
            f"  vary: got two arms for the folder {name!r}; expected values that differ as text; fix: drop one"
            for name, number in folders.items()
            if number > 1
        ]
    )
    return list(arms.values())


def _setting(config: BaseModel, key: str) -> Any:
    """Return the value under a dotted key. None if its section is missing."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def _as_read(config: TrainConfig, key: str, given: Any) -> Any:
    """Return a varied value as training reads it (YAML gives "1e-4" as text). A section stays as given."""
    value = _setting(config, key)
    return given if isinstance(value, BaseModel) else value


def _choices(config: SweepConfig) -> Iterator[dict[str, Any]]:
    if config.search == "grid":
        for values in itertools.product(*config.vary.values()):
            yield dict(zip(config.vary, values, strict=True))
        return
    for number in range(1, (config.trials or 0) + 1):
        yield {key: _draw(values, f"{config.seed}/{number}/{key}") for key, values in config.vary.items()}


def _draw(values: list[Any] | Range, seed: str) -> Any:
    share = random.Random(seed).random()
    return values.draw(share) if isinstance(values, Range) else values[int(share * len(values))]


def _key_errors(config: SweepConfig) -> Iterator[str]:
    """Yield the errors of the sweep's own settings."""
    ranges = [key for key, values in config.vary.items() if isinstance(values, Range)]
    if config.search == "random" and config.trials is None:
        yield "  trials: got nothing; expected a number for random search; fix: set `trials`, such as 20"
    if config.search == "grid" and config.trials is not None:
        yield f"  trials: got {config.trials}; expected none for a grid; fix: drop it, or set `search: random`"
    if config.search == "grid" and ranges:
        yield f"  vary.{ranges[0]}: got a range; expected a list in a grid; fix: list values, or set `search: random`"
    elif config.search == "grid" and (number := math.prod(map(len, config.vary.values()))) > MOST_TRIALS:
        fix = "fewer values, or `search: random`"
        yield f"  vary: got {number:,} combinations; expected at most {MOST_TRIALS:,}; fix: {fix}"
    for key in config.vary:
        if key == "seed":
            yield "  vary.seed: got the training seed; expected it as `seeds`; fix: move the list to `seeds`"
        if key in ("dev", "merge", "merge.documents") or key.startswith(("dev_", "guard")):
            yield (
                f"  vary.{key}: got a setting of the measure; expected one of training: figures on other queries or "
                "documents do not compare; fix: set it in `base`"
            )
        for other in config.vary:
            if key.startswith(f"{other}."):
                yield f"  vary.{key}: got a key within {other!r}, which varies too; expected one of them; fix: drop one"


def _arm_errors(config: TrainConfig, choice: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors between the settings of an arm. Each setting alone is valid."""
    if config.dev is None:
        yield "  dev: got nothing; expected a collection folder to rank the arms by; fix: set it in `base`"
    for key in choice:
        section = key.rpartition(".")[0]
        if section and _setting(config, section) is None:  # `lora: null` in `base`: the value would have no effect
            yield f"  {key}: got no section {section!r}; expected one; fix: write `{section}: {{}}` in `base`"


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
