"""TREC run files and judgements (TREC qrels and BEIR TSV), in and out, every fault of a file reported together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.io.files import read_text, write_atomically
from bixse.data.io.hints import number_hint
from bixse.errors import InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bixse.relevance import Qrels, Run

QRELS_HEADER = ("query-id", "corpus-id", "score")
"""Columns of BEIR's qrels files."""


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Document ids as trec_eval ranks them: score descending in float32, ties by document id descending.

    trec_eval keeps scores as C floats and ignores the order and the ranks of a run (`form_res_rels.c`), so two
    scores that differ only beyond float32 are a tie.

    Raises:
        InputError: a score is not a number.

    Example:
        >>> ranked({"a": 1.0, "b": 2.0, "c": 1.0 + 1e-12})
        ['b', 'c', 'a']
    """
    with np.errstate(over="ignore"):
        values = np.fromiter(scores.values(), dtype=np.float64, count=len(scores)).astype(np.float32)
    if np.isnan(values).any():
        document_id = list(scores)[int(np.flatnonzero(np.isnan(values))[0])]
        raise InputError(
            f"score of document {document_id!r}: got nan; expected a number; fix: check the system that scored it"
        )
    return [document_id for _, document_id in sorted(zip(values.tolist(), scores, strict=True), reverse=True)]


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    """Read a TREC run file: lines of query id, Q0, document id, rank, score, tag.

    The rank is ignored, as trec_eval does: scores and document ids make the order.

    Returns:
        Query id -> document id -> score, in file order.

    Raises:
        InputError: the file is missing, not UTF-8, or holds no line.
        InvalidFileError: every faulty line: wrong number of columns, a score that is no number, a repeated document.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "bm25.run"
        >>> write_run(path, {"q1": {"d1": 1.5, "d2": 3.25}}, tag="bm25")
        >>> read_run(path)
        {'q1': {'d2': 3.25, 'd1': 1.5}}
    """
    path = Path(path)
    faults: list[RowError] = []
    run: dict[str, dict[str, float]] = {}
    for number, line in _lines(path, "run"):
        fields = line.split()
        if len(fields) != 6:
            found = f"{len(fields)} columns in {shorten(line)}"
            faults.append(
                RowError(number, None, found, "query id, Q0, document id, rank, score, tag", "write six columns a line")
            )
            continue
        query_id, _, document_id, _, text, _ = fields
        score = _number(text)
        if math.isnan(score):
            faults.append(RowError(number, "score", shorten(text), "a number", "drop the line or score it again"))
        elif document_id in run.get(query_id, ()):
            found = f"{shorten(document_id)} again for query {query_id!r}"
            faults.append(RowError(number, "document id", found, "a document once a query", "keep its best line"))
        else:
            run.setdefault(query_id, {})[document_id] = score
    if faults:
        raise InvalidFileError(path, faults)
    return run


def write_run(path: str | Path, run: Run, tag: str) -> None:
    """Write a TREC run file, ranked as trec_eval ranks it; the file appears whole or not at all.

    Scores are written with every digit, so that a run read again evaluates to the same numbers. A query without
    documents has no line: read again it is missing, which evaluates alike.

    Raises:
        InputError: an id or the tag is empty or holds white space, a score is not a number, or nothing to write.
        StorageError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    _check_word("tag", tag)
    lines = []
    for query_id, scores in run.items():
        _check_word("query id", query_id)
        for rank, document_id in enumerate(ranked(scores), start=1):
            _check_word("document id", document_id)
            lines.append(f"{query_id} Q0 {document_id} {rank} {float(scores[document_id])!r} {tag}\n")
    if not lines:
        raise InputError(
            f"{path}: got a run without documents; expected at least one; fix: check the search that made it"
        )
    write_atomically(path, "".join(lines))


