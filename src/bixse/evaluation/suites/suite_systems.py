"""What a suite compares: encoders and BM25, each with a name that says which checkpoint it is."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.retrieval.bm25 import BM25, BM25_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.suites.prepared import JudgedQueries, PreparedTask

HASH_DIGITS = 8
"""Digits of a checkpoint's hash in the name of its folder."""


class System(ABC):
    """Something that answers queries.

    Args:
        label: the model as it was asked for; shown in tables.
        inputs: file of the model -> hash of its content.
        encodes: it is an encoder, which takes instructions and can run tasks other than retrieval.
        precision: what it computes in; None for one that computes with no model.
    """

    def __init__(self, label: str, inputs: Mapping[str, str], encodes: bool, precision: str | None = None) -> None:
        self.label = label
        self.precision = precision
        self.inputs = dict(inputs)
        self.encodes = encodes

    @property
    @abstractmethod
    def name(self) -> str:
        """A word for folders, another one for each checkpoint."""

    @property
    def settings(self) -> dict[str, str]:
        """What the record of a run says of the system."""
        return {"model": self.label, **({} if self.precision is None else {"precision": self.precision})}

    @property
    def path_settings(self) -> tuple[str, ...]:
        """Settings of a run that `inputs` stands for, see `bixse.data.run_record.open_run`."""
        return model_path_settings(self.label)

    def release(self) -> None:  # noqa: B027 - nothing to do for a system that keeps nothing
        """Free the memory that can be filled again."""

    @abstractmethod
    def search(
        self,
        task: PreparedTask,
        instruction_names: Sequence[str],
        depth: int,
        partial: Path | None,
        progress: Callable[[int], None] | None,
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Set name -> run; arguments as for `bixse.evaluation.suites.block_search.search_blocks`."""


class EncoderSystem(System):
    """A checkpoint, loaded when it is first needed.

    Args:
        model: model folder, hub name or "demo".
        max_length: tokens of a text that are read; None keeps the model's own.
        task: task whose instructions stand before all texts; None chooses by the suite's task.
        trust_remote_code: run code that comes with the model.
        devices: where texts are encoded, see `bixse.encoders.pool.encode_on`.

    Raises:
        ModelError: the model cannot be used.
    """

    def __init__(
        self,
        model: str,
        max_length: int | None = None,
        task: str | None = None,
        trust_remote_code: bool = False,
        devices: Sequence[str] | None = None,
    ) -> None:
        self.max_length = max_length
        self.task = task
        self.trust_remote_code = trust_remote_code
        self.devices = devices
        self._placed = ExitStack()
        self._encoder: RelevanceModel | None = None
        self._model = model
        inputs = model_hashes(_demo_folder() if model == "demo" else model)
        if not inputs:  # a hub name, or nothing at all: only what is loaded can tell
            inputs = {"weights": self.weights}
        precision = resolve_precision(device=devices[0] if devices else None)
        super().__init__(model, inputs, encodes=True, precision=precision)

    @property
    def encoder(self) -> RelevanceModel:
        """The loaded model."""
        if self._encoder is None:
            from bixse.encoders.loading.build import build_encoder
            from bixse.encoders.pool import encode_on

            self._encoder = build_encoder(self._model, self.max_length, trust_remote_code=self.trust_remote_code)
            self._placed.enter_context(encode_on(self._encoder, self.devices))
        return self._encoder

    @cached_property
    def weights(self) -> str:
        """Hash of the loaded model, see `weights_hash`."""
        return weights_hash(self.encoder)

    @property
    def name(self) -> str:
        """The last part of path or hub name, and the beginning of the checkpoint's hash."""
        digest = hashlib.sha256(repr(sorted(self.inputs.items())).encode()).hexdigest()
        words = "-".join((Path(self.label).name or "model").split())
        return f"{words}-{digest[:HASH_DIGITS]}"

    def search(
        self,
        task: PreparedTask,
        instruction_names: Sequence[str],
        depth: int,
        partial: Path | None,
        progress: Callable[[int], None] | None,
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Encode the corpus block by block with the task's instructions."""
        from bixse.evaluation.suites.block_search import search_blocks

        with instructions_of(self.encoder, (self.task,) if self.task else instruction_names, bool(self.task)):
            return search_blocks(self.encoder, task, depth, partial, progress)

    def release(self) -> None:
        """Free the model's memory and its processes; it is loaded again when it is needed."""
        self._placed.close()
        self._encoder = None

    def check_instructions(self, instruction_names: Sequence[str]) -> None:
        """Load the model and see that it has a prompt for a task; raises InputError where it has none."""
        from bixse.encoders.prompts import prompt_for

        with instructions_of(self.encoder, (self.task,) if self.task else instruction_names, bool(self.task)):
            prompt_for(self.encoder, "query")


class Bm25System(System):
    """The word-matching baseline."""

    def __init__(self) -> None:
        super().__init__(BM25_NAME, {}, encodes=False)

    @property
    def name(self) -> str:
        """Always bm25."""
        return BM25_NAME

    def search(
        self,
        task: PreparedTask,
        instruction_names: Sequence[str],
        depth: int,
        partial: Path | None,
        progress: Callable[[int], None] | None,
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Index the documents of each set in memory; sets that search the same documents share an index."""
        corpus = dict(task.documents())
        indexes: dict[frozenset[str], BM25] = {}
        for judged in task.sets:
            if judged.left_out not in indexes:
                kept = [name for name in corpus if name not in judged.left_out]
                indexes[judged.left_out] = BM25(kept, [corpus[name] for name in kept])
        if progress is not None:
            progress(task.count)
        return {
            judged.name: _bm25_run(indexes[judged.left_out], judged, depth, task.exclude_self) for judged in task.sets
        }


def make_system(
    model: str,
    max_length: int | None = None,
    task: str | None = None,
    trust_remote_code: bool = False,
    devices: Sequence[str] | None = None,
) -> System:
    """A system by the name that a user gives; BM25 takes neither a length, instructions nor devices.

    Raises:
        ModelError: no such model.
    """
    if model != BM25_NAME:
        return EncoderSystem(model, max_length, task, trust_remote_code, devices)
    return Bm25System()


@contextmanager
def instructions_of(encoder: RelevanceModel, names: Sequence[str], must: bool = False) -> Iterator[str | None]:
    """Encode with the instructions of the first name that the model's table holds; afterwards as before.

    Args:
        encoder: the model.
        names: names of one task, the first known one counts; case does not matter unless `must`.
        must: refuse where the table lacks the (first) name, instead of taking the model's default.

    Yields:
        The name in the table, or None for the default.
    """
    from bixse.encoders.instructions import use_task

    prompts, task, chosen = encoder.prompts, encoder.task, None
    if must:
        chosen = names[0]
    elif encoder.instructions is not None:
        known = {name.casefold(): name for name in encoder.instructions.tasks}
        chosen = next((known[name.casefold()] for name in names if name.casefold() in known), None)
    try:
        use_task(encoder, chosen)
        yield chosen
    finally:
        encoder.prompts, encoder.task = prompts, task


def weights_hash(encoder: RelevanceModel) -> str:
    """Hash of everything that a model's embeddings depend on except the texts: weights, tokenizer, prompts, lengths."""
    from bixse.encoders.identity import embeddings_key
    from bixse.encoders.instructions import prompts_hash

    return hashlib.sha256(f"{embeddings_key(encoder)} {prompts_hash(encoder)}".encode()).hexdigest()[:32]


def precision_of(systems: Sequence[System]) -> str | None:
    """What the encoders among some systems compute in; None where there is none."""
    return next((system.precision for system in systems if system.precision is not None), None)


def check_distinct(systems: Sequence[System]) -> None:
    """Refuse one checkpoint twice.

    Raises:
        InputError: names both.
    """
    seen: dict[str, str] = {}
    for system in systems:
        if system.name in seen:
            raise InputError(
                f"models: got {seen[system.name]!r} and {system.label!r}, which are the same checkpoint; expected each "
                "once; fix: leave one out"
            )
        seen[system.name] = system.label


def _bm25_run(index: BM25, judged: JudgedQueries, depth: int, exclude_self: bool) -> dict[str, dict[str, float]]:
    if judged.candidates is None:
        return index.search(judged.queries, depth, exclude_self)
    found = index.search(judged.queries, len(index.document_ids))
    return {
        query_id: {name: found[query_id].get(name, 0.0) for name in judged.candidates.get(query_id, ())}
        for query_id in judged.queries
    }


def _demo_folder() -> Path:
    from bixse.encoders.loading.demo import demo_model_path

    return demo_model_path()
