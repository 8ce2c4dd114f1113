"""Documents that an engine encodes before models are evaluated on them."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from bixse.evaluation.evaluate import open_evaluation
from bixse.evaluation.systems import EncoderSystem, check_distinct
from bixse.files.files import alone_in
from bixse.scale.index.index_system import IndexSystem
from bixse.scale.index.make_index import make_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.evaluation.systems import System
    from bixse.evaluation.tasks import Task
    from bixse.progress import ProgressBars
    from bixse.scale.engines.engine_settings import EngineSettings

INDEX_FOLDER = ".index"


@contextmanager
def encoded_in_shards(
    systems: Mapping[Path, System], task: Task, out: Path, where: EngineSettings, progress: ProgressBars | None = None
) -> Iterator[int]:
    """Inside the block each model of `systems` (results folder -> system) searches an index that an engine made.

    Indexes are in `out`, and deleted where the block ends well. Gives the number of parts that other ranks have not
    done yet; until they have there is nothing to evaluate. What is finished is not encoded.

    Raises the errors of `bixse.evaluate` and `make_index`.
    """
    check_distinct(list(systems.values()))
    folder, waiting = out / INDEX_FOLDER, 0
    for results, system in systems.items():
        if not isinstance(system, EncoderSystem) or open_evaluation(system, task, results).status == "finished":
            continue
        index = folder / system.name
        report = make_index(
            system.label, task.settings["collection"], index, task=system.task, max_length=system.max_length,
            progress=progress, devices=system.devices, cache=system.cache_for(task), where=where,
        )  # fmt: skip
        system.encoded, waiting = IndexSystem(index, system.task), waiting + report.waiting
    shared = where.chosen_engine(here=True).shared
    with alone_in(folder, wait=True) if shared and not waiting else nullcontext():
        yield waiting
        if not waiting:
            shutil.rmtree(folder, ignore_errors=True)
