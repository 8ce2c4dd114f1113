"""`run_study`: every cell of a study, resumable one by one, and what they show together."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import RUN_FILE, open_run
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, InterruptedRunError
from bixse.losses.catalogue import check_loss_options
from bixse.studies.engine.cells import cell_config, drop_files, known_result
from bixse.studies.engine.inputs import input_hashes, prepare_inputs
from bixse.studies.engine.parallel import run_cells, visible_devices
from bixse.studies.engine.study import chosen_values, find_study
from bixse.studies.engine.study_config import OWNED, train_config
from bixse.studies.findings.contrasts import key_of
from bixse.studies.findings.outcome import StudyOutcome, outcome_of
from bixse.studies.findings.write import write_cards, write_outcome
from bixse.studies.paper.rankers import has_seeds
from bixse.training.recipe import alone_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bixse.data.run_record import RunRecord
    from bixse.studies.engine.cells import Cell, CellResult
    from bixse.studies.engine.inputs import StudyInputs
    from bixse.studies.engine.study import Study
    from bixse.studies.engine.study_config import StudyConfig

CELLS_FOLDER = "cells"
"""Where a study keeps its cells."""


@dataclass(frozen=True)
class StudyResult:
    """What a study left."""

    outcome: StudyOutcome
    """Rows, summary and findings."""
    artifacts: dict[str, str]
    """Name -> file."""
    made: int
    """Cells that this call made; the others were there."""
    warnings: list[str] = field(default_factory=list)
    """What the user should know."""


def run_study(
    name: str,
    config: StudyConfig,
    out: Path,
    jobs: int | None = None,
    keep_models: bool = False,
    command: str = "",
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
) -> StudyResult:
    """Train and measure every cell of a study with every seed, and write what they show to `out`.

    Called again with the same configuration, cells that are finished are kept, an interrupted one continues from its
    checkpoint, and a failed one is tried again. `out` then holds `cells.csv` (a row a cell), `summary.csv` (means over
    seeds with intervals), `findings.csv` (the claims with their differences), `findings.md`, `plot.svg`, `study.html`
    and `run.json`.

    Args:
        name: a name of `bixse.studies.engine.study.STUDIES`.
        config: data, encoder, settings of training and seeds.
        out: output folder.
        jobs: processes at once; None: one a graphics card, or one a core.
        keep_models: leave the trained models in the cells' folders.
        command: the command line, for the page.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: the study, its values, pairs or collections cannot be used; nothing was trained.
        OutputExistsError: `out` holds another study.
        InterruptedRunError: Ctrl-C; the same call goes on.
        StorageError: the disk is full.

    Example:
        ::

            from bixse.studies.engine.study_config import load_study_config

            result = run_study("losses", load_study_config("losses", "smoke", None), Path("runs/losses"))
            print(result.outcome.verdict())
    """
    study = find_study(name)
    values = chosen_values(study, config)
    record = _open(study, config, values, out)
    with alone_in(out):
        return _run(study, config, values, record, jobs if study.needs_data else 1, keep_models, command, progress)


def _run(
    study: Study,
    config: StudyConfig,
    values: dict[str, Any],
    record: RunRecord,
    jobs: int | None,
    keep_models: bool,
    command: str,
    progress: Callable[[str, int], Callable[[int], None]] | None,
) -> StudyResult:
    """The study in its folder, which nobody else uses."""
    out, folder = record.folder, record.folder / CELLS_FOLDER
    try:
        inputs = prepare_inputs(config, out) if study.needs_data else None
        cells = plan_cells(study, config, values, inputs)
    except InputError:
        if not (out / RUN_FILE).exists():  # a refused command leaves no folder behind
            shutil.rmtree(out, ignore_errors=True)
        raise
    record.save("running")
    done = {cell.name: found for cell in cells if (found := known_result(cell, folder)) is not None}
    missing = [cell for cell in cells if cell.name not in done]
    for name in done:
        drop_files(folder / name, keep_models)
    started = time.perf_counter()
    advance = progress(f"study {study.name}", len(cells)) if progress is not None and missing else None
    if advance is not None and done:
        advance(len(done))
    name_of = {cell.fingerprint: cell.name for cell in cells}
    try:
        for found in run_cells(missing, config.train, inputs, folder, jobs, _devices(inputs), keep_models):
            done[name_of[found.fingerprint]] = found
            if advance is not None:
                advance(1)
    except (KeyboardInterrupt, InterruptedRunError) as error:
        record.timings["cells"] = record.timings.get("cells", 0.0) + time.perf_counter() - started
        record.save("interrupted")
        raise InterruptedRunError(
            f"{out}: got Ctrl-C after {len(done)} of {len(cells)} cells; finished cells are kept; "
            "to go on: give the same command again"
        ) from error
    results = [done[cell.name] for cell in cells]
    if missing:
        record.timings["cells"] = record.timings.get("cells", 0.0) + time.perf_counter() - started
    models = write_cards(study, zip(cells, results, strict=True), folder, command) if keep_models else []
    seedless = {key_of(cell.labels) for cell in cells if not has_seeds(cell)}
    outcome = outcome_of(study, config, values, results, command, models, seedless)
    artifacts = write_outcome(outcome, out)
    failed = [found for found in results if found.status == "failed"]
    record.results = {"cells": len(cells), "failed": len(failed)}
    record.save("failed" if failed else "finished")
    warnings = _warnings(results, [cell for cell in cells if has_seeds(cell)], models, keep_models)
    return StudyResult(outcome, {**artifacts, "record": str(out / RUN_FILE)}, len(missing), warnings)


def _warnings(
    results: Sequence[CellResult], trained: Sequence[Cell], models: Sequence[str], keep_models: bool
) -> list[str]:
    """What to know before believing the table."""
    versions = sorted({found.version for found in results if found.version})
    said = []
    if len(versions) > 1:
        said.append(f"cells were made by several versions of bixse ({', '.join(versions)}): use a new --out to be sure")
    if keep_models and len(models) < len(trained):
        said.append(f"{len(trained) - len(models)} cells were finished before models were asked for: theirs are gone")
    return said


def plan_cells(study: Study, config: StudyConfig, values: dict[str, Any], inputs: StudyInputs | None) -> list[Cell]:
    """Every cell of a study with every seed; those without training once.

    Raises:
        InputError: a value the data cannot bear.
        ConfigError: the settings of a cell cannot be used.
    """
    pairs = load_graded_pairs(inputs.pairs) if inputs is not None else None
    found = []
    for cell in study.cells(config, values, pairs):
        seeds: Sequence[int] = config.seeds if has_seeds(cell) else config.seeds[:1]
        found += [replace(cell, seed=seed) for seed in seeds]
    study.contrasts(values)
    for cell in found if inputs is not None else ():
        if has_seeds(cell) and inputs is not None:
            settings = cell_config(cell, config.train, inputs, inputs.pairs)
            check_loss_options(settings.loss, {"scale": settings.scale, **settings.loss_options})
    return list({cell.name: cell for cell in found}.values())


def _open(study: Study, config: StudyConfig, values: dict[str, Any], out: Path) -> RunRecord:
    """The record of a study; where its files lie does not count, what they hold does."""
    data = config.data
    settings = config.model_dump(mode="json", exclude={"data", "size"})
    settings |= data.model_dump(mode="json")
    defaults = train_config({**config.train, "pairs": "pairs.parquet"}).model_dump(mode="json", exclude=set(OWNED))
    settings |= {"values": values, "train": defaults}
    if study.needs_data:
        settings["train"]["precision"] = resolve_precision(config.train.get("precision"))
    paths = ("pairs", "dev", "test", *(() if data.collection == "pydocs" else ("collection",)))
    inputs = input_hashes(config) if study.needs_data else {}
    return open_run(out, f"study {study.name}", settings, inputs, paths)


def _devices(inputs: StudyInputs | None) -> list[str]:
    return visible_devices() if inputs is not None else []
