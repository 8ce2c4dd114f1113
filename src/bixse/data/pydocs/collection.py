"""`load_pydocs`: the sample collection, graded queries over the documentation of Python's standard library."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection import Collection
from bixse.data.pydocs.extract import extract_documents
from bixse.errors import InvalidFileError, RowError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.resources.abc import Traversable

PYDOCS_SCALE = GradeScale(0, 3)
"""3 exactly answers the query, 2 highly relevant, 1 related topic that does not solve it, 0 not relevant."""
PYDOCS_RELEVANT_GRADE = 2
"""The lowest grade that counts as relevant in binary metrics; grade 1 does not solve the query."""
SPLITS = ("train", "dev", "test", "guard")
"""Splits by query: no query is in two of them. Choose nothing on test; guard shows what training does to the rest."""
QRELS_HEADER = "query-id\tcorpus-id\tscore"
"""First line of a qrels file (BEIR)."""
REINSTALL = "reinstall bixse"
"""What mends a damaged file of the package."""


@dataclass(frozen=True)
class Coverage:
    """How much of what was graded, on CPython 3.11.7 under Linux, the running Python has.

    Example:
        >>> print(Coverage(graded_found=3, graded_total=4, documents=90, python_version="3.12.1",
        ...                missing=("imp.reload",), queries_dropped=("q7",)))
        Python 3.12.1: 90 documents, 3 of 4 graded documents (75.0 %), 1 query dropped
    """

    graded_found: int
    """Graded ids that are documents of this Python."""
    graded_total: int
    """Distinct ids graded in any split."""
    documents: int
    """Size of the corpus."""
    python_version: str
    """Version of the Python whose documentation was read."""
    missing: tuple[str, ...]
    """Graded ids this Python lacks, sorted; their judgements are left out of the qrels."""
    queries_dropped: tuple[str, ...]
    """Queries left out of their split: none of their relevant documents (grade 2 and up) is there."""

    @property
    def fraction(self) -> float:
        """Graded ids found divided by graded ids, in [0, 1]."""
        return self.graded_found / self.graded_total

    def __str__(self) -> str:
        """One line for a report."""
        dropped = len(self.queries_dropped)
        return (
            f"Python {self.python_version}: {self.documents} documents, {self.graded_found} of {self.graded_total} "
            f"graded documents ({self.fraction:.1%}), {dropped} {'query' if dropped == 1 else 'queries'} dropped"
        ).replace("%", " %")


def load_pydocs(cache: Path | None = None) -> tuple[Collection, Coverage]:
    """The sample collection: 1,099 queries, about 4,500 documents, 12,883 graded pairs.

    The documents are the docstrings of the Python that runs this, so scores are comparable between runs of one
    Python version only; the coverage says how far it is from the version that was graded.

    Args:
        cache: file to keep the documents in; reading them anew takes about a second.

    Returns:
        The collection, with splits train, dev, test and guard, and its coverage. Every query is in `queries`, also the
        few that are in no split because this Python has none of their relevant documents.

    Raises:
        BixseError: if the documentation cannot be read.
        InvalidFileError: if a file of the package is damaged.

    Example:
        >>> collection, coverage = load_pydocs()
        >>> collection.name, len(collection.queries), sorted(collection.qrels)
        ('pydocs', 1099, ['dev', 'guard', 'test', 'train'])
        >>> coverage.fraction > 0.9
        True
    """
    corpus = extract_documents(cache)
    queries = {row["_id"]: row["text"] for row in read_queries()}
    qrels: dict[str, dict[str, dict[str, float]]] = {}
    graded: set[str] = set()
    dropped: list[str] = []
    for split in SPLITS:
        qrels[split] = {}
        for query, judgements in read_qrels(split, queries.keys()).items():
            graded.update(judgements)
            present = {document: grade for document, grade in judgements.items() if document in corpus}
            if any(grade >= PYDOCS_RELEVANT_GRADE for grade in present.values()):
                qrels[split][query] = present
            else:
                dropped.append(query)
    missing = tuple(sorted(graded - corpus.keys()))
    coverage = Coverage(
        graded_found=len(graded) - len(missing),
        graded_total=len(graded),
        documents=len(corpus),
        python_version=platform.python_version(),
        missing=missing,
        queries_dropped=tuple(sorted(dropped)),
    )
    return Collection("pydocs", corpus, queries, qrels), coverage


def query_kinds() -> dict[str, str]:
    """Query id -> how it is put: howto, keyword, symptom, concept or task.

    Example:
        >>> query_kinds()["conc-002"]
        'keyword'
    """
    return {row["_id"]: row["kind"] for row in read_queries()}


def resource_folder() -> Traversable:
    """The folder of the package that holds the queries and qrels."""
    return resources.files("bixse.data.pydocs")


def read_lines(name: str) -> list[str]:
    """The lines of a file of the package; raises InvalidFileError when it is missing or not UTF-8."""
    try:
        return resource_folder().joinpath(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fault = RowError(None, None, str(error), "a file that comes with bixse", REINSTALL)
        raise InvalidFileError(Path(name), [fault]) from error


def read_queries() -> list[dict[str, str]]:
    """The rows of queries.jsonl, each with _id, text and kind; raises InvalidFileError."""
    name = "queries.jsonl"
    rows, faults = [], []
    for number, line in enumerate(read_lines(name), start=1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in ("_id", "text", "kind")})
        except (ValueError, LookupError, TypeError):
            faults.append(RowError(number, None, shorten(line), "an object with _id, text and kind", REINSTALL))
    if not rows and not faults:
        faults.append(RowError(None, None, "an empty file", "one query per line", REINSTALL))
    if faults:
        raise InvalidFileError(Path(name), faults)
    return rows


def read_qrels(split: str, known_queries: Iterable[str]) -> dict[str, dict[str, float]]:
    """Query id -> document id -> grade of one split; raises InvalidFileError."""
    name = f"qrels/{split}.tsv"
    header, *lines = read_lines(name) or [""]
    faults = [] if header == QRELS_HEADER else [RowError(None, None, shorten(header), repr(QRELS_HEADER), REINSTALL)]
    known, grades = set(known_queries), {str(grade): float(grade) for grade in range(4)}
    qrels: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] not in known or fields[2] not in grades:
            expected = "a query of queries.jsonl, a document id and a grade from 0 to 3, parted by tabs"
            faults.append(RowError(number, None, shorten(line), expected, REINSTALL))
            continue
        qrels.setdefault(fields[0], {})[fields[1]] = grades[fields[2]]
    if not qrels and not faults:
        faults.append(RowError(None, None, "no judgements", "one judgement a line", REINSTALL))
    if faults:
        raise InvalidFileError(Path(name), faults)
    return qrels
