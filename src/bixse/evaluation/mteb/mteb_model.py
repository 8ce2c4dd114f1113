"""Encoders and BM25 as mteb takes them: under a name and a hash of their own, with the model's own prompts."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.task_instructions import RESERVED
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.precision import autocast
from bixse.encoders.prompts import prompt_for
from bixse.errors import InputError
from bixse.evaluation.mteb.mteb_tasks import parts_of_task
from bixse.evaluation.suites.known_suites import INSTRUCTIONS
from bixse.evaluation.systems import Bm25System, EncoderSystem, instructions_of
from bixse.retrieval.bm25 import BM25

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bixse.encoders.prompts import Kind
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.systems import System

KINDS: tuple[Kind, ...] = ("query", "document")
"""What texts of a retrieval task are."""


class MtebEncoder:
    """An encoder that mteb can run (its `EncoderProtocol`).

    Texts of retrieval are embedded as everywhere else in bixse, normalised; those of other tasks by
    sentence-transformers' `encode`, not normalised, as mteb's own wrapper does.

    Args:
        encoder: the model.
        label: path or name of the model.
        prompts: mteb's names of prompts -> prompt, see `mteb_prompts`.
        revision: hash of all that embeddings depend on, see `EncoderSystem.weights`.
    """

    def __init__(self, encoder: RelevanceModel, label: str, prompts: Mapping[str, str], revision: str) -> None:
        self.encoder = encoder
        self.prompts = dict(prompts)
        self.mteb_model_meta = model_meta(encoder, label, revision)
        self.used: dict[str, str | None] = {}
        """Task and kind of text -> the prompt that was put before it; None: the model's default, if it has one."""

    def encode(
        self, inputs: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, prompt_type: Any = None, **kwargs: Any
    ) -> Any:
        """Embed the texts of a loader; arguments are mteb's.

        Returns:
            (N, D) array.
        """
        from mteb.models.abs_encoder import get_prompt_name

        texts = [text for batch in inputs for text in batch["text"]]
        name = get_prompt_name(self.prompts, task_metadata, prompt_type)
        prompt = self.prompts[name] if name is not None else None
        self.used[f"{task_metadata.name} {prompt_type.value if prompt_type else 'text'}"] = prompt
        if prompt_type is None:
            with autocast(self.encoder.device):
                return self.encoder.encode(
                    texts, prompt=prompt, batch_size=kwargs.get("batch_size", 32), show_progress_bar=False
                )
        kind: Kind = "query" if prompt_type.value == "query" else "document"
        with _prompt(self.encoder, kind, prompt or ""):
            return encode_texts(self.encoder, texts, kind)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of every pair, (N, M)."""
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of each row with the same row of the other, (N,)."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


class MtebBm25:
    """BM25 that mteb can run on tasks of retrieval (its `SearchProtocol`)."""

    def __init__(self) -> None:
        from mteb.models import ModelMeta

        self.mteb_model_meta = ModelMeta.create_empty(overwrites={"name": "bixse/bm25", "revision": "k1-0.9-b-0.4"})
        self.index_of_corpus: BM25 | None = None

    def index(self, corpus: Any, **_: Any) -> None:
        """Index a corpus of mteb."""
        texts = [f"{row.get('title') or ''} {row['text']}".strip() for row in corpus]
        self.index_of_corpus = BM25(list(corpus["id"]), texts)

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any) -> dict[str, dict[str, float]]:
        """The best documents of each query, or its candidates in order; arguments are mteb's."""
        index = self.index_of_corpus
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        if index is None:
            return {}
        if top_ranked is None:
            return index.search(texts, top_k)
        found = index.search(texts, len(index.document_ids))
        return {query: {name: found[query].get(name, 0.0) for name in top_ranked.get(query, ())} for query in texts}


