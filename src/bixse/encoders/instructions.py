"""The prompts of a model, and the table of task instructions behind them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.task_instructions import Instructions, parse_instructions
from bixse.errors import BixseError, InputError, ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.relevance import Kind

PROMPT_NAMES: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Kind of text -> names of its prompt in a model; the first name present wins."""
INSTRUCTIONS_FILE = "instructions.json"


def prompt_for(model: SentenceTransformer, kind: Kind) -> str | None:
    """Return the prompt that sentence-transformers 6 puts before a query or a document, None for none."""
    table: Instructions | None = getattr(model, "instructions", None)
    if table is not None and getattr(model, "task", None) is None:
        table.of(None)  # raises InputError if a task must be chosen
    prompts = model.prompts or {}
    # an empty prompt means none: sentence-transformers adds an empty "query" and "document" to a model that has none
    for name in PROMPT_NAMES[kind]:
        if name in prompts:
            return prompts[name] or None
    return prompts.get(model.default_prompt_name or "") or None


def use_task(model: SentenceTransformer, task: str | None) -> None:
    """Encode with the instructions of one task from now on; None leaves the prompts unchanged."""
    if task is None:
        return
    table: Instructions | None = getattr(model, "instructions", None)
    if table is None:
        raise InputError(
            f"task: got {task!r} for a model without task instructions; expected a model trained with `instructions`; "
            "fix: leave the task out"
        )
    model.prompts = {**model.prompts, "query": table.prompt(task, "query"), "document": table.prompt(task, "document")}
    model.task = task  # type: ignore[assignment]


def prompts_hash(model: SentenceTransformer) -> str:
    """Return the SHA-256 of the model's prompts and table of instructions."""
    table: Instructions | None = getattr(model, "instructions", None)
    prompts = {"prompts": model.prompts, "default": model.default_prompt_name}
    return hashlib.sha256(json.dumps([prompts, table and table.content_hash()], sort_keys=True).encode()).hexdigest()


def read_instructions(folder: Path) -> Instructions | None:
    """Return the table of a model folder, or None if it has none; raises ModelError for a damaged file."""
    path = folder / INSTRUCTIONS_FILE
    if not path.is_file():
        return None
    try:
        return parse_instructions(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, TypeError, BixseError) as error:
        raise ModelError(
            f"{path}: got no readable table of instructions ({' '.join(str(error).split())}); expected the JSON that "
            "bixse wrote; fix: copy it from the model's origin again"
        ) from error
