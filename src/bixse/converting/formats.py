"""The formats that `bixse convert` reads: for each, a function from a row of a file to judgements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bixse.data.pairs_files import GRADED_COLUMNS
from bixse.data.trec import QRELS_HEADER
from bixse.errors import BixseError, InvalidFileError, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import raw_rows
from bixse.files.values import FileColumn, InvalidValueError, number_of

ABSENT: Any = object()
"""A value that a row lacks."""
FILL = "fill it in or drop the row"
TEXT, OPTIONAL_TEXT = FileColumn("text"), FileColumn("text", needed=False)


@dataclass(slots=True)
class Judgement:
    """The answer of a judge to one (query, document) pair.

    A format gives texts, ids, and a label or a value; the readers of `Source` fill in the rest.
    """

    query: str | None  # None for the text of `query_id` among the queries
    document: str | None  # None for the text of `document_id` in the corpus
    label: float | None = None  # 1 for a positive, 0 for a negative
    value: Any = None  # the grade, or the score of a teacher, as the file has it
    value_column: str = ""  # if given, a judgement without a label needs a value
    query_id: str = ""  # an empty id is made from the text
    document_id: str = ""
    column: str = ""  # of `document_id`
    task: str | None = None
    judge: str | None = None
    status: str = ""  # "graded", or why there is no grade: "no-option", "off-scale", "no-probabilities", ...
    grade_probs: list[float] | None = None  # of each grade from lowest to highest, evenly spaced on the scale
    score: float | None = None  # the value as a number
    grade: float | None = None  # within the scale; None unless the status is "graded"
    relevance: float | None = None  # the grade on [0, 1]


class SourceRow(dict[str, Any]):
    """A row of a file: key -> value. A value that cannot be used is an error of the row, which is then left out."""

    def __init__(self, number: int, values: Mapping[str, Any], text_ids: bool = False) -> None:
        super().__init__(values)
        self.number, self._text_ids = number, text_ids
        self.judgements: list[Judgement] = []
        self.errors: dict[tuple[str, str, str, str], None] = {}
        """Column, what was got, what was expected, fix; once each: two documents of a row may lack the same."""
        self.note = ""
        """The end of a sentence "12 rows ..." for a warning that counts rows."""

    def add(self, column: str, got: str, expected: str, fix: str) -> None:
        """Add an error."""
        self.errors[column, got, expected, fix] = None

    def refuse(self, column: str, value: object, expected: str, fix: str) -> None:
        """Add an error that shows a value."""
        self.add(column, "nothing" if value is ABSENT else shorten(value), expected, fix)

    def read(self, rule: FileColumn, column: str = "", value: Any = ABSENT) -> Any:
        """Return a value, by default that of the column, as the rule reads it."""
        column = column or rule.name
        if value is ABSENT and (value := self.get(column, ABSENT)) is ABSENT:
            if rule.needed:
                self.refuse(column, ABSENT, rule.expected, FILL)
            return None
        try:
            return rule.read(value)
        except InvalidValueError as error:
            self.add(column, error.got, error.expected, error.fix)
            return None

    def text(self, column: str, value: Any = ABSENT) -> str:
        """Return a text, which must be there, by default that of the column."""
        return self.read(TEXT, column, value) or ""

    def id(self, column: str, value: Any = ABSENT) -> str:
        """Return an id, by default that of the column; "" if there is none."""
        value = self.get(column) if value is ABSENT else value
        if value is None or value == "":
            return ""
        if type(value) is int:
            return str(value)
        if isinstance(value, str) and is_unicode(value) and (self._text_ids or value.split() == [value]):
            return value
        expected = "a text without white space, or a whole number"
        self.refuse(column, value, expected, "write ids as such strings, or give --text-ids")
        return ""

    def first(self, *columns: str) -> str:
        """Return the first of these columns that the row has; the first of all if it has none."""
        return next((column for column in columns if column in self), columns[0])


Read: TypeAlias = Callable[..., Iterator[Judgement]]


@dataclass(frozen=True)
class Format:
    """A format of files: the function that reads a row, and facts about the files."""

    name: str
    read: Read
    files: str  # what they are, for messages
    citation: str = ""
    licence: str = "that of its texts"
    options: tuple[str, ...] = ()  # settings of `bixse convert` that concern this format alone
    needs_scale: bool = False
    needs_map: bool = False
    scale: tuple[float, float] | None = None  # lowest and highest value, unless the user states it
    suffixes: tuple[str, ...] = ()  # of the files that are read of a folder; none for one file only
    folder: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names in a folder that is one data set
    is_qrels: bool = False
    columns: tuple[FileColumn, ...] | None = None  # that a file with a header must or may have; None for any
    signs: tuple[str, ...] = ()  # columns by which a file of another source is recognised, unless those needed
    judge: str = "binary labels"  # if a row names none; {file} is the name of the file
    task: str = ""  # "file" or "folder" if its name is the task of rows without one
    tasks: Mapping[str, str] = field(default_factory=dict)  # name of a file -> its task
    task_shares: Mapping[str, float] = field(default_factory=dict)  # task -> share of its queries in an epoch
    instructions: str | None = None  # table of instructions for training
    may_be_empty: bool = False  # a row without a value is counted and left out; else it is an error
    has_grade: bool = False  # rows have a grade on a scale of its own, next to the value

    def with_columns(self, names: Mapping[str, str]) -> Format:
        """Return the format "table" with its columns under other names."""
        listed = tuple(names.get(name, name) for name in TABLE_COLUMNS)
        return replace(self, read=partial(table, names=listed), columns=unchecked(listed[:3], listed[3:]))


def unchecked(needed: Sequence[str], optional: Sequence[str]) -> tuple[FileColumn, ...]:
    """Return columns whose values a format checks itself."""
    return tuple(FileColumn(name, "any", needed=name in needed) for name in (*needed, *optional))


FORMATS: dict[str, Format] = {}


def register(name: str, **facts: Any) -> Callable[[Read], Read]:
    """Register a function as a format."""

    def add(read: Read) -> Read:
        FORMATS[name] = Format(name, read, **facts)
        return read

    return add


def looks_like(path: Path) -> list[str]:
    """Return the formats whose `signs` the first row of a table has; nothing for a file that is no table."""
    try:
        _, row, _ = next(raw_rows(path, InvalidFileError(path)), (0, {}, 0))
    # This only looks for a hint: an error here must not replace the first error.
    except (BixseError, OSError):
        return []
    signs = {
        name: {*form.signs} or {column.name for column in form.columns or () if column.needed}
        for name, form in FORMATS.items()
    }
    return [name for name, columns in signs.items() if columns and columns <= row.keys()]


SCORE_PROBS = ("32B_score_probs", "32B_score_probs_rev")


@register(
    "lightblue",
    files="Parquet or JSONL of LightBlue: question, context, 32B_score_probs, 32B_score_probs_rev",
    citation="huggingface.co/datasets/lightblue/reranker_continuous_filt_max7_train, Apache-2.0",
    licence="Apache-2.0",
    suffixes=(".parquet", ".jsonl"),
    columns=unchecked(
        ("question", "context", *SCORE_PROBS), ("row_id", "dataset_name", "prob_exp_val", "rev_prob_exp_val")
    ),
    scale=(1, 5),
    judge="Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4",
    instructions="paper",
)
def lightblue(row: SourceRow) -> Iterator[Judgement]:
    """Take the mean over both input orders of the expected grade of the renormalised probabilities (paper, section 3).

    `doc_id` names the sources of a question, the same for both siblings, not the text of the row.
    """
    orders = []
    for column in SCORE_PROBS:
        value = row.get(column, ABSENT)
        orders.append([number_of(share) for share in value] if isinstance(value, list) else [])
        if len(orders[-1]) != 5:
            row.refuse(column, value, "a list of 5 probabilities, of the grades 1 to 5", "drop the row")
    judgement = Judgement(row.text("question"), row.text("context"), query_id=row.id("row_id"))
    judgement.task = row.read(OPTIONAL_TEXT, "dataset_name")
    if all(all(0 <= share <= 1.02 for share in shares) and 0 < math.fsum(shares) <= 1.02 for shares in orders):
        grades, (p, q) = [_expected_grade(shares) for shares in orders], map(math.fsum, orders)
        judgement.value = sum(grades) / 2
        # both distributions at the lesser mass, whose mean has the mean of their grades
        shares = zip(*orders, strict=False)
        judgement.grade_probs = [min(1.0, p, q) * (share / p + other / q) / 2 for share, other in shares]
        stated = zip(("prob_exp_val", "rev_prob_exp_val"), grades, strict=True)
        if any(abs(number_of(row.get(name)) - grade) > 1e-3 for name, grade in stated):
            row.note = "state an expected grade that is off by more than 0.001 from their probabilities; "
            row.note += "the probabilities were taken"
    else:
        judgement.status = "no-probabilities"
    yield judgement


def _expected_grade(shares: list[float]) -> float:
    grade = math.fsum(grade * share for grade, share in enumerate(shares, 1)) / math.fsum(shares)
    return min(5.0, max(1.0, grade))  # rounding may push it past the ends


_SAME = ("dureader", "fever", "miracl", "mrtydi", "msmarco_passage", "msmarco_document", "nq", "quora_duplicates",
         "squad", "t2ranking")  # fmt: skip
E5_TASKS = {"allnli": "nli", "eli5_question_answer": "eli5", "hotpot_qa": "hotpotqa", "trivia_qa": "triviaqa"}
E5_TASKS |= {name: name for name in _SAME}
"""Name of a file -> its task in the paper's table of instructions."""


