"""Whatever is in a file: rows that can be used, or an error that says what to do; no line is lost in silence."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import source_files as files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.collection import Collection, Document
from bixse.data.io.files import is_unicode
from bixse.data.sources import FlagEmbeddingFile, LightBlueFiles, QrelsFile, UmbrelaFile
from bixse.data.sources.arctic import ArcticFolder
from bixse.data.sources.e5 import E5Files
from bixse.data.sources.nvidia import NvidiaFile
from bixse.data.sources.own_pairs import OwnPairs
from bixse.data.sources.reading import RowErrors
from bixse.data.sources.table import TableColumns, TableFiles, WandsFolder
from bixse.data.sources.tevatron import TevatronFiles
from bixse.data.sources.trec_texts import BeirFolder, TrecFiles
from bixse.data.sources.tuples import TupleFiles
from bixse.errors import BixseError, InvalidFileError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bixse.data.sources import Judgement, JudgementSource

UMBRELA = [
    {
        "model": "m",
        "query": f"q{i}",
        "passage": {"doc": {"segment": "p"}, "docid": str(i)},
        "prediction": "##final score: 1",
        "judgment": i % 4,
        "result_status": 1,
    }
    for i in range(4)
]
LIGHTBLUE = [
    {
        "question": f"q{i // 2}",
        "context": f"c{i}",
        "row_id": i // 2,
        "dataset_name": "lsat",
        "language": "en",
        "label": i % 2 == 0,
        "doc_id": ["a"],
        "32B_score_probs": [0.1, 0.2, 0.3, 0.2, 0.1],
        "32B_score_probs_rev": [0.0, 0.0, 0.3, 0.3, 0.3],
        "prob_exp_val": 3.0,
    }
    for i in range(4)
]
BGE = [
    {"query": f"q{i}", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [0.9], "neg_scores": [0.1 * i, 0.3]}
    for i in range(4)
]
QRELS = "q1 0 d1 3\nq1 0 d2 0\nq2 0 d1 1\nq2 0 d2 2\n"
BEIR = "query-id\tcorpus-id\tscore\nq1\td1\t3\nq1\td2\t0\nq2\td1\t1\n"
TOY = Collection("toy", {"d1": Document("", "a"), "d2": Document("", "b")}, {"q1": "x", "q2": "y"})


SCORED = [
    {
        **row,
        **{
            key: [{**passage, "score": 0.5} for passage in row[key]]
            for key in ("positive_passages", "negative_passages")
        },
    }
    for row in files.TEVATRON
]
TUPLES_CSV = 'anchor,positive,negative\na,b,c\n"d, e",f,g\n'
LABELLED = [{"sentence1": f"q{i}", "sentence2": "d", "label": i} for i in range(4)]
LISTED = [{**row, "label": [3.5, -1.0, 0.5]} for row in files.TUPLES]
GRADED = [{"query": f"q{i}", "document": "d", "grade": i, "query_id": i, "task": "t"} for i in range(4)]
COLUMNS = TableColumns(query="search", document="item", grade="stars", task="department")
BESIDE = {**files.ARCTIC, **files.BEIR, **files.TREC, **files.WANDS}
"""Whole files that lie beside the one that is damaged."""


def corpus(path: Path) -> Path:
    return files.put(path.parent, {"docs.jsonl": files.lines(files.CORPUS)}) / "docs.jsonl"


def tevatron(path: Path) -> TevatronFiles:
    return TevatronFiles(path, None, corpus(path))


def arctic(path: Path) -> ArcticFolder:
    return ArcticFolder(path.parent)


def trec(path: Path) -> TrecFiles:
    qrels, topics, collection = (path.parent / name for name in files.TREC)
    return TrecFiles(qrels, GradeScale(0, 3), topics, [collection])


def beir(path: Path) -> BeirFolder:
    return BeirFolder(path.parent if path.suffix == ".jsonl" else path.parents[1], GradeScale(0, 2))


READERS: dict[str, tuple[str, bytes, Callable[[Path], JudgementSource]]] = {
    "umbrela": ("rows.jsonl", files.lines(UMBRELA), UmbrelaFile),
    "lightblue jsonl": ("rows.jsonl", files.lines(LIGHTBLUE), LightBlueFiles),
    "lightblue parquet": ("rows.parquet", files.parquet(LIGHTBLUE), LightBlueFiles),
    "flagembedding": ("rows.jsonl", files.lines(BGE), lambda path: FlagEmbeddingFile(path, "prob")),
    "qrels": ("qrels.txt", QRELS.encode(), lambda path: QrelsFile(path, GradeScale(0, 3))),
    "qrels beir": ("qrels.tsv", BEIR.encode(), lambda path: QrelsFile(path, GradeScale(0, 3), TOY)),
    "e5": ("nq.jsonl", files.E5["hotpot_qa"], E5Files),
    "tevatron": ("rows.jsonl", files.lines(files.TEVATRON), TevatronFiles),
    "tevatron scores": ("rows.jsonl", files.lines(SCORED), lambda path: TevatronFiles(path, "prob")),
    "tevatron ids": ("rows.jsonl", files.lines(files.TEVATRON_IDS), tevatron),
    "tuples jsonl": ("rows.jsonl", files.lines(files.TUPLES), TupleFiles),
    "tuples csv": ("rows.csv", TUPLES_CSV.encode(), TupleFiles),
    "tuples labels": ("rows.jsonl", files.lines(LABELLED), lambda path: TupleFiles(path, GradeScale(0, 5))),
    "tuples scores": ("rows.jsonl", files.lines(LISTED), lambda path: TupleFiles(path, score_map="logit")),
    "arctic relations": ("relations.parquet", files.ARCTIC["relations.parquet"], arctic),
    "arctic documents": ("documents.parquet", files.ARCTIC["documents.parquet"], arctic),
    "nvidia": ("rows.json", json.dumps(files.NVIDIA).encode(), lambda path: NvidiaFile(path, corpus(path))),
    "nvidia texts": ("rows.jsonl", files.lines(files.NVIDIA_INLINE), NvidiaFile),
    "beir corpus": ("corpus.jsonl", files.BEIR["corpus.jsonl"], beir),
    "beir qrels": ("qrels/test.tsv", files.BEIR["qrels/test.tsv"].encode(), beir),
    "trec qrels": ("2019qrels-pass.txt", files.TREC["2019qrels-pass.txt"].encode(), trec),
    "trec topics": ("topics.tsv", files.TREC["topics.tsv"].encode(), trec),
    "trec collection": ("collection.tsv.gz", files.TREC["collection.tsv.gz"], trec),
    "wands labels": ("label.csv", files.WANDS["label.csv"].encode(), lambda path: WandsFolder(path.parent)),
    "wands products": ("product.csv", files.WANDS["product.csv"].encode(), lambda path: WandsFolder(path.parent)),
    "table csv": ("rows.csv", files.TABLE.encode(), lambda path: TableFiles(path, GradeScale(1, 5), COLUMNS)),
    "table jsonl": ("rows.jsonl", files.lines(GRADED), lambda path: TableFiles(path, GradeScale(0, 3))),
    "pairs": ("rows.jsonl", files.lines(files.PAIRS[:4]), OwnPairs),
    "pairs parquet": ("rows.parquet", files.parquet(files.PAIRS[:4]), OwnPairs),
}  # fmt: skip
NASTY = [
    b"\xff",
    b"\x00",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"}",
    b"[",
    b",",
    b"null",
    b"NaN",
    b"1e999",
    b"-5",
    b"\\ud800",
    b"\t",
]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with some bytes changed, cut out, put in or doubled."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        length = draw(st.integers(0, 30))
        kind = draw(st.sampled_from(["flip", "cut", "put", "double", "end"]))
        if kind == "flip" and found:
            found[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del found[at : at + length]
        elif kind == "put":
            found[at:at] = draw(st.sampled_from(NASTY))
        elif kind == "double":
            found[at:at] = found[at : at + length]
        elif kind == "end":
            del found[at:]
    return bytes(found)


def check(source: JudgementSource) -> list[Judgement]:
    """Rows that keep their word, until the end or a clear error."""
    taken = []
    try:
        for row in source.rows():
            assert row.query_id and row.document_id
            for text in (row.query, row.document, row.query_id, row.document_id, row.text, row.judge, row.task or ""):
                assert text is None or is_unicode(text)
            assert all(text is None or text.strip() for text in (row.query, row.document))
            assert (row.grade is not None) == (row.status == "graded")
            if row.grade is not None:
                assert source.scale.minimum <= row.grade <= source.scale.maximum
                assert 0.0 <= (row.relevance or 0.0) <= 1.0
            else:
                assert row.status in ("no-option", "off-scale", "no-probabilities", "no-grade") and row.detail
            assert all(math.isfinite(share) for _, shares in row.orders for share in shares)
            taken.append(row)
    except BixseError as error:
        assert "; expected " in str(error) and "; fix: " in str(error)
    return taken


def read_damaged(folder: Path, name: str, data: st.DataObject) -> None:
    file, content, reader = READERS[name]
    if not (folder / "topics.tsv").exists():
        files.put(folder, BESIDE)
    files.put(folder, {file: data.draw(damaged(content))})
    try:
        source = reader(folder / file)
    except BixseError as error:
        assert "; expected " in str(error) and "; fix: " in str(error)
        return
    check(source)
    source.close()


HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=100, deadline=None, suppress_health_check=HEALTH)
@given(data=st.data())
def test_damaged_files_give_rows_or_a_clear_error(tmp_path: Path, name: str, data: st.DataObject) -> None:
    read_damaged(tmp_path, name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@settings(max_examples=1000, deadline=None, suppress_health_check=HEALTH)
@given(data=st.data())
def test_a_thousand_damaged_files(tmp_path: Path, name: str, data: st.DataObject) -> None:
    read_damaged(tmp_path, name, data)


VALUES: list[Any] = [
    None, "", " ", "x", "2", 0, 1, -1, 3, 7, 0.5, 1e308, -1e308, math.nan, math.inf, 10**400, True, [], {}, "\ud800",
    [0.5], [0.2] * 5, [0.0] * 5, ["a"], [None], [[1]], {"text": "t"}, {"doc": {}}, {"doc": {"segment": 1}}, "a\x00b",
]  # fmt: skip


LINES = [name for name, (file, _, _) in READERS.items() if file.endswith(".jsonl") and file != "corpus.jsonl"]
"""Readers whose rows are lines of JSON."""


@pytest.mark.parametrize("name", LINES)
@settings(max_examples=60, deadline=None, suppress_health_check=HEALTH)
@given(data=st.data())
def test_no_row_is_lost_in_silence(
    tmp_path: Path, name: str, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for_lost_rows(tmp_path, name, data, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@settings(max_examples=1000, deadline=None, suppress_health_check=HEALTH)
@given(data=st.data())
def test_no_row_of_a_thousand_files_is_lost_in_silence(
    tmp_path: Path, name: str, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for_lost_rows(tmp_path, name, data, monkeypatch)


def look_for_lost_rows(tmp_path: Path, name: str, data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    file, content, reader = READERS[name]
    rows = [json.loads(line) for line in content.splitlines()]
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.sampled_from(rows))
        key = data.draw(st.sampled_from(sorted({key for row in rows for key in row})))
        if data.draw(st.booleans()):
            row[key] = data.draw(st.sampled_from(VALUES))
        else:
            row.pop(key, None)
    path = tmp_path / file
    path.write_bytes(files.lines(rows))
    source = reader(path)
    faulty: set[int | None] = set()
    told = RowErrors.add

    def noted(faults: RowErrors, row: int | None, *rest: Any) -> None:
        faulty.add(row)
        told(faults, row, *rest)

    monkeypatch.setattr(RowErrors, "add", noted)
    taken = {row.row for row in check(source)}
    monkeypatch.undo()
    if name == "flagembedding" and not taken:  # looks at the whole file before the first row
        with pytest.raises(BixseError):
            list(reader(path).rows())
    else:
        assert taken | faulty == set(range(1, len(rows) + 1))
        assert not taken & faulty
    if faulty:
        with pytest.raises(InvalidFileError):
            list(reader(path).rows())
