"""The encoder behind a search index, and whether it is the one the index was made with."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bixse.encoders.encode import encode_texts
from bixse.encoders.identity import embeddings_key
from bixse.encoders.instructions import prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.pool import encode_on
from bixse.encoders.prompts import prompt_for
from bixse.errors import InputError, ModelError, shorten
from bixse.retrieval.index_manifest import ModelIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.prompts import Kind
    from bixse.encoders.relevance_model import RelevanceModel


class IndexEncoder(Protocol):
    """What an index needs of a model."""

    @property
    def identity(self) -> ModelIdentity:
        """What it must be again when the index is opened."""

    @property
    def head(self) -> RelevanceHead | None:
        """From a cosine to a probability of relevance; None without one."""

    def encode(
        self, texts: Sequence[str], kind: Kind, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        """(N, D) embeddings of N texts, L2-normalised."""


class ModelEncoder:
    """A model as the encoder of an index.

    Args:
        model: the model; its task is set.
        name: where it can be loaded from again.
        task: task whose instructions stand before the texts; None takes its default prompts.
        max_length: length limit the model was loaded with.

    Raises:
        InputError: the model has no such task.
    """

    def __init__(
        self, model: RelevanceModel, name: str, task: str | None = None, max_length: int | None = None
    ) -> None:
        self.model = model
        self.head = model.head
        prompts = prompts_hash(model)
        use_task(model, task)
        self.identity = ModelIdentity(
            name=name,
            weights=embeddings_key(model, portable=True),  # an index may move to another machine
            prompts=prompts,
            document_prompt=prompt_for(model, "document"),
            task=task,
            max_length=max_length,
            dimensions=int(model.get_embedding_dimension() or 0),
        )

    def encode(
        self, texts: Sequence[str], kind: Kind, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        """(N, D) embeddings of N texts, L2-normalised."""
        return encode_texts(self.model, texts, kind, progress=progress)

    def ask_for(self, task: str | None) -> None:
        """Encode queries with another task's instruction from now on; None leaves them as they are.

        Raises:
            InputError: the model has no such task, or puts something else before the documents of that task.
        """
        if task is None:
            return
        use_task(self.model, task)
        prompt = prompt_for(self.model, "document")
        if prompt != self.identity.document_prompt:
            raise InputError(
                f"--task: got {task!r}, which puts {shorten(prompt)} before documents; expected "
                f"{shorten(self.identity.document_prompt)}, with which the index was made; fix: make an index for "
                "this task with `bixse index --task`, or name a task with the same document instruction"
            )


def load_index_encoder(name: str | Path, task: str | None = None, max_length: int | None = None) -> ModelEncoder:
    """Load a model for an index.

    Args:
        name: folder, hub name or "demo".
        task: task whose instructions stand before the texts.
        max_length: tokens of a text that are read; None keeps the model's own limit.

    Raises:
        ModelError: the model cannot be loaded.
        InputError: the model has no such task.
    """
    is_folder = str(name) != "demo" and Path(name).is_dir()
    found_again = str(Path(name).resolve()) if is_folder else str(name)
    return ModelEncoder(build_encoder(name, max_length), found_again, task, max_length)


def index_encoder(
    folder: Path, identity: ModelIdentity, model: str | Path | IndexEncoder | None = None
) -> IndexEncoder:
    """The encoder of an index, checked to be the one it was made with; raises ModelError."""
    if model is None or isinstance(model, (str, Path)):
        model = load_index_encoder(model or identity.name, identity.task, identity.max_length)
    _check_model(identity, model.identity, folder)
    return model


@contextmanager
def placed(encoder: IndexEncoder, devices: Sequence[str] | None) -> Iterator[None]:
    """Encode on other devices inside the block, see `encode_on`; only a model knows devices.

    Raises:
        InputError: an unknown device.
    """
    with encode_on(encoder.model, devices) if isinstance(encoder, ModelEncoder) else nullcontext():
        yield


def _check_model(recorded: ModelIdentity, found: ModelIdentity, folder: Path) -> None:
    """Refuse an encoder whose embeddings cannot be compared with those of the index.

    Raises:
        ModelError: names what is different.
    """
    mend = (
        "fix: name the model the index was made with (`bixse search` takes --model-at where it has moved), or make "
        "the index again with `bixse index`"
    )
    if found.dimensions != recorded.dimensions:
        raise ModelError(
            f"{folder}: got model {found.name!r} with {found.dimensions} dimensions; expected the "
            f"{recorded.dimensions} of the index, made with {recorded.name!r}; {mend}"
        )
    if found.document_prompt != recorded.document_prompt:
        raise ModelError(
            f"{folder}: got model {found.name!r}, which puts {shorten(found.document_prompt)} before documents; "
            f"expected {shorten(recorded.document_prompt)}, with which the index was made; {mend}"
        )
    if found.weights != recorded.weights:
        raise ModelError(
            f"{folder}: got model {found.name!r} with other weights, modules or tokenizer (hash {found.weights[:12]}); "
            f"expected those the index was made with (hash {recorded.weights[:12]}, then at {recorded.name!r}): scores "
            f"between two models mean nothing; {mend}"
        )
    if found.prompts != recorded.prompts:
        raise ModelError(
            f"{folder}: got model {found.name!r} with other prompts before queries (hash {found.prompts[:12]}); "
            f"expected those it had when the index was made (hash {recorded.prompts[:12]}); {mend}"
        )
