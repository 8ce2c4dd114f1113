"""Read and write TREC run files and judgements (TREC qrels, BEIR TSV); all errors of a file are reported together."""

from __future__ import annotations

import math
import shlex
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import write_atomically
from bixse.files.rows import text_lines
from bixse.files.values import FileColumn, InvalidValueError, number_of
from bixse.relevance import ranked

if TYPE_CHECKING:
    from bixse.relevance import Qrels, Ranking

QRELS_HEADER = ("query-id", "corpus-id", "score")
BEIR_HEADER = "\t".join(QRELS_HEADER)
_QRELS_COLUMNS = (FileColumn("query-id", "id"), FileColumn("corpus-id", "id"), FileColumn("score", "number"))
_TREC_COLUMNS = ("query id", "0", "document id", "grade")


def read_run(path: str | Path, contradicted: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Read a TREC run file: lines of query id, Q0, document id, rank, score, tag.

    The rank is ignored, as in trec_eval: scores and document ids define the order. `contradicted` gets the queries
    whose ranks are those of another order, as in a run of distances.
    """
    path = Path(path)
    errors = InvalidFileError(path)
    run: dict[str, dict[str, float]] = {}
    ranks: dict[str, array[float]] = {}  # in the order of the run's scores
    for number, line, _ in text_lines(path, errors):
        fields = line.split()
        if len(fields) != 6:
            got = f"{len(fields)} columns in {shorten(line)}"
            expected = "query id, Q0, document id, rank, score, tag"
            errors.add(number, None, got, expected, "write six columns per line")
            continue
        query_id, _, document_id, rank, text, _ = fields
        score = number_of(text)
        if math.isnan(score):
            errors.add(number, "score", shorten(text), "a number", "drop the line or score it again")
        elif document_id in run.get(query_id, ()):
            got = f"{shorten(document_id)} again for query {query_id!r}"
            lines = f"sort -k1,1 -k5,5gr {shlex.quote(str(path))} | awk '!seen[$1, $3]++' > best.trec"
            errors.add(number, "document id", got, "a document once per query", f"keep its best line: {lines}")
        else:
            run.setdefault(query_id, {})[document_id] = score
            if contradicted is not None:
                ranks.setdefault(query_id, array("d")).append(number_of(rank))
    errors.raise_any()
    if not run:
        raise _nothing(path, "run")
    if contradicted is not None:
        contradicted += [query_id for query_id, given in ranks.items() if _is_other_order(given, run[query_id])]
    return run


def _is_other_order(given: array[float], run: Mapping[str, float]) -> bool:
    """Return True if a document of a lower rank has a higher score, compared in float32 as by trec_eval."""
    with np.errstate(over="ignore"):
        scores = np.fromiter(run.values(), np.float64, len(run)).astype(np.float32)
    ranks = np.where(np.isfinite(given), given, np.nan)
    order = np.argsort(ranks)[: np.isfinite(ranks).sum()]  # NaN is last
    starts = np.unique(ranks[order], return_index=True)[1]  # equal ranks say nothing of each other
    lowest = np.minimum.accumulate(np.minimum.reduceat(scores[order], starts))
    return bool((np.maximum.reduceat(scores[order], starts)[1:] > lowest[:-1]).any())


def write_run(path: str | Path, run: Ranking, tag: str) -> None:
    """Write a TREC run file, ranked as in trec_eval; the file appears completely or not at all.

    Scores are written with all digits, so that the run evaluates to the same numbers when it is read. A query without
    documents has no line: it is then missing, which evaluates alike.
    """
    path = Path(path)
    lines = list(run_lines(run, tag))
    if not lines:
        raise InputError(f"{path}: got a run without documents; expected at least one; fix: check queries and search")
    write_atomically(path, "".join(lines))


def run_lines(run: Ranking, tag: str) -> Iterator[str]:
    """Yield the lines of a TREC run file; raise as `write_run`."""
    check_word("tag", tag)
    for query_id, scores in run.items():
        check_word("query id", query_id)
        for rank, document_id in enumerate(ranked(scores), start=1):
            check_word("document id", document_id)
            yield f"{query_id} Q0 {document_id} {rank} {float(scores[document_id])!r} {tag}\n"


def read_qrels(path: str | Path) -> dict[str, dict[str, float]]:
    r"""Read judgements; the first line names the format.

    BEIR: tab-separated with the header `query-id corpus-id score`. TREC: no header and four columns separated by white
    space: query id, iteration (ignored), document id, grade. A repeated judgement is kept once.
    """
    path = Path(path)
    errors = InvalidFileError(path)
    qrels: dict[str, dict[str, float]] = {}
    for _, query_id, document_id, grade in qrels_rows(path, errors):
        qrels.setdefault(query_id, {})[document_id] = grade
    errors.raise_any()
    return qrels


def qrels_rows(path: Path, errors: InvalidFileError, several: bool = False) -> Iterator[tuple[int, str, str, float]]:
    """Yield row, query id, document id and grade of each judgement of a file; see `read_qrels`.

    Another grade of a pair is an error, unless `several`.
    """
    is_beir: bool | None = None
    first: dict[tuple[str, str], tuple[int, float]] = {}
    count = 0
    for number, line, _ in text_lines(path, errors):
        if is_beir is None:
            names = (field.strip().lower().replace("_", "-") for field in line.split("\t"))
            is_beir = tuple(names) == QRELS_HEADER
            if is_beir:
                continue
            if len(line.split()) != len(_TREC_COLUMNS):
                expected = f"the header {BEIR_HEADER!r} or four columns ({', '.join(_TREC_COLUMNS)})"
                fix = "add the header to a BEIR file"
                if len(line.split()) > 1 and line.split()[1].startswith("qid:"):
                    columns = 'split($1, a, " "); sub("qid:", "", a[2]); split($2, d, " "); print a[2], 0, d[1], a[1]'
                    fix = f"rewrite the list: awk -F'#' '{{{columns}}}' {shlex.quote(str(path))} > qrels.txt"
                errors.add(number, None, shorten(line), expected, fix)
                errors.raise_any()
        fields = line.split("\t") if is_beir else line.split()
        row = number - is_beir
        count += 1
        if len(fields) != len(QRELS_HEADER if is_beir else _TREC_COLUMNS):
            expected = BEIR_HEADER if is_beir else ", ".join(_TREC_COLUMNS)
            errors.add(row, None, shorten(line), expected, "correct the line")
            continue
        values = []
        for column, value in zip(_QRELS_COLUMNS, (fields[0], *fields[-2:]), strict=True):
            try:
                values.append(column.read(value))
            except InvalidValueError as error:
                errors.add(row, column.name, error.got, error.expected, error.fix)
        if len(values) < len(_QRELS_COLUMNS):
            continue
        query_id, document_id, grade = values
        if several or one_grade(first, row, (query_id, document_id), grade, errors):
            yield row, query_id, document_id, grade
    if not count and not errors.total:
        raise _nothing(path, "judgement")


def one_grade(
    first: dict[tuple[str, str], tuple[int, float]],
    row: int,
    pair: tuple[str, str],
    grade: float,
    errors: InvalidFileError,
) -> bool:
    """Return True if a (query id, document id) pair has no other grade in an earlier row; `first` holds the rows."""
    before, known = first.setdefault(pair, (row, grade))
    if known != grade:
        got = f"{grade:g} where row {before} has {known:g} for query {pair[0]!r}, document {pair[1]!r}"
        errors.add(row, "score", got, "one grade per pair", "keep one of the two rows")
    return known == grade


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write judgements as BEIR TSV with its header; the file appears completely or not at all."""
    path = Path(path)
    lines = [BEIR_HEADER + "\n"]
    for query_id, judged in qrels.items():
        check_word("query id", query_id)
        for document_id, grade in judged.items():
            check_word("document id", document_id)
            if not math.isfinite(grade):
                raise InputError(
                    f"{path}: got grade {grade} for query {query_id!r}, document {document_id!r}; expected a finite "
                    "number; fix: drop the judgement"
                )
            lines.append(f"{query_id}\t{document_id}\t{int(grade) if grade == int(grade) else float(grade)!r}\n")
    if len(lines) == 1:
        raise _nothing(path, "judgements")
    write_atomically(path, "".join(lines))


def _nothing(path: Path, name: str) -> InputError:
    return InputError(f"{path}: got no {name}; expected at least one line; fix: check the export")


def check_word(name: str, value: str) -> None:
    """Raise InputError for an id that a TREC file cannot hold."""
    if value.split() != [value]:
        raise InputError(
            f"{name}: got {value!r}; expected a word without white space (TREC files are separated by it); "
            "fix: rename it"
        )
