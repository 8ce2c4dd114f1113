"""The encoder behind a search index, and whether it is the one the index was made with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.encoders.identity import embeddings_key
from bixse.encoders.instructions import prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.prompts import prompt_for
from bixse.errors import InputError, ModelError, shorten
from bixse.retrieval.index.manifest import EncoderIdentity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def load_encoder(
    model: str | Path | SentenceTransformer, task: str | None = None, max_length: int | None = None
) -> tuple[SentenceTransformer, EncoderIdentity]:
    """Load a model for an index, or take one that is loaded.

    Args:
        model: folder, hub name or "demo"; or a model, whose length limit is left as it is.
        task: task whose instructions stand before the texts.
        max_length: tokens of a text that are read; None keeps the model's own limit.

    Raises:
        ModelError: the model cannot be loaded.
        InputError: the model has no such task.
    """
    if isinstance(model, (str, Path)):
        is_folder = str(model) != "demo" and Path(model).is_dir()
        name = str(Path(model).resolve()) if is_folder else str(model)
        model = build_encoder(model, max_length)
    else:
        name = "a model in memory"
    prompts = prompts_hash(model)
    use_task(model, task)
    identity = EncoderIdentity(
        name=name,
        weights=embeddings_key(model, portable=True),  # an index may move to another machine
        prompts=prompts,
        document_prompt=prompt_for(model, "document"),
        task=task,
        max_length=max_length,
        dimensions=int(model.get_embedding_dimension() or 0),
    )
    return model, identity


def use_query_task(model: SentenceTransformer, task: str, identity: EncoderIdentity) -> None:
    """Encode queries with another task's instruction.

    Raises:
        InputError: the model has no such task, or puts something else before the documents of that task.
    """
    use_task(model, task)
    prompt = prompt_for(model, "document")
    if prompt != identity.document_prompt:
        raise InputError(
            f"--task: got {task!r}, which puts {shorten(prompt)} before documents; expected "
            f"{shorten(identity.document_prompt)}, with which the index was made; fix: make an index for this task "
            "with `bixse index --task`, or name a task with the same document instruction"
        )


def check_encoder(recorded: EncoderIdentity, found: EncoderIdentity, folder: Path) -> None:
    """Refuse an encoder whose embeddings cannot be compared with those of the index.

    Raises:
        ModelError: names what is different.
    """
    differences = {
        "dimensions": ("embeddings of another size", found.dimensions, recorded.dimensions),
        "document_prompt": ("another prompt before documents", found.document_prompt, recorded.document_prompt),
        "weights": ("other weights, modules or tokenizer", found.weights[:12], recorded.weights[:12]),
        "prompts": ("other prompts before queries", found.prompts[:12], recorded.prompts[:12]),
    }
    for field, (what, got, expected) in differences.items():
        if getattr(found, field) != getattr(recorded, field):
            raise ModelError(
                f"{folder}: got model {found.name!r} with {what} ({shorten(got)}); expected that of the index "
                f"({shorten(expected)}, then at {recorded.name!r}): scores between two models mean nothing; fix: name "
                "the model the index was made with (`bixse search` takes --model-at where it has moved), or make the "
                "index again with `bixse index`"
            )
