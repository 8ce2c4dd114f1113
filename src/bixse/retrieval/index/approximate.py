"""Approximate nearest documents by FAISS, with the recall measured, never assumed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bixse.data.io.files import storage_errors
from bixse.errors import InputError, did_you_mean
from bixse.retrieval.hits import read_queries
from bixse.retrieval.index.manifest import AnnSettings, Recall, StoredFile, damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    import numpy.typing as npt

    from bixse.retrieval.index.index_files import IndexFiles
    from bixse.retrieval.stores.vector_store import VectorStore

    T = TypeVar("T")
Nearest: TypeAlias = "Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.int64]]"
NAMED_TYPES = ("exact", "hnsw", "ivf")
"""Index types with settings of their own; any other one is a string of `faiss.index_factory`."""
TRAINED_ON = 39
"""Documents of a list below which FAISS warns that its centre is drawn from too few."""
TRAINED_ON_AT_MOST = 256
"""Documents of a list that FAISS makes use of."""
ADDED_TOGETHER = 8_192
"""Documents that are read into memory together."""
RECALL_QUERIES = 200
"""Queries that recall is measured on, at most; drawn with a fixed seed."""
WORDS_OF_TEXT = 12
"""Words of a document without a title that stand for one."""
SAME_SCORE = 1e-6
"""Scores that rounding alone tells apart."""


def ann_settings(index_type: str, parameters: str | None, documents: int) -> AnnSettings | None:
    """The settings of an index type, checked before anything is encoded; None for "exact".

    Args:
        index_type: "exact"; "hnsw", a graph of neighbours (Malkov and Yashunin 2016, arXiv:1603.09320); "ivf", lists
            of which the nearest are searched; or a string of `faiss.index_factory` such as "IVF1024,PQ48".
        parameters: for `faiss.ParameterSpace`, such as "efSearch=256"; hnsw and ivf have defaults.
        documents: how many there are.
    """
    if index_type == "exact":
        if parameters:
            raise InputError(
                f"--parameters: got {parameters!r} for an exact index, which has none; expected an approximate index; "
                "fix: add --index-type hnsw, or leave --parameters out"
            )
        return None
    if importlib.util.find_spec("faiss") is None:
        raise InputError(
            f"index type: got {index_type!r}, which needs FAISS, which is not installed; expected the package "
            "faiss-cpu; fix: pip install 'bixse[faiss]', or search exactly (`--index-type exact`, or `--exact` where "
            "an index is searched)"
        )
    lists = max(1, min(round(4 * math.sqrt(documents)), documents // TRAINED_ON))
    factory, defaults = {
        "hnsw": ("HNSW32", "efConstruction=200,efSearch=128"),
        "ivf": (f"IVF{lists},Flat", f"nprobe={math.ceil(lists / 4)}"),
    }.get(index_type, (index_type, ""))
    pairs = [pair.strip().partition("=") for pair in f"{defaults},{parameters or ''}".split(",")]
    chosen = {name: value for name, _, value in pairs if name}
    settings = AnnSettings(factory=factory, parameters=",".join(f"{name}={value}" for name, value in chosen.items()))
    _empty_index(settings, 64)
    return settings


def build_faiss(
    folder: Path, files: IndexFiles, settings: AnnSettings, progress: Callable[[int], None] | None = None
) -> StoredFile:
    """Put every document into a FAISS index, written into `folder`; all embeddings must fit in memory as float32."""
    faiss = _faiss()
    documents = files.manifest.documents
    index = _empty_index(settings, files.manifest.encoder.dimensions)
    try:
        if not index.is_trained:
            ivf = faiss.try_extract_index_ivf(index)
            lists = 256 if ivf is None else ivf.nlist
            if ivf is not None:
                ivf.cp.min_points_per_centroid = 1  # without this FAISS writes to standard error
            rows = np.random.default_rng(0).permutation(documents)[: TRAINED_ON_AT_MOST * lists]
            index.train(files.embeddings(np.sort(rows)))
        for start in range(0, documents, ADDED_TOGETHER):
            rows = np.arange(start, min(start + ADDED_TOGETHER, documents))
            index.add(files.embeddings(rows))
            if progress is not None:
                progress(len(rows))
    except RuntimeError as error:
        raise _refused(settings, error) from error
    path = folder / "faiss.faiss"
    with storage_errors(path):
        faiss.write_index(index, str(path))
    return StoredFile.of(path)


class Rescored:
    """Search through any approximate index; the documents it finds are scored exactly.

    Args:
        files: holds the embeddings.
        nearest: (Q, D) queries and a number k -> rows (Q, k) of documents in any order, -1 where fewer were found.
    """

    def __init__(self, files: IndexFiles | VectorStore, nearest: Nearest) -> None:
        self.files, self.nearest = files, nearest

    def search(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and rows, each (Q, k), of most of the best documents of (Q, D) queries; never fewer than there are.

        Ordered as by `exact_search`: the highest score first, of equal ones the lower row.
        """
        top = min(top, self.files.manifest.documents)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = score_rows(queries, self.nearest(queries, top), self.files)
        unfilled = np.flatnonzero((rows < 0).any(axis=1))
        if len(unfilled):
            scores[unfilled], rows[unfilled] = self.files.exact(queries[unfilled], top)
        return scores, rows


