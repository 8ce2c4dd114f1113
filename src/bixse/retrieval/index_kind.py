"""How an index is searched: exactly, or by a graph whose recall is measured before the index is written."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import InputError
from bixse.retrieval.approximate import GraphSearch, build_graph, check_kind, measure_recall, recall_warning
from bixse.retrieval.index_contents import Contents
from bixse.retrieval.index_documents import read_queries
from bixse.retrieval.index_manifest import Knobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bixse.retrieval.index_encoder import IndexEncoder
    from bixse.retrieval.index_manifest import Graph, Kind, Manifest

RECALL_TARGET = 0.95
RECALL_QUERIES = 200
WORDS_OF_TEXT = 12
"""Words of a document without a title that stand for one."""


@dataclass(frozen=True)
class KindSettings:
    """How an index is searched, and on what its recall is measured."""

    kind: Kind = "exact"
    knobs: Knobs = field(default_factory=Knobs)
    target: float = RECALL_TARGET
    """Recall at 10 and at 100 below which there is a warning, 0 to 1."""
    queries: Path | None = None
    """Queries to measure on, see `read_queries`; None takes titles of documents."""
    sample: int = RECALL_QUERIES
    """How many of them, drawn by the seed."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.target <= 1:
            raise InputError(f"--recall-target: got {self.target}; expected 0 to 1; fix: leave it out for 0.95")
        if self.sample < 1:
            raise InputError(f"--recall-queries: got {self.sample}; expected at least 1; fix: leave it out for 200")

    @classmethod
    def of(cls, manifest: Manifest) -> KindSettings:
        """Those of an index; its recall is measured on titles."""
        knobs = manifest.graph.knobs if manifest.graph is not None else Knobs()
        recall = manifest.recall
        target, seed = (recall.target, recall.seed) if recall is not None else (RECALL_TARGET, 0)
        return cls(manifest.kind, knobs, target, seed=seed)


def with_kind(
    folder: Path,
    manifest: Manifest,
    settings: KindSettings,
    encoder: IndexEncoder | None,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
) -> tuple[Manifest, list[str]]:
    """A state, not written yet, that is searched in the way asked for, and warnings.

    A graph is kept where only the settings of searching change.

    Args:
        folder: the index.
        manifest: the state; its shards are on the disk.
        settings: the kind and its settings.
        encoder: encodes the queries on which recall is measured; an exact index and an empty one need none.
        progress: makes a progress callback from a title and a total.
    """
    check_kind(settings.kind)
    plain = manifest.model_copy(update={"kind": "exact", "graph": None, "recall": None})
    with ExitStack() as opened:
        contents = opened.enter_context(closing(Contents(folder, plain)))
        if settings.kind == "exact" or encoder is None or not len(contents):
            return plain, []
        graph = _kept(manifest, settings)
        if graph is None:
            advance = progress(f"build {settings.kind}", manifest.rows) if progress is not None else None
            graph = build_graph(folder, contents, settings.kind, settings.knobs, advance)
        searched = plain.model_copy(update={"kind": settings.kind, "graph": graph})
        search = GraphSearch(opened.enter_context(closing(Contents(folder, searched))))
        texts, source = _recall_queries(contents, settings)
        recall = measure_recall(search, encoder.encode(texts, "query"), source, settings.seed, settings.target)
    warning = recall_warning(recall, settings.kind, graph.knobs)
    return searched.model_copy(update={"recall": recall}), [warning] if warning else []


def _kept(manifest: Manifest, settings: KindSettings) -> Graph | None:
    """The graph there is, with new settings of searching, where it need not be built again."""
    graph, asked = manifest.graph, settings.knobs
    if graph is None or manifest.kind != settings.kind:
        return None
    built = graph.knobs
    if settings.kind == "hnsw":
        same = (asked.links, asked.ef_construction) == (built.links, built.ef_construction)
    else:
        same = asked.lists in (None, built.lists)
    knobs = built.model_copy(update={"ef_search": asked.ef_search, "nprobe": asked.nprobe or built.nprobe})
    return graph.model_copy(update={"knobs": knobs}) if same else None


def _recall_queries(contents: Contents, settings: KindSettings) -> tuple[list[str], str]:
    """Texts of queries drawn by the seed, and what they are in words."""
    draw = np.random.default_rng(settings.seed)
    if settings.queries is not None:
        given = list(read_queries(settings.queries).values())
        chosen = np.sort(draw.permutation(len(given))[: settings.sample])
        return [given[place] for place in chosen], f"queries of {settings.queries.name}"
    rows = np.flatnonzero(contents.live)
    chosen = np.sort(rows[draw.permutation(len(rows))[: settings.sample]])
    documents = contents.documents(chosen.tolist())
    titles = sum(bool(document.title.strip()) for document in documents)
    texts = [document.title.strip() or " ".join(document.text.split()[:WORDS_OF_TEXT]) for document in documents]
    texts = [text for text in texts if text]
    return texts, "titles of documents" if titles == len(documents) else "titles or first words of documents"
