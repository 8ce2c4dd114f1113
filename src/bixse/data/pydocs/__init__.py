"""`load_pydocs`: the sample collection, graded queries over the documentation of Python's standard library."""

from __future__ import annotations

from pathlib import Path

from bixse.data.collection import Collection
from bixse.data.collection_folder import read_corpus
from bixse.data.corpus import read_queries
from bixse.data.trec import read_qrels
from bixse.relevance import GradeScale

PYDOCS_SCALE = GradeScale(0, 3)
"""Grades: 3 exactly answers the query, 2 highly relevant, 1 related topic without a solution, 0 not relevant."""
PYDOCS_RELEVANT_GRADE = 2
"""The lowest relevant grade in binary metrics; grade 1 does not solve the query."""
PYDOCS_PYTHON = "3.11.7"
"""Version of the Python whose docstrings are the documents."""
SPLITS = ("train", "dev", "test", "guard")
"""Disjoint splits by query. Choose nothing on test; guard shows what training does to other queries."""
FOLDER = Path(__file__).parent
"""Folder of the files of the collection."""


def load_pydocs() -> Collection:
    """Return the sample collection: 1,099 queries, 4,558 documents (docstrings of CPython 3.11.7), 12,883 graded pairs.

    Example:
        >>> collection = load_pydocs()
        >>> len(collection.queries), len(collection.corpus), sorted(collection.qrels)
        (1099, 4558, ['dev', 'guard', 'test', 'train'])
        >>> collection.corpus["bisect.insort"].text.split(", ")[0]
        'Insert item x in list a'
    """
    corpus, queries = read_corpus(FOLDER / "corpus.jsonl.gz"), read_queries(FOLDER / "queries.jsonl")
    qrels = {split: read_qrels(FOLDER / "qrels" / f"{split}.tsv") for split in SPLITS}
    return Collection("pydocs", corpus, queries, qrels)