@register(
    "e5",
    files="JSONL of echo-embeddings' training data: query, positive, negative",
    citation="Springer et al. 2024, arXiv:2402.15449, after Wang et al. 2024 (E5-Mistral), arXiv:2401.00368",
    licence="that of each part (MS MARCO: non-commercial research)",
    suffixes=(".jsonl",),
    signs=("query", "positive", "negative"),
    scale=(0, 1),
    task="file",
    tasks=E5_TASKS,
    task_shares={
        "eli5": 0.1,
        "msmarco_passage": 0.5,
        "msmarco_document": 0.2,
        "quora_duplicates": 0.1,
        "t2ranking": 0.5,
    },
    instructions="paper",
)
def e5(row: SourceRow) -> Iterator[Judgement]:
    """Read a positive and a negative."""
    query = row.text("query")
    yield Judgement(query, row.text("positive"), label=1.0)
    yield Judgement(query, row.text("negative"), label=0.0)


@register(
    "flagembedding",
    files="JSONL of FlagEmbedding: query, pos, neg, pos_scores, neg_scores",
    citation="Chen et al. 2024, BGE M3-Embedding, arXiv:2402.03216; github.com/FlagOpen/FlagEmbedding",
    licence="that of each part; the repository of the code is MIT",
    options=("score_map",),
    needs_map=True,
    suffixes=(".jsonl",),
    signs=("query", "pos"),
    scale=(0, 1),
    task="file",
)
def flagembedding(row: SourceRow) -> Iterator[Judgement]:
    """Read lists of positives and negatives, with a list of scores for each."""
    query = row.text("query")
    for label, side in ((1.0, "pos"), (0.0, "neg")):
        texts, scores = row.get(side, ABSENT), row.get(f"{side}_scores")
        if side == "neg" and texts in (None, ABSENT):
            texts = []
        if not isinstance(texts, list):
            row.refuse(side, texts, "a list of texts", f'write it as {{"{side}": ["..."]}}')
            continue
        if not isinstance(scores, list) or len(scores) != len(texts):
            if scores is not None:
                expected = f"a list of scores, one for each text of '{side}'"
                row.refuse(f"{side}_scores", scores, expected, "score the pairs again")
            scores = [None] * len(texts)
        for text, score in zip(texts, scores, strict=True):
            yield Judgement(query, row.text(side, text), label, score, f"{side}_scores")


