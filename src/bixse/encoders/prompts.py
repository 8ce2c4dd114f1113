"""Which prompt stands before a text: the choice of sentence-transformers' `encode_query` and `encode_document`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import Kind as Kind
    from bixse.data.task_instructions import Instructions

PROMPT_NAMES: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names under which a model may keep the prompt of a kind, the first one present wins."""


def prompt_for(model: SentenceTransformer, kind: Kind) -> str | None:
    """The prompt that sentence-transformers 6 puts before a query or a document, None for none.

    A name that is present but empty means no prompt; without any of the names the model's default prompt holds.
    sentence-transformers gives every model it loads an empty "query" and "document" where it has none of its own.

    Raises:
        InputError: the model has instructions for several tasks, none of them the default, and no task was chosen.
    """
    table: Instructions | None = getattr(model, "instructions", None)
    if table is not None and getattr(model, "task", None) is None:
        table.of(None)
    prompts = model.prompts or {}
    for name in PROMPT_NAMES[kind]:
        if name in prompts:
            return prompts[name] or None
    return prompts.get(model.default_prompt_name or "") or None
