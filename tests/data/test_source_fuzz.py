"""Whatever is in a file: rows that can be used, or an error that says what to do; no line is lost in silence."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.collection import Collection, Document
from bixse.data.files import is_unicode
from bixse.data.sources import FlagEmbeddingFile, LightBlueFiles, QrelsFile, UmbrelaFile
from bixse.data.sources.reading import FaultList
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


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, compression="none")
    return sink.getvalue().to_pybytes()


READERS: dict[str, tuple[str, bytes, Callable[[Path], JudgementSource]]] = {
    "umbrela": ("rows.jsonl", lines(UMBRELA), UmbrelaFile),
    "lightblue jsonl": ("rows.jsonl", lines(LIGHTBLUE), LightBlueFiles),
    "lightblue parquet": ("rows.parquet", parquet(LIGHTBLUE), LightBlueFiles),
    "flagembedding": ("rows.jsonl", lines(BGE), lambda path: FlagEmbeddingFile(path, "prob")),
    "qrels": ("qrels.txt", QRELS.encode(), lambda path: QrelsFile(path, GradeScale(0, 3))),
    "qrels beir": ("qrels.tsv", BEIR.encode(), lambda path: QrelsFile(path, GradeScale(0, 3), TOY)),
}
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
                assert row.status in ("no-option", "off-scale", "no-probabilities") and row.detail
            assert all(math.isfinite(share) for _, shares in row.orders for share in shares)
            taken.append(row)
    except BixseError as error:
        assert "; expected " in str(error) and "; to mend: " in str(error)
    return taken


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_rows_or_a_clear_error(tmp_path: Path, name: str, data: st.DataObject) -> None:
    file, content, reader = READERS[name]
    path = tmp_path / file
    path.write_bytes(data.draw(damaged(content)))
    check(reader(path))


VALUES: list[Any] = [
    None, "", " ", "x", "2", 0, 1, -1, 3, 7, 0.5, 1e308, -1e308, math.nan, math.inf, 10**400, True, [], {}, "\ud800",
    [0.5], [0.2] * 5, [0.0] * 5, ["a"], [None], [[1]], {"text": "t"}, {"doc": {}}, {"doc": {"segment": 1}}, "a\x00b",
]  # fmt: skip


@pytest.mark.parametrize("name", ["umbrela", "lightblue jsonl", "flagembedding"])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_row_is_lost_in_silence(
    tmp_path: Path, name: str, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    path.write_bytes(lines(rows))
    source = reader(path)
    faulty: set[int | None] = set()
    told = FaultList.add

    def noted(faults: FaultList, row: int | None, *rest: Any) -> None:
        faulty.add(row)
        told(faults, row, *rest)

    monkeypatch.setattr(FaultList, "add", noted)
    taken = {row.row for row in check(source)}
    monkeypatch.undo()
    if name == "flagembedding" and not taken:  # looks at the whole file before the first row
        with pytest.raises(BixseError):
            list(reader(path).rows())
    else:
        assert taken | faulty == {1, 2, 3, 4}
        assert not taken & faulty
    if faulty:
        with pytest.raises(InvalidFileError):
            list(reader(path).rows())