@register(
    "tevatron",
    files="JSONL of tevatron: query_id, query, positive_passages, negative_passages",
    citation="Gao et al. 2022, Tevatron, arXiv:2203.05765; github.com/texttron/tevatron",
    options=("score_map", "corpus"),
    suffixes=(".jsonl",),
    signs=("query_id", "positive_passages"),
    scale=(0, 1),
    task="file",
)
def tevatron(row: SourceRow) -> Iterator[Judgement]:
    """Read passages with their texts, or ids of passages in a corpus."""
    query, query_id = row.text(row.first("query", "query_text")), row.id("query_id")
    for label, side in ((1.0, "positive"), (0.0, "negative")):
        for column in (f"{side}_passages", f"{side}_document_ids"):
            listed = row.get(column)
            for passage in listed if isinstance(listed, list) else [] if listed is None else [listed]:
                parts = passage if isinstance(passage, dict) else {"docid": passage}
                document_id, text, score = row.id(column, parts.get("docid")), parts.get("text"), parts.get("score")
                document = title = row.read(OPTIONAL_TEXT, column, parts.get("title"))
                if text not in (None, ""):
                    document = f"{title or ''} {row.text(column, text)}"
                elif title is None and not document_id:
                    row.refuse(column, passage, "a text, or an id", "fill it in or drop the row")
                yield Judgement(query, document, label, score, "score", query_id, document_id, column)


