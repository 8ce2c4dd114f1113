"""`train`: the recipe on objects or paths, with or without a folder; `train_into`: on the settings of `bixse train`."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.pairs_files import paths_or_pairs
from bixse.data.run import Run, open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.loading.build import (
    IN_MEMORY,
    build_encoder,
    model_hashes,
    model_path_settings,
    no_library_bars,
)
from bixse.encoders.loading.precision import use_precision
from bixse.errors import InterruptedRunError
from bixse.files.files import alone_in, storage_errors, work_folder
from bixse.rendering.table import Cell, Table
from bixse.training.checks import check_space
from bixse.training.config import CHECKPOINT_FOLDER, MODEL_FOLDER, TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.distributed import check_agreement, init_distributed, is_main_process, raise_together
from bixse.training.loop.checkpoints import checkpoint_to_resume
from bixse.training.recipe import Inputs, TrainResult, make_parts, make_trainer, run_training
from bixse.training.sources import (
    Sources,
    given_collections,
    load_eval_corpora,
    model_source,
    read_pairs,
    split_hashes,
    splits_of,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.training.loop.trainer import GradedTrainer
    from bixse.training.merge import MergeResult

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained(Table):
    """A trained model in memory, with the log of its training; prints as a few lines.

    Example:
        ::

            trained = train("demo", pairs, dev=dev)
            trained.model.relevance("copy a folder", ["shutil.copytree", "os.remove"])
    """

    model: RelevanceModel
    history: list[dict[str, Any]] = field(repr=False)
    """Log entries, one per step and one per dev evaluation."""
    merge: MergeResult | None = field(repr=False)
    """The merge with the base model's weights; None without a merge."""
    warnings: list[str]
    folder: Path | None
    """Folder of the run; None without `out`."""

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        dev, losses = dev_figures(self.history), [entry["loss"] for entry in self.history if "loss" in entry]
        rows: list[list[Cell]] = [["steps", len(losses)]]
        rows += [["loss, first to last step", f"{losses[0]:.4f} to {losses[-1]:.4f}"]] if losses else []
        rows += [[f"nDCG@10 on dev at step {step}", figure] for step, figure in dev.items()]
        if self.merge is not None:
            rows += [["merge weight", self.merge.weight], ["nDCG@10 on dev, merged", self.merge.dev(self.merge.weight)]]
        return ["trained", "figure"], rows


def train(
    model: str | Path | SentenceTransformer,
    pairs: Any,
    *,
    dev: Any = None,
    guard: Any = None,
    out: str | Path | None = None,
    verbose: bool = True,
    **settings: Any,
) -> Trained:
    """Train an encoder on graded pairs, by default with BiXSE, and merge it with the base model on dev.

    Args:
        model: a name such as "demo", a folder, or a `SentenceTransformer`, which stays as it is.
        pairs: a `Dataset`, a frame, an Arrow table, a list of dictionaries (query, document, relevance), or paths.
        dev: a collection that selects checkpoint and merge weight: a folder, a `Collection`, or three dictionaries
            (queries, corpus, qrels); or a list of several.
        guard: a collection that must not get worse, in the same forms.
        out: folder of the run. The same call continues an interrupted run from it, and reads a finished one. None
            trains in a temporary folder, which is removed: nothing can be resumed.
        verbose: show progress.
        settings: options of `bixse train` under the same names, such as `loss`, `seed` or `num_train_epochs`.

    Raises:
        InputError: model, pairs, collection or settings cannot be used.
        InterruptedRunError: Ctrl-C; `model` of the error is that of the last checkpoint, or None.

    Example:
        >>> pairs = [
        ...     {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0},
        ...     {"query": "delete a file", "document": "os.remove", "relevance": 1.0},
        ... ]
        >>> trained = train("static:demo", pairs, num_train_epochs=1, global_batch_size=2, verbose=False)
        >>> len(trained.model.relevance("copy a folder", ["shutil.copytree", "os.remove"])), trained.merge
        (2, None)
    """
    source, read = model_source(model), paths_or_pairs(pairs)
    collections, named = given_collections(dev, guard, settings)
    config = TrainConfig.of_options(
        settings,
        model=source if isinstance(source, str) else IN_MEMORY,
        pairs=read if isinstance(read, list) else IN_MEMORY,
        **named,
    )
    given = Sources([source], read, splits_of(config, collections))
    with work_folder(out, "train") as run:
        if out is None:
            log.warning("train: checkpoints are in %s until the end, and nothing can be resumed; out= keeps them", run)
        try:
            result = train_into(config, run, verbose, given=given)
        except InterruptedRunError as error:
            checkpoint, _ = checkpoint_to_resume(run / CHECKPOINT_FOLDER)
            stopped = error if out else InterruptedRunError("train: got Ctrl-C; `model` is the model so far")
            remote = config.trust_remote_code
            stopped.model = checkpoint and build_encoder(checkpoint, trust_remote_code=remote)
            raise stopped from None
        for line in result.warnings:
            log.warning("%s", line)
        trained = build_encoder(result.model_path, trust_remote_code=config.trust_remote_code)
    return Trained(trained, result.history, result.merge, result.warnings, None if out is None else run)