def read_qrels(path: str | Path) -> dict[str, dict[str, float]]:
    r"""Read judgements; the first line tells the format.

    BEIR: tab-separated with the header `query-id corpus-id score`. TREC: no header and four columns separated by
    white space: query id, iteration (ignored), document id, grade. A judgement given twice is kept once.

    Returns:
        Query id -> document id -> grade, judged zeros included.

    Raises:
        InputError: the file is missing, not UTF-8, or holds no judgement.
        InvalidFileError: every faulty row: wrong columns, a grade that is no finite number, one pair with two grades.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "qrels.txt"
        >>> _ = path.write_text("q1 0 d1 3\nq1 0 d2 0\n")
        >>> read_qrels(path)
        {'q1': {'d1': 3.0, 'd2': 0.0}}
    """
    path = Path(path)
    rows = list(_lines(path, "judgement"))
    is_beir = _is_header(rows[0][1])
    if is_beir:
        rows = [(number - 1, line) for number, line in rows[1:]]
        if not rows:
            raise _nothing(path, "judgement")
    elif len(rows[0][1].split()) != 4:
        expected = "the header 'query-id<TAB>corpus-id<TAB>score' or four columns (query id, 0, document id, grade)"
        raise InvalidFileError(
            path, [RowError(1, None, shorten(rows[0][1]), expected, "add the header to a BEIR file")]
        )
    faults: list[RowError] = []
    qrels: dict[str, dict[str, float]] = {}
    first_rows: dict[tuple[str, str], int] = {}
    for number, line in rows:
        fields = line.split("\t") if is_beir else line.split()
        if len(fields) != (3 if is_beir else 4) or not all(fields):
            expected = "query id, document id, grade, tab-separated" if is_beir else "query id, 0, document id, grade"
            faults.append(RowError(number, None, shorten(line), expected, "mend the line"))
            continue
        query_id, document_id, text = fields[0], fields[-2], fields[-1]
        grade = _number(text)
        if not math.isfinite(grade):
            fix = number_hint(text, "drop the row: no grade is no 0")
            faults.append(RowError(number, "score", shorten(text), "a finite number", fix))
            continue
        known = qrels.setdefault(query_id, {}).setdefault(document_id, grade)
        first = first_rows.setdefault((query_id, document_id), number)
        if known != grade:
            found = f"{text.strip()} where row {first} has {known:g} for query {query_id!r}, document {document_id!r}"
            faults.append(RowError(number, "score", found, "one grade per pair", "keep one of the two rows"))
    if faults:
        raise InvalidFileError(path, faults)
    return qrels


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write judgements as BEIR TSV with its header; the file appears whole or not at all.

    Raises:
        InputError: an id is empty or holds a tab or line end, a grade is not finite, or nothing to write.
        StorageError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    lines = ["\t".join(QRELS_HEADER) + "\n"]
    for query_id, judged in qrels.items():
        for document_id, grade in judged.items():
            for name, value in (("query id", query_id), ("document id", document_id)):
                if not value or any(character in value for character in "\t\n\r"):
                    raise InputError(
                        f"{path}: got {name} {value!r}; expected text without tabs or line ends; fix: rename it"
                    )
            if not math.isfinite(grade):
                raise InputError(
                    f"{path}: got grade {grade} for query {query_id!r}, document {document_id!r}; expected a finite "
                    "number; fix: drop the judgement"
                )
            lines.append(f"{query_id}\t{document_id}\t{int(grade) if grade == int(grade) else float(grade)!r}\n")
    if len(lines) == 1:
        raise InputError(f"{path}: got no judgements; expected at least one; fix: leave this split out")
    write_atomically(path, "".join(lines))


def _lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1; refuses a file without any."""
    lines = [(number, line) for number, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    if not lines:
        raise _nothing(path, name)
    return iter(lines)


def _nothing(path: Path, name: str) -> InputError:
    return InputError(f"{path}: got no {name}; expected at least one line; fix: check the export")


def _is_header(line: str) -> bool:
    """Whether a line is BEIR's header, in any case and with - or _."""
    return tuple(field.strip().lower().replace("_", "-") for field in line.split("\t")) == QRELS_HEADER


def _number(text: str) -> float:
    """The number a text spells, NaN when it spells none (Python's 1_000 counts as none)."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _check_word(name: str, value: str) -> None:
    if value.split() != [value]:
        raise InputError(
            f"{name}: got {value!r}; expected a word without white space (TREC run files are separated by it); "
            "fix: rename it"
        )