QUERIES = ("anchor", "query", "question", "sentence1", "sentence_A", "text1")
POSITIVES = ("positive", "pos", "answer", "document", "passage", "sentence2", "sentence_B", "text2")
NEGATIVE = re.compile(r"(negative|neg)(_?\d+)?")


@register(
    "sentence-transformers",
    files="table of sentence-transformers: anchor, positive, negative, negative_1, ..., or label",
    citation="Reimers and Gurevych 2019, arXiv:1908.10084; sbert.net, dataset overview",
    options=("scale", "score_map"),
    suffixes=(".jsonl", ".parquet", ".csv", ".tsv"),
    signs=("anchor", "positive"),
    judge="labels",
)
def sentence_transformers(row: SourceRow) -> Iterator[Judgement]:
    """Read a positive and any number of negatives; or a label, or labels of each document in their order."""
    query = row.text(row.first(*QUERIES))
    negatives = [column for column in row if NEGATIVE.fullmatch(column) and row[column] is not None]
    columns = [row.first(*POSITIVES), *negatives]
    label_column = next((name for name in ("label", "score", "labels", "scores") if row.get(name) is not None), "")
    labels = row.get(label_column)
    expected = "a list of scores, the positive's first"
    if not label_column and not negatives:
        fix = "mine negatives first (`bixse mine`), or convert the pairs with the source table"
        row.refuse("negative", ABSENT, "a negative or a label next to anchor and positive", fix)
    if isinstance(labels, list) and len(labels) != len(columns):
        row.refuse(label_column, labels, expected, "give one score for each document")
    elif label_column and not isinstance(labels, list) and negatives:
        fix = "a difference of scores (Margin MSE) is no grade: give the scores themselves"
        row.refuse(label_column, labels, expected, fix)
    values = labels if isinstance(labels, list) else [labels] * len(columns)
    for number, (column, value) in enumerate(zip(columns, values, strict=False)):
        label = None if label_column else float(number == 0)
        yield Judgement(query, row.text(column), label, value, label_column)