def score_rows(
    queries: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], files: IndexFiles | VectorStore
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Inner products of (Q, D) queries with the documents of (Q, k) rows, and the rows, both ordered as by `search`."""
    embeddings = files.embeddings(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
    scores = np.einsum("qd,qkd->qk", queries, embeddings)
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


class ApproximateSearch(Rescored):
    """Search through the FAISS index of an index on disk."""

    def __init__(self, files: IndexFiles) -> None:
        manifest = files.manifest
        if manifest.ann is None or manifest.faiss is None:
            raise damaged(files.folder, "no FAISS index", "one")
        ann_settings(manifest.ann.factory, manifest.ann.parameters, manifest.documents)
        path = files.folder / manifest.faiss.name
        manifest.faiss.check(files.folder)
        faiss = _faiss()
        try:
            self.index = faiss.read_index(str(path))
            faiss.ParameterSpace().set_index_parameters(self.index, manifest.ann.parameters)
        except RuntimeError as error:
            raise damaged(path, str(error).splitlines()[0], "what FAISS wrote") from error
        super().__init__(files, lambda queries, top: self.index.search(queries, top)[1])


def measure_recall(search: Rescored, queries: npt.NDArray[np.float32], source: str) -> Recall:
    """How many of the best 10 and 100 documents of (Q, D) queries are found.

    A document counts as found when it scores as high as the last of the exact best ones: which of several copies of a
    text is found does not matter (so does ann-benchmarks, Aumüller et al. 2017, arXiv:1807.05614).
    """
    shares = []
    for depth in (10, 100):
        exact_scores, _ = search.files.exact(queries, depth)
        scores, _ = search.search(queries, depth)
        shares.append(float((scores >= exact_scores[:, -1:] - SAME_SCORE).mean()))
    return Recall(at_10=shares[0], at_100=shares[1], queries=len(queries), source=source)


def recall_questions(files: IndexFiles, queries: str | Path | None) -> tuple[list[str], str]:
    """What recall is measured on, and in words what that is: some of a file of queries; None: of titles of documents.

    First words stand for the title of a document that has none.
    """
    if queries is not None:
        return _drawn(list(read_queries(Path(queries)).values())), f"queries of {Path(queries).name}"
    found = files.documents(_drawn(range(files.manifest.documents)))
    texts = [document.title.strip() or " ".join(document.text.split()[:WORDS_OF_TEXT]) for _, document in found]
    return [text for text in texts if text], "titles or first words of documents"


def warn_of_recall(recall: Recall | None, target: float, fix: str) -> list[str]:
    """One line where fewer than the `target` share of the best 10 or 100 are found, or none."""
    if recall is None or min(recall.at_10, recall.at_100) >= target:
        return []
    return [
        f"recall against exact search: got {recall.at_10:.3f} at 10 and {recall.at_100:.3f} at 100; expected "
        f"{target:g} of both; fix: {fix}"
    ]


def _drawn(items: Sequence[T]) -> list[T]:
    """The same ones every time, in their order."""
    return [items[place] for place in np.sort(np.random.default_rng(0).permutation(len(items))[:RECALL_QUERIES])]


def _empty_index(settings: AnnSettings, dimensions: int) -> Any:
    """An index of the inner product, which is the cosine of normalised embeddings."""
    faiss = _faiss()
    try:
        index = faiss.index_factory(dimensions, settings.factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, settings.parameters)
    except RuntimeError as error:
        raise _refused(settings, error) from error
    return index


def _refused(settings: AnnSettings, error: RuntimeError) -> InputError:
    said = str(error).strip().splitlines()[-1].rpartition("Error: ")[2] or str(error)
    hint = did_you_mean(settings.factory, NAMED_TYPES, "see faiss.index_factory and faiss.ParameterSpace, or take hnsw")
    return InputError(
        f"index type: got {settings.factory!r} with parameters {settings.parameters!r} ({said}); expected exact, hnsw, "
        f"ivf, or what FAISS can build of these documents; fix: {hint}"
    )


def _faiss() -> Any:
    """FAISS, which is optional, and whose types do not know half of what it holds."""
    return importlib.import_module("faiss")
