"""`open_index`: search a corpus that was encoded once, with probabilities of relevance."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bixse.data.trec import write_run
from bixse.encoders.encode import encode_texts
from bixse.errors import InputError
from bixse.retrieval.hits import Hit, check_queries, check_top, chosen_threshold, hit
from bixse.retrieval.index.approximate import ApproximateSearch
from bixse.retrieval.index.encoder import check_encoder, load_encoder, use_query_task
from bixse.retrieval.index.index_files import open_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    import numpy as np
    import numpy.typing as npt
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead
    from bixse.progress import ProgressBars
    from bixse.retrieval.index.index_files import IndexFiles
    from bixse.retrieval.index.manifest import Manifest

QUERIES_TOGETHER = 256
"""Queries of a run that are encoded and answered together."""


class SearchIndex:
    """An index, opened for searching by `open_index`; it stays as it was then, also where it is replaced meanwhile."""

    def __init__(self, files: IndexFiles, model: SentenceTransformer, exact: bool = False) -> None:
        self.model = model
        """The encoder."""
        self._files = files
        self._approximate = None if exact or files.manifest.ann is None else ApproximateSearch(files)

    @property
    def manifest(self) -> Manifest:
        """Encoder, settings, measured recall and files."""
        return self._files.manifest

    @property
    def head(self) -> RelevanceHead | None:
        """From a cosine to a probability of relevance; None for a model without one."""
        return getattr(self.model, "head", None)

    def __len__(self) -> int:
        """Documents."""
        return self.manifest.documents

    @overload
    def search(
        self, queries: str, top: int = ..., threshold: float | None = ..., at_precision: float | None = ...
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        top: int = ...,
        threshold: float | None = ...,
        at_precision: float | None = ...,
    ) -> list[list[Hit]]: ...
    def search(
        self,
        queries: str | list[str] | tuple[str, ...],
        top: int = 10,
        threshold: float | None = None,
        at_precision: float | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The best documents of a query, or of each of several.

        Args:
            queries: one text, or a list of texts.
            top: documents per query, at least 1; fewer when the index holds fewer.
            threshold: leave out documents less probable to be relevant than this, 0 to 1.
            at_precision: instead, the threshold that calibration found for this share of relevant documents.

        Returns:
            Hits, the highest cosine first; for a list of texts a list of them.

        Raises:
            InputError: an empty query, `top` below 1, a threshold out of range, or one without a relevance head.
        """
        texts = [queries] if isinstance(queries, str) else list(queries)
        check_queries(texts)
        least = chosen_threshold(self.head, self.manifest.encoder.name, threshold, at_precision)
        if not texts:
            check_top(top)
            return []
        scores, rows = self.search_embeddings(encode_texts(self.model, texts, "query"), top)
        documents = iter(self._files.documents(rows.ravel().tolist()))
        found = [[hit(*next(documents), float(score), self.head) for score in line] for line in scores]
        if least is not None:
            found = [[hit for hit in hits if self._reaches(hit.cosine, least)] for hits in found]
        return found[0] if isinstance(queries, str) else found

    def search_embeddings(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Inner products and rows of the best documents of (Q, D) embeddings, both (Q, k), the highest first."""
        check_top(top)
        return (self._approximate.search if self._approximate is not None else self._files.exact)(queries, top)

    def search_run(
        self,
        queries: Mapping[str, str],
        top: int = 10,
        threshold: float | None = None,
        at_precision: float | None = None,
        progress: ProgressBars | None = None,
    ) -> dict[str, dict[str, float]]:
        """The best documents of many queries as a run: query id -> document id -> cosine, see `bixse.data.trec`.

        Texts of documents are not read. `queries` are query id -> text; the other arguments are those of `search`.
        """
        check_queries(list(queries.values()))
        least = chosen_threshold(self.head, self.manifest.encoder.name, threshold, at_precision)
        step = progress("search", len(queries)) if progress is not None else None
        items = iter(queries.items())
        run: dict[str, dict[str, float]] = {}
        while block := dict(islice(items, QUERIES_TOGETHER)):
            scores, rows = self.search_embeddings(encode_texts(self.model, list(block.values()), "query"), top)
            ids = iter(self._files.ids(rows.ravel().tolist()))
            for query_id, line in zip(block, scores.tolist(), strict=True):
                found = dict(zip(islice(ids, len(line)), line, strict=True))
                run[query_id] = {name: cosine for name, cosine in found.items() if self._reaches(cosine, least)}
            if step is not None:
                step(len(block))
        return run

    def _reaches(self, cosine: float, least: float | None) -> bool:
        return least is None or (self.head is not None and self.head.probability(cosine) >= least)

    def check(self) -> None:
        """Read every file and hold it against its hash.

        Raises:
            InputError: names the first damaged file.
        """
        self._files.check()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_index(
    path: str | Path,
    model: str | Path | SentenceTransformer | None = None,
    task: str | None = None,
    exact: bool = False,
) -> SearchIndex:
    """Open an index that `bixse index` made, and load its model.

    Args:
        path: folder of the index.
        model: its model, where that has moved or is loaded; None loads it from where it was.
        task: task whose instruction stands before the queries; None: that of the index.
        exact: score every document, also where there is an approximate index.

    Raises:
        InputError: no index, a damaged one, an unknown task, or FAISS is needed and not installed.
        ModelError: another model than the one the index was made with.

    Example:
        The three best documents of a query::

            with open_index("runs/index") as index:
                for hit in index.search("copy a folder", top=3, threshold=0.5):
                    hit.document_id, hit.probability, hit.title
    """
    files = open_files(Path(path))
    try:
        recorded = files.manifest.encoder
        encoder, identity = load_encoder(recorded.name if model is None else model, recorded.task, recorded.max_length)
        check_encoder(recorded, identity, Path(path))
        if task is not None:
            use_query_task(encoder, task, recorded)
        return SearchIndex(files, encoder, exact)
    except BaseException:
        files.close()
        raise


def write_answers(
    index: SearchIndex,
    queries: Mapping[str, str],
    out: Path,
    limits: Mapping[str, Any],
    progress: ProgressBars | None = None,
) -> dict[str, dict[str, float]]:
    """Answer many queries and write the answers as a TREC run, named after the model.

    Args:
        index: what is searched.
        queries: query id -> text.
        out: the file.
        limits: `top`, `threshold` and `at_precision` of `SearchIndex.search_run`.
        progress: makes a progress callback from a title and a total.

    Returns:
        The run: query id -> document id -> cosine.

    Raises:
        InputError: a query id with white space, or see `SearchIndex.search`.
    """
    spaced = [name for name in queries if name.split() != [name]]
    if spaced:
        raise InputError(
            f"queries: got query id {spaced[0]!r}; expected no white space (it separates the columns of a run); "
            "fix: rename it"
        )
    run = index.search_run(queries, progress=progress, **limits)
    write_run(out, run, tag="-".join(Path(index.manifest.encoder.name).name.split()) or "model")
    return run
