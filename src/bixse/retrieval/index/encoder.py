"""The encoder behind a search index, and what identifies it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.encoders.identity import embeddings_key
from bixse.encoders.instructions import prompt_for, prompts_hash, use_task
from bixse.encoders.loading.build import build_encoder
from bixse.retrieval.index.manifest import EncoderIdentity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def load_encoder(
    model: str | Path | SentenceTransformer, task: str | None = None, max_length: int | None = None
) -> tuple[SentenceTransformer, EncoderIdentity]:
    """Load a model for an index, or take one that is loaded, whose length limit is left as it is.

    Raises:
        ModelError: the model cannot be loaded.
        InputError: the model has no such task.
    """
    name = "a model in memory"
    if isinstance(model, (str, Path)):
        is_folder = str(model) != "demo" and Path(model).is_dir()
        name = str(Path(model).resolve()) if is_folder else str(model)
        model = build_encoder(model, max_length)
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
