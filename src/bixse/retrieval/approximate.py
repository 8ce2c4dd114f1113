"""Approximate nearest documents by FAISS: a graph (HNSW) or lists (IVF), with the recall measured, never assumed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.io.files import storage_errors
from bixse.errors import InputError, did_you_mean
from bixse.retrieval.index_contents import best
from bixse.retrieval.index_files import MANIFEST_FILE, damaged, new_file, stored
from bixse.retrieval.index_manifest import Graph, Knobs, Recall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from bixse.retrieval.index_contents import Contents
    from bixse.retrieval.index_manifest import Kind

KINDS = ("exact", "hnsw", "ivf")
TRAINED_ON = 39
"""Documents of a list below which FAISS warns that its centre is drawn from too few."""
ADDED_AT_ONCE = 8_192
"""Documents that are read into memory together."""
WIDER = (1, 4, 16)
"""How many times as many candidates are looked at while deleted documents leave a query with too few; then all are."""
SAME_SCORE = 1e-6
"""Scores that rounding alone tells apart."""


def check_kind(kind: str) -> None:
    """Refuse an unknown kind of index, and one whose library is missing.

    Raises:
        InputError: says which kinds there are, or how FAISS is installed.
    """
    if kind not in KINDS:
        mend = did_you_mean(kind, KINDS, "exact finds every document, hnsw is the faster one for many")
        raise InputError(f"kind: got {kind!r}; expected one of {', '.join(KINDS)}; fix: {mend}")
    if kind != "exact" and importlib.util.find_spec("faiss") is None:
        raise InputError(
            f"kind: got {kind!r}, which needs FAISS, which is not installed; expected the package faiss-cpu; fix: "
            "pip install 'bixse[faiss]', or search exactly (`--kind exact`, or `--exact` on this index)"
        )


def build_graph(
    folder: Path, contents: Contents, kind: Kind, knobs: Knobs, progress: Callable[[int], None] | None = None
) -> Graph:
    """Put every document of a state into a FAISS index; its embeddings must fit in memory as float32.

    The inner product over normalised embeddings is the cosine. The lists of ivf are the same in every run; the graph
    of hnsw is when one thread builds it.

    Args:
        folder: where its file goes.
        contents: the state.
        kind: "hnsw" (Malkov and Yashunin 2016, arXiv:1603.09320) or "ivf" (flat lists).
        knobs: settings; those that are None are chosen here.
        progress: called with the number of documents put in since the last call.

    Raises:
        InputError: FAISS is not installed, or there are fewer documents than lists.
        StorageError: the disk is full or the folder cannot be written.
    """
    check_kind(kind)
    faiss = _faiss()
    manifest = contents.manifest
    used = _all_set(knobs, kind, manifest.rows)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(manifest.model.dimensions, used.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = used.ef_construction
    else:
        centres = faiss.IndexFlatIP(manifest.model.dimensions)
        index = faiss.IndexIVFFlat(centres, manifest.model.dimensions, used.lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # that there are enough was checked
        index.train(_sample(contents, 256 * (used.lists or 1)))
    for start in range(0, manifest.rows, ADDED_AT_ONCE):
        rows = np.arange(start, min(start + ADDED_AT_ONCE, manifest.rows))
        index.add(contents.embeddings(rows))
        if progress is not None:
            progress(len(rows))
    path = new_file(folder, "graph", "faiss")
    with storage_errors(path):
        try:
            faiss.write_index(index, str(path))
        except RuntimeError as error:  # whose message ends in what the system said, in brackets
            raise OSError(str(error).rstrip(") \n").rpartition("(")[2]) from error
    return Graph(file=stored(path), rows=manifest.rows, knobs=used)


class GraphSearch:
    """Search through the FAISS index of a state, and exactly among the documents that were added after it was built.

    Args:
        contents: the state.

    Raises:
        InputError: it has no graph, FAISS is not installed, or the file is damaged.
    """

    def __init__(self, contents: Contents) -> None:
        check_kind(contents.manifest.kind)
        faiss = _faiss()
        graph, file = contents.manifest.graph, contents.graph_file
        if graph is None or file is None:
            raise damaged(contents.folder / MANIFEST_FILE, "no graph", f"that of kind {contents.manifest.kind}")
        file.check()
        self.contents, self.graph = contents, graph
        self.is_hnsw = contents.manifest.kind == "hnsw"
        try:
            self.index = faiss.read_index(faiss.PyCallbackIOReader(file.handle.read))
        except RuntimeError as error:
            raise damaged(file.path, str(error).splitlines()[0], "what FAISS wrote") from error
        finally:
            file.close()
        if (self.index.ntotal, self.index.d) != (graph.rows, contents.manifest.model.dimensions):
            raise damaged(file.path, f"{self.index.ntotal} documents", f"{graph.rows}")
        live = contents.live[: graph.rows]
        self.live = int(live.sum())
        self.chosen = None if live.all() else faiss.IDSelectorBitmap(np.packbits(live, bitorder="little"))

    def search(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The documents of highest inner product, most of them; never fewer than there are.

        Args:
            queries: shape (Q, D).
            top: documents per query, at least 1.

        Returns:
            Scores (Q, k), highest first, and rows (Q, k); k is `top`, or the number of documents there are.
        """
        scores, rows = self._filled(np.ascontiguousarray(queries, dtype=np.float32), min(top, self.live))
        if self.graph.rows < self.contents.manifest.rows:
            later_scores, later_rows = self.contents.exact(queries, top, first=self.graph.rows)
            scores, rows = np.hstack([scores, later_scores]), np.hstack([rows, later_rows])
        return best(scores, rows, top)

    def _filled(
        self, queries: npt.NDArray[np.float32], count: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """`count` documents of the graph for every query, however many near ones are deleted."""
        scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), count), -1, dtype=np.int64)
        if count == 0:
            return scores, rows
        for times in WIDER:
            lacking = np.flatnonzero((rows < 0).any(axis=1))
            if not len(lacking):
                return scores, rows
            scores[lacking], rows[lacking] = self.index.search(
                queries[lacking], count, params=self._parameters(times, count)
            )
        lacking = np.flatnonzero((rows < 0).any(axis=1))
        if len(lacking):
            scores[lacking], rows[lacking] = self.contents.exact(queries[lacking], count, last=self.graph.rows)
        return scores, rows

    def _parameters(self, times: int, count: int) -> Any:
        faiss = _faiss()
        knobs = self.graph.knobs
        if self.is_hnsw:
            return faiss.SearchParametersHNSW(efSearch=times * max(knobs.ef_search, count), sel=self.chosen)
        lists = int(self.index.nlist)
        return faiss.SearchParametersIVF(nprobe=min(times * (knobs.nprobe or lists), lists), sel=self.chosen)


