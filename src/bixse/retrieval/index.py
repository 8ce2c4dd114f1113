"""`open_index`: search a corpus that was encoded once, with probabilities of relevance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from bixse.data.io.files import is_unicode
from bixse.errors import InputError, shorten
from bixse.retrieval.approximate import GraphSearch
from bixse.retrieval.index_contents import Contents
from bixse.retrieval.index_encoder import ModelEncoder, index_encoder
from bixse.retrieval.index_files import read_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt

    from bixse.retrieval.index_encoder import IndexEncoder
    from bixse.retrieval.index_manifest import Manifest


@dataclass(frozen=True)
class Hit:
    """A document that was found."""

    document_id: str
    cosine: float
    """Cosine with the query."""
    probability: float | None
    """Probability that it is relevant, 0 to 1; None for a model without a relevance head."""
    title: str
    text: str


class SearchIndex:
    """An index, opened for searching: the state it had then, whatever is added or deleted meanwhile.

    Args:
        folder: the index.
        encoder: the encoder it was made with.
        exact: score every document, also where there is a graph.

    Raises:
        InputError: no index, a damaged one, or FAISS is needed and not installed.
    """

    def __init__(self, folder: Path, encoder: IndexEncoder, exact: bool = False) -> None:
        self.encoder = encoder
        self._contents = Contents(folder)
        self._graph = None if exact or self.manifest.kind == "exact" else GraphSearch(self._contents)

    @property
    def manifest(self) -> Manifest:
        """Model, kind, measured recall and files."""
        return self._contents.manifest

    def __len__(self) -> int:
        """Documents that can be found."""
        return len(self._contents)

    @overload
    def search(self, queries: str, top: int = ..., threshold: float | None = ...) -> list[Hit]: ...
    @overload
    def search(
        self, queries: list[str] | tuple[str, ...], top: int = ..., threshold: float | None = ...
    ) -> list[list[Hit]]: ...
    def search(
        self, queries: str | list[str] | tuple[str, ...], top: int = 10, threshold: float | None = None
    ) -> list[Hit] | list[list[Hit]]:
        """The best documents of a query, or of each of several.

        Args:
            queries: one text, or a list of texts.
            top: documents per query, at least 1; fewer when the index holds fewer.
            threshold: leave out documents less probable to be relevant than this, 0 to 1.

        Returns:
            Hits, the highest cosine first; for a list of texts a list of them.

        Raises:
            InputError: an empty query, `top` below 1, a threshold out of range, or one without a relevance head.
        """
        texts = [queries] if isinstance(queries, str) else list(queries)
        self._check(texts, top, threshold)
        if not texts:
            return []
        scores, rows = self.search_embeddings(self.encoder.encode(texts, "query"), top)
        documents = self._contents.documents(rows.ravel().tolist())
        found = [
            [self._hit(float(score), *documents[place * rows.shape[1] + rank]) for rank, score in enumerate(line)]
            for place, line in enumerate(scores)
        ]
        if threshold is not None:
            found = [[hit for hit in hits if (hit.probability or 0.0) >= threshold] for hits in found]
        return found[0] if isinstance(queries, str) else found

    def search_embeddings(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Inner products and rows of the best documents of (Q, D) embeddings, both (Q, k), the highest first."""
        if len(self) == 0:
            return np.empty((len(queries), 0), dtype=np.float32), np.empty((len(queries), 0), dtype=np.int64)
        return self._graph.search(queries, top) if self._graph is not None else self._contents.exact(queries, top)

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The document ids of rows."""
        return [document.document_id for document in self._contents.documents(rows)]

    def check(self) -> None:
        """Read every file and hold it against its checksum.

        Raises:
            InputError: names the first damaged file.
        """
        self._contents.check()

    def close(self) -> None:
        """Close the files."""
        self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hit(self, cosine: float, document_id: str, title: str, text: str) -> Hit:
        head = self.encoder.head
        return Hit(document_id, cosine, head.probability(cosine) if head is not None else None, title, text)

    def _check(self, texts: Sequence[str], top: int, threshold: float | None) -> None:
        for text in texts:
            if not text.strip() or not is_unicode(text):
                fault = "an empty query" if not text.strip() else f"{shorten(text)}, which is not UTF-8"
                raise InputError(f"search: got {fault}; expected a text; fix: leave it out, or write some words")
        if top < 1:
            raise InputError(f"top: got {top}; expected at least 1; fix: leave it out for 10")
        if threshold is None:
            return
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold: got {threshold}; expected 0 to 1; fix: 0.5 is a start")
        if self.encoder.head is None:
            raise InputError(
                f"threshold: got model {self.encoder.identity.name!r} without a relevance head; expected one that "
                "gives probabilities; fix: run `bixse calibrate` on it, or leave the threshold out"
            )


def open_index(
    path: str | Path,
    model: str | Path | IndexEncoder | None = None,
    task: str | None = None,
    exact: bool = False,
) -> SearchIndex:
    """Open an index that `bixse index` made, and load its model.

    Args:
        path: folder of the index.
        model: its model, where that has moved, or an encoder; None loads it from where it was.
        task: task whose instruction stands before the queries; None: that of the index.
        exact: score every document, also where there is a graph.

    Raises:
        InputError: no index, a damaged one, an unknown task, or FAISS is needed and not installed.
        ModelError: another model than the one the index was made with.

    Example:
        The three best documents of a query::

            with open_index("runs/index") as index:
                for hit in index.search("copy a folder", top=3, threshold=0.5):
                    hit.document_id, hit.probability, hit.title
    """
    folder = Path(path)
    encoder = index_encoder(folder, read_manifest(folder).model, model)
    if task is not None and isinstance(encoder, ModelEncoder):
        encoder.ask_for(task)
    return SearchIndex(folder, encoder, exact)