def train_into(
    config: TrainConfig, out: Path, progress: bool = True, title: str = "train", given: Sources | None = None
) -> TrainResult:
    """Train an encoder on graded pairs and save it to `out/model` with `out/run.json`.

    A second call with the same configuration and precision continues an interrupted run from its last checkpoint, and
    returns a finished run as it is. With torchrun or `accelerate launch` the processes share every batch; the first
    process writes. `given` replaces the paths of the configuration.

    Raises:
        InputError: pairs, collection, model or configuration cannot be used, or a batch does not fit into a GPU.
        OutputExistsError: `out` holds another run.
        StorageError: the disk is full.
        InterruptedRunError: Ctrl-C stopped the run after a checkpoint.
    """
    init_distributed()
    with use_precision(config.precision):
        config = config.resolved()
        inputs, record = open_training(config, out, given)
        check_agreement({"settings": record.fingerprint, "status of the run": record.status})
        if record.status == "finished" and (out / MODEL_FOLDER).is_dir():
            record.results["model_path"] = out / MODEL_FOLDER
            return record.result(TrainResult, lambda _: [])
        started = time.perf_counter()
        parts = make_parts(config, inputs)
        with no_library_bars():
            trainer = make_trainer(config, out, inputs, parts, title if progress else None)
            check_space(out, trainer)
            with _recorded(record, trainer, started):
                result = run_training(config, out, inputs, parts, trainer, progress)
                record.results = result.to_json()
    if is_main_process():
        shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
    return result


@raise_together()
def open_training(config: TrainConfig, out: Path, given: Sources | None = None) -> tuple[Inputs, Run]:
    """Read what a run works on, and the record of the run with their hashes; nothing is written."""
    (model,), source, splits = given or Sources([config.model], config.pair_files, splits_of(config))
    pairs, where, hashes = read_pairs(source)
    hashes |= split_hashes(splits) | model_hashes(model)
    paths = ("pairs", "dev", "guard", "instructions", *model_path_settings(config.model))
    table = load_instructions(config.instructions) if config.instructions is not None else None
    if table is not None:
        hashes["instructions"] = table.content_hash()
    record = open_run(out, "train", config.identity(), hashes, paths)
    eval_corpora = load_eval_corpora(splits, config.merge.documents if config.merge is not None else None)
    return Inputs(model, pairs, where, table, eval_corpora), record


@contextmanager
def _recorded(record: Run, trainer: GradedTrainer, started: float) -> Iterator[None]:
    """Lock the folder of a run, and record there how the block ends, both in the first process alone."""
    with ExitStack() as stack:
        with raise_together():
            if is_main_process():
                stack.enter_context(alone_in(record.folder))
        stack.enter_context(storage_errors(record.folder))
        if is_main_process():
            record.save("running")
            stack.enter_context(record.ending())
        try:
            yield
        except KeyboardInterrupt as error:  # in every process, since `train` then reads the checkpoint in all together
            raise InterruptedRunError(
                f"{record.folder}: stopped by Ctrl-C or SIGTERM; the last checkpoint, if there is one, is kept; the "
                "same command continues from it"
            ) from error
        finally:
            # with the seconds of earlier processes; `steps` leaves out evaluation and saving
            record.timings["train"] += time.perf_counter() - started
            record.timings["steps"] += trainer.figures.seconds