@register(
    "umbrela",
    files="JSONL of umbrela: query, passage, judgment, result_status",
    citation="Upadhyay et al. 2024, UMBRELA, arXiv:2406.06519; github.com/castorini/umbrela",
    signs=("passage", "judgment"),
    scale=(0, 3),
    judge="umbrela",
)
def umbrela(row: SourceRow) -> Iterator[Judgement]:
    """Read a judgement.

    umbrela writes 0 if it could not read the prediction; `result_status` is then 0. Files of early versions lack
    `result_status`: there a 0 counts only if the prediction states it.
    """
    if "judgment" not in row and "candidates" in row:
        fix = "run umbrela on it first, or write one row per candidate with its texts as query and document, which "
        fix += "`bixse grade --pairs` reads"
        row.refuse("candidates", row["candidates"], "a judgement, not a request with candidates", fix)
        return
    query_parts, parts = _object(row.get("query")), _object(row.get("passage"))
    inner = _object(parts.get("doc"))
    status, value = row.get("result_status"), row.get("judgment")
    is_read, grade = number_of(status), number_of(value)
    if status is not None and is_read not in (0, 1):
        row.refuse("result_status", status, "0 or 1", "write 1 where the prediction was read")
    if "judgment" not in row and is_read != 0:
        row.refuse("judgment", ABSENT, "a grade, 0 to 3", "add the key 'judgment'")
    answer = str(_first([row], ("prediction", "reasoning"), ""))
    is_unread = is_read == 0 or value in (None, "")
    states_zero = _ZERO.search(_SCALE_NAMED.sub(" ", answer))  # the scale that it names ("of 0 to 3") is no score
    if is_unread or (grade == 0 and status in (None, "") and not states_zero):
        judged = "no-option"
    else:
        judged = "off-scale" if grade % 1 > 0 else ""
    yield Judgement(
        row.text("query", query_parts.get("text", ABSENT)),
        row.text("passage", _first([inner, parts], ("segment", "text"), ABSENT)),
        value=value,
        value_column="judgment",
        query_id=row.id("query", _first([query_parts, row], ("qid", "query_id"))),
        document_id=row.id("passage", _first([parts, row], ("docid", "document_id", "doc_id"))),
        judge=row.read(OPTIONAL_TEXT, "model"),
        status=judged,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(objects: Sequence[Mapping[str, Any]], names: tuple[str, ...], otherwise: Any = None) -> Any:
    """Return the first value that is there and not empty."""
    values = (part.get(name) for part in objects for name in names)
    return next((value for value in values if value not in (None, "")), otherwise)


_SCALE_NAMED = re.compile(r"\b\d+\s*(to|through|and|-|–)\s*\d+\b|(\bout of|/)\s*\d+\b", re.IGNORECASE | re.ASCII)
_ZERO = re.compile(
    r"""^\s*0\s*$|(score|overall|rating|grade|category|\bO)["'\s*:=#_-]*((is|of)\b["'\s*:]*)?0\b""",
    re.IGNORECASE | re.ASCII,
)


@register(
    "trec",
    files="qrels: query id, 0, document id, grade; with topics (--queries) and a collection (--corpus)",
    citation="TREC qrels as trec_eval reads them; tracks: Craswell et al. 2020, arXiv:2003.07820, and after",
    options=("scale", "queries", "corpus"),
    needs_scale=True,
    is_qrels=True,
    judge="{file}",
)
@register(
    "beir",
    files="folder in the BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv",
    citation="Thakur et al. 2021, BEIR, arXiv:2104.08663",
    options=("scale", "qrels"),
    needs_scale=True,
    folder={
        "rows": ("qrels/*.tsv",),
        "corpus": ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet"),
        "queries": ("queries.jsonl", "queries.jsonl.gz", "queries.parquet"),
    },
    is_qrels=True,
    judge="{file}",
    task="folder",
)
def qrels(row: SourceRow) -> Iterator[Judgement]:
    """Read a grade of a document for a query, both named by their ids."""
    query_id, document_id, grade = (row[name] for name in QRELS_HEADER)
    yield Judgement(None, None, None, grade, "score", query_id, document_id, "corpus-id")


TABLE_COLUMNS = ("query", "document", "grade", "query_id", "document_id", "task")
"""Columns of the format "table"; those of ids and task may be absent."""


@register(
    "table",
    files="table of pairs: a query, a document and a grade in each row",
    licence="yours",
    options=("scale", "columns"),
    needs_scale=True,
    suffixes=(".jsonl", ".parquet", ".csv", ".tsv"),
    columns=unchecked(TABLE_COLUMNS[:3], TABLE_COLUMNS[3:]),
    judge="table",
    may_be_empty=True,
)
def table(row: SourceRow, names: Sequence[str] = TABLE_COLUMNS) -> Iterator[Judgement]:
    """Read a pair with its grade; the file has other `names` for `TABLE_COLUMNS`."""
    query, document, grade, query_id, document_id, task = names
    yield Judgement(
        row.text(query),
        row.text(document),
        value=row.get(grade),
        value_column=grade,
        query_id=row.id(query_id),
        document_id=row.id(document_id),
        task=row.read(OPTIONAL_TEXT, task),
    )


@register(
    "pairs",
    files="graded pairs of bixse: query, document, relevance",
    licence="yours",
    suffixes=(".jsonl", ".parquet", ".csv", ".tsv"),
    columns=GRADED_COLUMNS,
    scale=(0, 1),
    judge="",
    has_grade=True,
)
def pairs(row: SourceRow) -> Iterator[Judgement]:
    """Read a pair of bixse."""
    if str(row.get("grade")).strip().lower() == "nan":  # what NumPy writes in CSV for no number
        row["grade"] = None
    values = {rule.name: row.read(rule) for rule in GRADED_COLUMNS if rule.kind != "id"}
    yield Judgement(
        values["query"] or "",
        values["document"] or "",
        value=values["relevance"],
        query_id=row.id("query_id"),
        document_id=row.id("document_id"),
        task=values["task"],
        judge=values["judge"],
        grade_probs=values["grade_probs"],
        grade=values["grade"],
    )