def mteb_model(system: System, tasks: Sequence[Any]) -> MtebEncoder | MtebBm25:
    """A system as mteb takes it.

    Raises:
        InputError: neither an encoder nor BM25; or a table of instructions without one for a task.
    """
    if isinstance(system, Bm25System):
        return MtebBm25()
    if not isinstance(system, EncoderSystem):
        raise InputError(
            f"{system.label}: got a system of its own; expected an encoder or bm25, which mteb can run; fix: leave it "
            "out, or evaluate it on a collection"
        )
    encoder: Any = system.encoder
    return MtebEncoder(encoder, system.label, mteb_prompts(encoder, tasks, system.task), system.weights)


def check_mteb_system(system: System, tasks: Sequence[Any]) -> None:
    """Raise InputError where a system cannot run mteb's tasks: no encoder for some, no instructions for others."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    others = [
        task.metadata.name
        for task in tasks
        if not all(isinstance(part, AbsTaskRetrieval) for part in parts_of_task(task))
    ]
    if isinstance(system, EncoderSystem):
        mteb_prompts(system.encoder, tasks, system.task)  # type: ignore[arg-type]
    elif others:
        raise InputError(
            f"{system.label}: got {len(others)} tasks that are not retrieval, such as {others[0]}; expected an encoder "
            "for them; fix: leave it out, or name tasks of retrieval with --tasks"
        )


def model_meta(encoder: RelevanceModel, label: str, revision: str) -> Any:
    """What mteb files results under: a name that says where the model lies and a hash of all its embeddings depend on.

    mteb calls every model from a folder no_model_name_available at no revision: a second checkpoint would be given the
    first one's scores.
    """
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    parts = [part for part in Path(label).parts if part not in ("/", ".", "..")][-2:]
    return ModelMeta.create_empty(
        overwrites={
            "name": "/".join(parts if len(parts) == 2 else ["bixse", *parts]),
            "revision": revision,
            "framework": ["Sentence Transformers", "PyTorch"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "embed_dim": encoder.get_embedding_dimension(),
            "max_tokens": encoder.max_seq_length,
            "n_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
            "use_instructions": encoder.instructions is not None,
        }
    )


def mteb_prompts(encoder: RelevanceModel, tasks: Sequence[Any], task: str | None = None) -> dict[str, str]:
    """The model's prompts under the names by which mteb chooses them, those of each task named by the task.

    mteb takes "<task>-query" and "<task>-document" first, then "<task>", which it puts before documents too. So both
    are given for each task of retrieval: what the model's table of instructions, or the model, has for it. A prompt
    that the model keeps under mteb's own name of the task is left alone. For other tasks a model with a table takes
    mteb's instruction in the table's template.

    Args:
        encoder: the model.
        tasks: mteb's tasks that are run.
        task: task of the model's table whose instructions stand before all texts; None chooses by mteb's task.

    Raises:
        InputError: the table has no instruction for a task, and no default.
    """
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    table = encoder.instructions
    known = {*RESERVED, *(table.tasks if table is not None else ())}
    prompts = {name: prompt or "" for name, prompt in (encoder.prompts or {}).items() if name not in known}
    for each in tasks:
        name = each.metadata.name
        if name in prompts:
            continue
        if isinstance(each, AbsTaskRetrieval):
            names = (task,) if task is not None else (name, INSTRUCTIONS.get(name, name))
            with instructions_of(encoder, names, must=task is not None):
                own = {f"{name}-{kind}": prompt_for(encoder, kind) or "" for kind in KINDS}
            prompts = {**own, **prompts}
        elif table is not None:
            said = each.metadata.prompt if isinstance(each.metadata.prompt, str) else each.abstask_prompt
            prompts[name] = table.template.replace("{instruction}", said)
    return prompts


@contextmanager
def _prompt(encoder: RelevanceModel, kind: Kind, prompt: str) -> Iterator[None]:
    """Put one prompt before the texts of a kind; afterwards as before."""
    prompts, task = encoder.prompts, encoder.task
    encoder.prompts = {**(prompts or {}), kind: prompt}
    encoder.task = task or "chosen by mteb"
    try:
        yield
    finally:
        encoder.prompts, encoder.task = prompts, task
