"""What is mined: a corpus, which is never in memory, its queries, and the pairs whose grades are known already."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from bixse.data.collection import check_corpus, read_queries
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.trec import read_qrels
from bixse.errors import InputError, InvalidFileError, shorten
from bixse.preparing.mine.mine_settings import splits_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

    from bixse.data.collection import Document
    from bixse.data.graded_pairs import GradedPairs
    from bixse.preparing.mine.mine_settings import MineConfig


@dataclass(frozen=True)
class MineInputs:
    """The texts to mine from."""

    documents: int
    """How many the corpus holds, empty ones too."""
    empty_documents: int
    queries: Mapping[str, str]
    """Query id -> text, in file order; may be empty."""
    known: Mapping[str, set[str]] = field(default_factory=dict)
    """Query id -> ids of documents whose grade is known."""
    warnings: tuple[str, ...] = ()


def read_inputs(config: MineConfig) -> MineInputs:
    """Read and check all that is mined from."""
    files = config.files()
    queries = read_queries(files["queries"])
    qrels = {} if config.exclude_judged is None else read_qrels(files[f"qrels/{config.exclude_judged}"])
    judged = [(query_id, document_id) for query_id, found in qrels.items() for document_id in found]
    graded = None if config.known is None else load_graded_pairs(config.known)
    documents = _Documents({document_id for _, document_id in judged}, graded)
    corpus = check_corpus(files["corpus"], {}, documents.see)
    warnings = []
    known: dict[str, set[str]] = {}
    if config.exclude_judged is not None:
        warnings += _add_known(known, files[f"qrels/{config.exclude_judged}"], judged, queries, documents.there)
    if config.known is not None and graded is not None:
        pairs, said = _graded_pairs_by_id(config.known, graded, queries, documents)
        warnings += [*said, *_add_known(known, config.known, pairs, queries, documents.there)]
    if config.split is not None:
        asked = read_qrels(files[f"qrels/{config.split}"])
        queries = {query_id: text for query_id, text in queries.items() if query_id in asked}
        if not queries:
            raise InputError(
                f"{files['queries']}: got no query of split {config.split!r}; expected queries that its qrels name; "
                "fix: check that both are of one collection"
            )
    elif config.collection is not None and len(splits := splits_of(config.collection)) > 1:
        warnings.append(
            f"all queries are mined, those of the splits {', '.join(splits)} alike: pairs for training should hold no "
            "query of a test split; --split NAME takes the queries of one"
        )
    queries = sample_queries(queries, config.max_queries, config.seed)
    unknown = sum(query_id not in known for query_id in queries)
    if config.strategy == "hard-negatives" and unknown:
        warnings.append(
            f"{unknown} of {len(queries)} queries have no known pair: their best documents are mined as they are"
        )
    return MineInputs(corpus.count, len(corpus.empty), queries, known, tuple(warnings))


def sample_queries(queries: Mapping[str, str], count: int | None, seed: int) -> dict[str, str]:
    """`count` queries drawn by the seed, in file order; more of them hold the fewer, whatever the file's order."""
    if count is None:
        return dict(queries)
    drawn = set(sorted(queries, key=lambda name: sha256(json.dumps([seed, name]).encode()).hexdigest())[:count])
    return {query_id: text for query_id, text in queries.items() if query_id in drawn}


class _Documents:
    """What is looked for in the corpus: judged documents, and those of graded pairs, by id or else by text."""

    def __init__(self, judged: set[str], graded: GradedPairs | None) -> None:
        self._judged = judged
        self._graded = set() if graded is None else set(graded.document_ids)
        self._texts = set() if graded is None else {text.strip() for text in graded.documents}
        self.there: set[str] = set()
        """Ids that the corpus has, of all that are looked for."""
        self.texts: dict[str, str] = {}
        """Id in the graded pairs -> the corpus's text."""
        self.with_text: dict[str, str] = {}
        """Text of the graded pairs -> id in the corpus."""

    def see(self, name: str, document: Document) -> None:
        text = document.content
        if name in self._graded:
            self.texts[name] = text
        if text in self._texts:
            self.with_text[text] = name
        if name in self._judged or name in self._graded or text in self._texts:
            self.there.add(name)


def _graded_pairs_by_id(
    path: Path, graded: GradedPairs, queries: Mapping[str, str], documents: _Documents
) -> tuple[list[tuple[str, str]], list[str]]:
    """The (query id, document id) pairs of a graded file, and warnings.

    An id that the collection lacks is looked up by its text, since files without ids have those of their texts.
    """
    query_of = {text: query_id for query_id, text in queries.items()}
    pairs = []
    other_texts = 0
    for query_id, query, document_id, document in zip(
        graded.query_ids, graded.queries, graded.document_ids, graded.documents, strict=True
    ):
        own_query = query_id if query_id in queries else query_of.get(query, query_id)
        text = documents.texts.get(document_id)
        own_document = document_id if text is not None else documents.with_text.get(document.strip(), document_id)
        pairs.append((own_query, own_document))
        if own_query in queries and text is not None:
            other_texts += document.strip() not in text
    said = f"{path.name}: {other_texts} of {len(pairs)} pairs have another text than the corpus has under their id"
    return pairs, [said] if other_texts else []


def _add_known(
    known: dict[str, set[str]],
    path: Path,
    pairs: Iterable[tuple[str, str]],
    queries: Mapping[str, str],
    documents: Container[str],
) -> list[str]:
    """Add pairs to the known ones; refuses documents the corpus lacks, and a file without any query of ours."""
    errors = InvalidFileError(path)
    others = set()
    added = False
    for query_id, document_id in pairs:
        if query_id not in queries:
            others.add(query_id)
        elif document_id not in documents:
            got = f"{shorten(document_id)} (of query {query_id!r})"
            expected = "an id or a text of the corpus: a document under another id would be mined as unknown"
            errors.add(None, "document_id", got, expected, "use the corpus the pairs are of, or drop them")
        else:
            known.setdefault(query_id, set()).add(document_id)
            added = True
    errors.raise_any()
    if not added:
        raise InputError(
            f"{path}: got no pair of these queries (such as query {shorten(min(others))}); expected ids or texts of "
            "the queries that are mined; fix: use the file of this collection"
        )
    return [f"{path.name}: {len(others)} queries are not among those to mine for"] if others else []