def measure_recall(
    search: GraphSearch, queries: npt.NDArray[np.float32], source: str, seed: int, target: float
) -> Recall:
    """How many of the best 10 and 100 documents a graph finds.

    A document counts as found when it scores as high as the last of the exact best ones: which of several copies of a
    text is found does not matter (so does ann-benchmarks, Aumüller et al. 2017, arXiv:1807.05614).

    Args:
        search: the graph.
        queries: (Q, D) embeddings of queries, at least one.
        source: what they are, in words.
        seed: of their draw.
        target: what is wanted of both figures, 0 to 1.
    """
    shares = []
    for depth in (10, 100):
        exact_scores, _ = search.contents.exact(queries, depth)
        scores, _ = search.search(queries, depth)
        shares.append(float((scores >= exact_scores[:, -1:] - SAME_SCORE).mean()) if scores.size else 1.0)
    return Recall(at_10=shares[0], at_100=shares[1], queries=len(queries), source=source, seed=seed, target=target)


def recall_warning(recall: Recall, kind: Kind, knobs: Knobs) -> str | None:
    """What to do about a recall below its target; None where it is reached."""
    if min(recall.at_10, recall.at_100) >= recall.target:
        return None
    knob = f"--ef-search above {knobs.ef_search}" if kind == "hnsw" else f"--nprobe above {knobs.nprobe}"
    return (
        f"recall against exact search: got {recall.at_10:.3f} at 10 and {recall.at_100:.3f} at 100; expected "
        f"{recall.target:g} of both; fix: `bixse index --to INDEX` with {knob} (slower, nothing is encoded again), "
        "or --kind exact"
    )


def _faiss() -> Any:
    """FAISS, which is optional; its own types do not know half of what it holds."""
    return importlib.import_module("faiss")


def _all_set(knobs: Knobs, kind: Kind, rows: int) -> Knobs:
    """Knobs without a None that the kind uses."""
    if kind == "hnsw":
        return knobs
    lists = knobs.lists or max(1, min(round(4 * math.sqrt(rows)), rows // TRAINED_ON))
    if lists > rows:
        raise InputError(
            f"--lists: got {lists} for {rows} documents; expected at most one a document; fix: leave it out"
        )
    return knobs.model_copy(update={"lists": lists, "nprobe": min(knobs.nprobe or math.ceil(lists / 4), lists)})


def _sample(contents: Contents, count: int) -> npt.NDArray[np.float32]:
    """Embeddings of at most `count` documents, drawn with a fixed seed, to find the centres of the lists."""
    rows = np.arange(contents.manifest.rows)
    if len(rows) > count:
        rows = np.sort(np.random.default_rng(0).choice(rows, count, replace=False))
    return contents.embeddings(rows)
