"""Search a corpus that was encoded once, with probabilities of relevance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.instructions import prompt_for, prompts_hash, use_task
from bixse.encoders.lengths import warn_of_counts
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError, ModelError, shorten
from bixse.evaluation.systems import System
from bixse.index.index_files import EncoderIdentity, IndexFiles, Manifest
from bixse.index.vector_store import VectorStore, is_stored, open_stored
from bixse.search.hits import Hit, checked_limits, hits_of, probable
from bixse.search.tasks import best_of, query_blocks

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead
    from bixse.progress import ProgressBars
    from bixse.search.tasks import CountStep, RunBlocks, Task


Texts: TypeAlias = list[str] | tuple[str, ...]
Limit: TypeAlias = float | None
MOST_LEFT_OUT = 1000
"""Additional documents per query, in place of documents that are left out among the best."""
COMPARED = {
    "dimensions": "embeddings of another size",
    "document_prompt": "another prompt before documents",
    "weights": "other weights, modules or tokenizer",
    "prompts": "other prompts before queries",
}
"""Properties that the encoder of a search shares with the encoder of the index -> words for a difference."""


class SearchIndex:
    """An index, opened by `open_index`; it stays as it was then, even if another index replaces its files."""

    def __init__(self, files: IndexFiles | VectorStore, model: SentenceTransformer, exact: bool = False) -> None:
        self.model = model
        self.manifest: Manifest = files.manifest
        self._files, self._exact = files, exact

    @property
    def head(self) -> RelevanceHead | None:
        """Return the relevance head, or None for a model without one."""
        return getattr(self.model, "head", None)

    @property
    def approximate(self) -> str:
        """Return the kind of approximate search; "" if every document is scored."""
        return "" if self._exact else self._files.approximate

    @property
    def warnings(self) -> list[str]:
        """Return a warning of documents that are longer than the encoder reads."""
        return warn_of_long(self.model, self.manifest)

    def __len__(self) -> int:
        return self.manifest.documents

    @overload
    def search(self, queries: str, top: int = ..., threshold: Limit = ..., at_precision: Limit = ...) -> list[Hit]: ...
    @overload
    def search(
        self, queries: Texts, top: int = ..., threshold: Limit = ..., at_precision: Limit = ...
    ) -> list[list[Hit]]: ...
    def search(
        self, queries: str | Texts, top: int = 10, threshold: Limit = None, at_precision: Limit = None
    ) -> list[Hit] | list[list[Hit]]:
        """Return the best documents of a query, or of each of several queries, the highest cosine first.

        Documents with a probability below `threshold` are left out; `at_precision` instead takes the threshold that
        calibration found for this share of relevant documents. An InputError refuses an empty query, `top` below 1, a
        threshold out of range, and any threshold without a relevance head.
        """
        several = isinstance(queries, Iterable) and not isinstance(queries, (str, bytes))
        texts: list[Any] = list(queries) if several else [queries]
        least = checked_limits(self.head, self.manifest.encoder.name, texts, top, threshold, at_precision)
        if not texts:
            return []
        answers = self._files.search(encode_texts(self.model, texts, "query"), top, self._exact)
        hits = [hits_of(line, self.head, least) for line in answers]
        return hits[0] if isinstance(queries, str) else hits

    def search_run(
        self,
        queries: Mapping[str, str],
        top: int = 10,
        threshold: Limit = None,
        at_precision: Limit = None,
        progress: ProgressBars | None = None,
    ) -> dict[str, dict[str, float]]:
        """Answer queries (query id -> text) as a run: query id -> document id -> cosine.

        Texts of documents are not read. The other arguments are those of `search`.
        """
        texts = list(queries.values())
        least = checked_limits(self.head, self.manifest.encoder.name, texts, top, threshold, at_precision)
        step = progress("search", len(queries)) if progress is not None else None
        run: dict[str, dict[str, float]] = {}
        for block in query_blocks(queries):
            embeddings = encode_texts(self.model, list(block.values()), "query")
            answers = self._files.search(embeddings, top, self._exact, texts=False)
            for query_id, line in zip(block, answers, strict=True):
                run[query_id] = {name: cosine for name, cosine, _ in line if probable(cosine, self.head, least)}
            if step is not None:
                step(len(block))
        return run

    def close(self) -> None:
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_index(
    path: str | Path,
    model: str | Path | SentenceTransformer | None = None,
    task: str | None = None,
    exact: bool = False,
) -> SearchIndex:
    """Open an index that `bixse index` made, and load its model.

    Args:
        path: folder of the index, or a vector database that holds it: "lancedb:PATH/TABLE" or "qdrant:URL/COLLECTION".
        model: model of the index, if it has moved or is loaded; None loads it from its recorded place.
        task: task whose instruction precedes the queries; None is the task of the index.
        exact: score every document, in a vector database too.

    Raises:
        InputError: no index, a damaged index, or an unknown task.
        ModelError: another model than the model of the index.

    Example:
        The three best documents of a query::

            with open_index("runs/index") as index:
                for hit in index.search("copy a folder", top=3, threshold=0.5):
                    hit.document_id, hit.probability, hit.title
    """
    files = open_stored(path)
    try:
        recorded = files.manifest.encoder
        encoder, identity = load_encoder(
            recorded.name if model is None else model, recorded.task, recorded.max_length, recorded.dimensions
        )
        for field, difference in COMPARED.items():
            got, expected = getattr(identity, field), getattr(recorded, field)
            if got != expected:
                raise ModelError(
                    f"{path}: got model {identity.name!r} with {difference} ({shorten(got)}); expected the model of "
                    f"the index, recorded as {recorded.name!r} ({shorten(expected)}); fix: name that model (`bixse "
                    "search` takes --model-at if it has moved), or make the index again with `bixse index`"
                )
        if task is not None:
            use_task(encoder, task)
            if (prompt := prompt_for(encoder, "document")) != recorded.document_prompt:
                raise InputError(
                    f"--task: got {task!r}, which puts {shorten(prompt)} before documents; expected "
                    f"{shorten(recorded.document_prompt)}, with which the index was made; fix: make an index for this "
                    "task with `bixse index --task`, or name a task with the same document instruction"
                )
        return SearchIndex(files, encoder, exact)
    except BaseException:
        files.close()
        raise


def load_encoder(
    model: str | Path | SentenceTransformer,
    task: str | None = None,
    max_length: int | None = None,
    dimensions: int | None = None,
) -> tuple[SentenceTransformer, EncoderIdentity]:
    """Load a model for an index, or use a loaded model, whose length limit stays as it is."""
    name = "a model in memory"
    if isinstance(model, (str, Path)):
        is_folder = str(model) != "demo" and Path(model).is_dir()
        name = str(Path(model).resolve()) if is_folder else str(model)
        model = build_encoder(model, max_length, dimensions=dimensions)
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


def warn_of_long(model: SentenceTransformer, manifest: Manifest) -> list[str]:
    """Warn of documents of an index that are longer than its encoder reads."""
    return warn_of_counts(model, {"documents": (manifest.too_long or 0, manifest.documents)})


class IndexSystem(System):
    """An index, or its vector database, which answers on its own corpus alone; arguments as in `open_index`."""

    def __init__(
        self,
        index: str | Path,
        task: str | None = None,
        exact: bool = False,
        model_at: str | SentenceTransformer | None = None,
    ) -> None:
        self.label = str(index)
        self.task, self.exact, self.model_at = task, exact, model_at

    @cached_property
    def opened(self) -> SearchIndex:
        return open_index(self.label, self.model_at, self.task, self.exact)

    @cached_property
    def inputs(self) -> dict[str, str]:
        manifest = self.opened.manifest
        task = self.task or manifest.encoder.task  # tasks of one document prompt may have other query prompts
        return {
            **({"task": task} if task else {}),
            "weights": manifest.encoder.weights,
            "prompts": manifest.encoder.prompts,
            "corpus": manifest.corpus,
            "stored": f"{manifest.precision} {self.opened.approximate}".strip(),
        }

    @property
    def name(self) -> str:
        """Return the last part of folder or address, and digits of a hash of encoder, corpus and kind of search."""
        return f"{'-'.join(Path(self.label).name.split())}-{self.digest}"

    @property
    def precision(self) -> str:
        return resolve_precision()

    @property
    def settings(self) -> dict[str, Any]:
        return {"model": self.label, "instructions": self.task, "exact": self.exact, "precision": self.precision}

    def check(self, instructions: Sequence[str]) -> None:
        """Accept the task of the index, or a task with the same document instruction; no other."""
        prompt_for(self.opened.model, "query")

    def check_answers(self, task: Task, refuse: bool) -> list[str]:
        """Raise InputError, if `refuse`, for a task of another corpus than that of the index, or of a part of it."""
        manifest, corpus = self.opened.manifest, task.inputs.get("corpus.jsonl")
        same = corpus == manifest.corpus
        if "collection" in task.inputs:  # in memory, without the hash of a file: `answers` compares ids
            same = task.count == manifest.documents
        if refuse and (not same or any(part.candidates is not None for part in task.query_sets)):
            raise InputError(
                f"{self.label}: got the task {task.name}, of another corpus or a part of one; expected the collection "
                "that the index was made of; fix: name that collection, or the model itself "
                f"({manifest.encoder.name})"
            )
        return []

    def answers(self, task: Task, depth: int, partial: Path | None = None, progress: CountStep = None) -> RunBlocks:
        self.prompts_hash = prompts_hash(self.opened.model)
        self.notes = [f"{self.label}: {warning}" for warning in self.opened.warnings]
        for query_set in task.query_sets:
            deeper = depth + task.exclude_self + min(len(query_set.left_out), MOST_LEFT_OUT)
            for queries in query_blocks(query_set.queries):
                run = self.opened.search_run(queries, deeper)
                if "collection" in task.inputs:
                    task.check_known(self.label, run)
                yield query_set.name, best_of(run, depth, query_set.left_out, task.exclude_self)
        if progress is not None:
            progress(task.count)

    def release(self) -> None:
        """Close the index; the next use opens it again."""
        if "opened" in vars(self):
            self.opened.close()
            del self.opened


def open_index_system(
    name: str | Path, task: str | None = None, exact: bool = False, model_at: str | None = None
) -> IndexSystem | None:
    """Return the index or vector database of a name, or None."""
    return IndexSystem(name, task, exact, model_at) if is_stored(name) else None
