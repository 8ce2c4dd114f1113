"""`run_study`: every cell of a study, resumable one by one, and what they show together."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import open_run
from bixse.errors import InterruptedRunError
from bixse.studies.card import write_cards
from bixse.studies.cells import cell_config, known_result
from bixse.studies.contrasts import key_of
from bixse.studies.inputs import input_hashes, prepare_inputs
from bixse.studies.outcome import StudyOutcome, outcome_of, write_outcome
from bixse.studies.parallel import run_cells, visible_devices
from bixse.studies.rankers import has_seeds
from bixse.studies.study import chosen_values, find_study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bixse.data.run_record import RunRecord
    from bixse.studies.cells import Cell
    from bixse.studies.config import StudyConfig
    from bixse.studies.inputs import StudyInputs
    from bixse.studies.study import Study

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
        name: a name of `bixse.studies.study.STUDIES`.
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

            from bixse.studies.config import load_study_config

            result = run_study("losses", load_study_config("losses", "smoke", None), Path("runs/losses"))
            print(result.outcome.markdown())
    """
    study = find_study(name)
    values = chosen_values(study, config)
    record = _open(study, config, out)
    record.save("running")
    inputs = prepare_inputs(config, out) if study.needs_data else None
    cells = plan_cells(study, config, values, inputs)
    folder = out / CELLS_FOLDER
    done = {cell.name: found for cell in cells if (found := known_result(cell, folder)) is not None}
    missing = [cell for cell in cells if cell.name not in done]
    started = time.perf_counter()
    advance = progress(f"study {name}", len(cells)) if progress is not None and missing else None
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
    return StudyResult(outcome, {**artifacts, "record": str(out / "run.json")}, len(missing))


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
    if inputs is not None:
        for cell in found:
            if has_seeds(cell):
                cell_config(cell, config.train, inputs, inputs.pairs)
    return list({cell.name: cell for cell in found}.values())


def _open(study: Study, config: StudyConfig, out: Path) -> RunRecord:
    """The record of a study; where its files lie does not count, what they hold does."""
    data = config.data
    settings = config.model_dump(mode="json", exclude={"data", "size"})
    settings |= data.model_dump(mode="json")
    paths = ("pairs", "dev", "test", *(() if data.collection == "pydocs" else ("collection",)))
    inputs = input_hashes(config) if study.needs_data else {}
    return open_run(out, f"study {study.name}", settings, inputs, paths)


def _devices(inputs: StudyInputs | None) -> list[str]:
    return visible_devices() if inputs is not None else []
