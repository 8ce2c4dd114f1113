"""`load_pydocs`: the sample collection, graded queries over the documentation of Python's standard library."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from bixse.data.collection import Collection, Document
from bixse.data.trec import read_qrels
from bixse.errors import InputError
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
    corpus = {row["_id"]: Document(row["title"], row["text"]) for row in _rows("corpus.jsonl.gz")}
    queries = {row["_id"]: row["text"] for row in _rows("queries.jsonl")}
    qrels = {split: read_qrels(FOLDER / "qrels" / f"{split}.tsv") for split in SPLITS}
    return Collection("pydocs", corpus, queries, qrels)


def query_kinds() -> dict[str, str]:
    """Return query id -> kind of wording: howto, keyword, symptom, concept or task."""
    return {row["_id"]: row["kind"] for row in _rows("queries.jsonl")}


def _rows(name: str) -> list[dict[str, str]]:
    try:
        content = (FOLDER / name).read_bytes()
        lines = (gzip.decompress(content) if name.endswith(".gz") else content).decode().strip().split("\n")
        return [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{FOLDER / name}: got {error}; expected a file that comes with bixse; fix: reinstall bixse"
        ) from error
