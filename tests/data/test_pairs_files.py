from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.graded_pairs import GradedPairs, text_id
from bixse.data.pairs_files import load_graded_pairs, load_pairs, save_graded_pairs
from bixse.errors import InputError, InvalidFileError, StorageError

SUFFIXES = (".parquet", ".jsonl", ".csv", ".tsv")
ROW = {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}


def jsonl(folder: Path, *rows: Any) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def raw(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(InvalidFileError) as caught:
        load_graded_pairs(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {len(caught.value.errors)} error")
    assert all("; expected " in str(fault) and "; fix: " in str(fault) for fault in caught.value.errors)
    return [str(fault) for fault in caught.value.errors]


# --- the file itself


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_and_a_folder(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="got no such file"):
        load_graded_pairs(tmp_path / f"pairs{suffix}")
    (tmp_path / f"pairs{suffix}").mkdir()
    with pytest.raises(InputError, match="got a folder"):
        load_graded_pairs(tmp_path / f"pairs{suffix}")


@pytest.mark.parametrize("name", ["pairs.xlsx", "pairs", "pairs.json"])
def test_another_format(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"expected one of \.parquet, \.jsonl, \.csv, \.tsv"):
        load_graded_pairs(raw(tmp_path, name, "x"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_text_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    with pytest.raises(InputError, match=r"no rows|a column 'query'"):
        load_graded_pairs(raw(tmp_path, f"pairs{suffix}", content))


def test_a_header_without_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got no rows"):
        load_graded_pairs(raw(tmp_path, "pairs.csv", "query,document,relevance\n"))


def test_a_parquet_file_without_rows(tmp_path: Path) -> None:
    schema = pa.schema([("query", pa.string()), ("document", pa.string()), ("relevance", pa.float64())])
    pq.write_table(schema.empty_table(), tmp_path / "pairs.parquet")
    with pytest.raises(InputError, match="got no rows"):
        load_graded_pairs(tmp_path / "pairs.parquet")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_latin1(tmp_path: Path, suffix: str) -> None:
    path = raw(tmp_path, f"pairs{suffix}", "query,document,relevance\ncafé,a,1\n".encode("latin-1"))
    with pytest.raises(InputError, match="got byte 0xe9 in line 2; expected UTF-8"):
        load_graded_pairs(path)


def test_bom_and_windows_line_ends(tmp_path: Path) -> None:
    path = raw(tmp_path, "pairs.csv", b'\xef\xbb\xbfquery,document,relevance\r\ncopy,"two\r\nlines",0.5\r\n')
    assert list(load_graded_pairs(path).rows()) == [
        {
            "query_id": text_id("copy"),
            "query": "copy",
            "document_id": text_id("two\r\nlines"),
            "document": "two\r\nlines",
            "relevance": 0.5,
        }
    ]
    path = raw(tmp_path, "pairs.jsonl", b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert load_graded_pairs(path).queries == ["copy a folder"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"query,document,relevance\n", b"PAR1" + b"\0" * 200 + b"PAR1"])
def test_no_parquet(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"unreadable Parquet .*fix: write or fetch it again"):
        load_graded_pairs(raw(tmp_path, "pairs.parquet", content))


def test_parquet_damaged_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    rows = [{**ROW, "query": f"query {i} " + "x" * 50} for i in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), path, use_dictionary=False, compression="zstd")
    content = bytearray(path.read_bytes())
    content[200:1200] = bytes(1000)
    with pytest.raises(InputError, match="unreadable Parquet"):
        load_graded_pairs(raw(tmp_path, "pairs.parquet", bytes(content)))
    with pytest.raises(InputError, match="unreadable Parquet"):
        load_graded_pairs(raw(tmp_path, "pairs.parquet", path.read_bytes()[:-30]))


# --- its shape


def test_a_file_that_is_not_graded_pairs(tmp_path: Path) -> None:
    found = faults(raw(tmp_path, "pairs.csv", "name;age\nx;3\n"))
    assert len(found) == 3
    assert "column 'query': got columns 'name;age'; expected a column 'query'" in found[0]


def test_a_missing_column(tmp_path: Path) -> None:
    assert "column 'relevance'" in faults(raw(tmp_path, "pairs.tsv", "query\tdocument\na\tb\n"))[0]
    pq.write_table(pa.table({"query": ["a"], "relevance": [1.0]}), tmp_path / "pairs.parquet")
    assert "column 'document'" in faults(tmp_path / "pairs.parquet")[0]
    found = faults(jsonl(tmp_path, {"query": "a"}, ROW))
    assert found[0].startswith("row 1, column 'document': got nothing")
    assert found[1].startswith("row 1, column 'relevance': got nothing")


def test_a_column_twice(tmp_path: Path) -> None:
    path = raw(tmp_path, "pairs.csv", "query,document,relevance,query\na,b,1,c\n")
    assert "column 'query': got 2 columns of that name" in faults(path)[0]


def test_a_comma_outside_quotes_is_no_silent_shift(tmp_path: Path) -> None:
    path = raw(tmp_path, "pairs.csv", "query,document,relevance\na,b,0.5,0.7\na,b\n")
    found = faults(path)
    assert "row 1: got 4 columns; expected 3 as in the header" in found[0]
    assert "row 2: got 2 columns" in found[1]


@pytest.mark.parametrize("content", ['a,b,1\nc,"never closed,0.5\nd,e,1\n', 'a,b,1\nc,"x"y,0.5\n'])
def test_a_bad_quote_names_its_row(tmp_path: Path, content: str) -> None:
    path = raw(tmp_path, "pairs.csv", "query,document,relevance\n" + content)
    (found,) = faults(path)
    assert found.startswith("row 2: got")
    assert "close every double quote" in found


def test_a_bad_quote_keeps_the_faults_before_it(tmp_path: Path) -> None:
    found = faults(raw(tmp_path, "pairs.csv", 'query,document,relevance\na,b,7\nc,"open,0.5\n'))
    assert [line.split(":")[0] for line in found] == ["row 1, column 'relevance'", "row 2"]


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    path = raw(tmp_path, "pairs.jsonl", '["a", "b", 1.0]\n{"query": \n"text"\n' + "[" * 100_000 + "\nnull\n")
    assert [line.split(":")[0] for line in faults(path)] == [f"row {row}" for row in (1, 2, 3, 4, 5)]


def test_a_json_array_instead_of_lines(tmp_path: Path) -> None:
    (found,) = faults(raw(tmp_path, "pairs.jsonl", json.dumps([ROW, ROW])))
    assert "expected a JSON object" in found


# --- its cells


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0000001, "1.0000001"),
        (-0.1, "-0.1"),
        (3, "3"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (10**400, "1000"),
        (True, "True"),
        (None, "null"),
        ("high", "'high'"),
        ("", "''"),
        ("1_0", "'1_0'"),
        ([0.5], "[0.5]"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_relevance_that_is_none(tmp_path: Path, value: object, shown: str) -> None:
    (found,) = faults(jsonl(tmp_path, {**ROW, "relevance": value}))
    assert found.startswith(f"row 1, column 'relevance': got {shown}")
    assert "expected a number in [0, 1]" in found


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, "0.5", " 1 ", 5e-324])
def test_relevance_that_is_one(tmp_path: Path, value: object) -> None:
    assert load_graded_pairs(jsonl(tmp_path, {**ROW, "relevance": value})).relevance.tolist() == [float(value)]  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["query", "document"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [("", "an empty text"), (" \t\n", "an empty text"), (None, "null"), (5, "5"), (["a"], "['a']"), ("\ud83d", "'")],
)
def test_texts_that_are_none(tmp_path: Path, column: str, value: object, shown: str) -> None:
    (found,) = faults(jsonl(tmp_path, {**ROW, column: value}))
    assert found.startswith(f"row 1, column '{column}': got {shown}")


def test_bytes_in_parquet_are_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": [b"a"], "document": ["b"], "relevance": [b"1"]}), tmp_path / "pairs.parquet")
    assert [line.split(":")[0] for line in faults(tmp_path / "pairs.parquet")] == [
        "row 1, column 'query'",
        "row 1, column 'relevance'",
    ]


@pytest.mark.parametrize("identifier", [1.5, True, ["a"], {"a": 1}, "\ud83d"])
def test_ids_that_are_none(tmp_path: Path, identifier: object) -> None:
    (found,) = faults(jsonl(tmp_path, {**ROW, "query_id": identifier}))
    assert "column 'query_id'" in found


@pytest.mark.parametrize("identifier", [None, "", math.nan])
def test_absent_ids_are_made_from_the_text(tmp_path: Path, identifier: object) -> None:
    pairs = load_graded_pairs(jsonl(tmp_path, {**ROW, "query_id": identifier}))
    assert list(pairs.query_ids) == [text_id("copy a folder")] == ["f21ca126cf2f02a5"]


def test_whole_numbers_are_ids(tmp_path: Path) -> None:
    pairs = load_graded_pairs(jsonl(tmp_path, {**ROW, "query_id": 0, "document_id": 7}))
    assert (list(pairs.query_ids), list(pairs.document_ids)) == (["0"], ["7"])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", 5),
        ("judge", ["x"]),
        ("grade", "good"),
        ("grade", True),
        ("grade", math.inf),
        ("grade_probs", "0.5"),
        ("grade_probs", {"0": 1.0}),
        ("grade_probs", [0.5, None]),
    ],
)
def test_optional_columns_are_checked(tmp_path: Path, column: str, value: object) -> None:
    assert f"column '{column}'" in faults(jsonl(tmp_path, {**ROW, column: value}))[0]


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    pairs = load_graded_pairs(jsonl(tmp_path, {**ROW, "color": {"any": "thing"}, "task": ""}))
    assert pairs.extra == {}


# --- rows against each other


def test_the_same_pair_twice_is_kept_once(tmp_path: Path) -> None:
    assert len(load_graded_pairs(jsonl(tmp_path, ROW, ROW, {**ROW, "relevance": "1.0"}))) == 1


def test_the_same_pair_with_two_relevances(tmp_path: Path) -> None:
    (found,) = faults(jsonl(tmp_path, ROW, {**ROW, "document": "other"}, {**ROW, "relevance": 0.25}))
    assert found.startswith("row 3, column 'relevance': got 0.25 where row 1 has 1.0 for the same pair")


def test_one_id_with_two_texts(tmp_path: Path) -> None:
    first, second = {**ROW, "document_id": "d1"}, {**ROW, "document_id": "d1", "document": "shutil.copy"}
    (found,) = faults(jsonl(tmp_path, first, second))
    assert found.startswith("row 2, column 'document_id': got 'd1' with another text than in row 1")


def test_one_id_may_name_a_query_and_a_document(tmp_path: Path) -> None:
    assert len(load_graded_pairs(jsonl(tmp_path, {**ROW, "query_id": "1", "document_id": "1"}))) == 1


def test_fifty_faulty_rows_show_twenty_and_the_count_in_order(tmp_path: Path) -> None:
    rows = [{**ROW, "query": f"query {i}", "relevance": 2 if i % 2 else 0.5} for i in range(100)]
    lines = [json.dumps(row) for row in rows]
    lines[1] = "{broken"  # found while parsing, yet listed in its place
    path = raw(tmp_path, "pairs.jsonl", "\n".join(lines))
    with pytest.raises(InvalidFileError) as caught:
        load_graded_pairs(path)
    head, *listed, rest = str(caught.value).splitlines()
    assert head.endswith("pairs.jsonl: 50 errors")
    assert rest == "  ... and 30 more"
    assert [int(line.split()[1].strip(",:")) for line in listed] == list(range(2, 42, 2))


def test_every_fault_of_a_row_is_told(tmp_path: Path) -> None:
    assert len(faults(jsonl(tmp_path, {"query": "", "document": None, "relevance": 9, "grade": "x"}))) == 4


# --- writing


@pytest.mark.parametrize("suffix", [".xlsx", "", ".json"])
def test_writing_another_format(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="expected one of"):
        save_graded_pairs(GradedPairs.from_rows([ROW]), tmp_path / f"pairs{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_nothing(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="got no pairs"):
        save_graded_pairs(GradedPairs.from_rows([]), tmp_path / f"pairs{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"pairs{suffix}"
    save_graded_pairs(GradedPairs.from_rows([ROW]), path)
    before = path.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(StorageError, match="No space left"):
        save_graded_pairs(GradedPairs.from_rows([{**ROW, "relevance": 0.0}]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".PARQUET", ".CSV"])
def test_a_round_trip_with_every_column(tmp_path: Path, suffix: str) -> None:
    rows: list[dict[str, Any]] = [
        {**ROW, "query_id": "q1", "task": "nli", "grade": 3, "grade_probs": [0.25, 0.75], "judge": "me"},
        {**ROW, "document": 'quote " comma , tab \t line \n \r end \\', "relevance": 1 / 3, "grade": 2.5},
    ]
    pairs = GradedPairs.from_rows(rows)
    save_graded_pairs(pairs, tmp_path / f"pairs{suffix}")
    again = load_graded_pairs(tmp_path / f"pairs{suffix}")
    assert list(again.rows()) == list(pairs.rows())
    assert again.content_hash() == pairs.content_hash()


CHARACTERS = st.characters(exclude_categories=["Cs"])
texts = st.text(CHARACTERS, min_size=1, max_size=20).filter(str.strip)
optional_text = st.none() | st.text(CHARACTERS, min_size=1, max_size=5)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def valid_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(st.lists(st.tuples(texts, texts), min_size=1, max_size=6, unique=True))
    return [
        {
            "query": query,
            "document": document,
            "relevance": draw(st.floats(0, 1)),
            "task": draw(optional_text),
            "grade": draw(st.none() | finite),
            "grade_probs": draw(st.none() | st.lists(finite, min_size=1, max_size=3)),
        }
        for query, document in keys
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=valid_rows())
def test_any_valid_rows_survive_writing_and_reading(tmp_path: Path, suffix: str, rows: list[dict[str, Any]]) -> None:
    pairs = GradedPairs.from_rows(rows)
    path = tmp_path / f"pairs{suffix}"
    save_graded_pairs(pairs, path)
    assert list(load_graded_pairs(path).rows()) == list(pairs.rows())


def test_pairs_to_be_graded_need_no_relevance(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        '{"query": "q", "document": "d", "task": "t", "grade": "none yet"}\n'
        '{"query_id": "7", "query": "q2", "document_id": "x", "document": "d", "relevance": null}\n'
        '{"query_id": "7", "query": "q2", "document_id": "x", "document": "d"}\n'
    )
    first, second = load_pairs(path)  # the third is the second again
    assert (first.query, first.task, first.document_id) == ("q", "t", text_id("d"))
    assert (second.query_id, second.document_id, second.task) == ("7", "x", None)


def test_faults_of_pairs_to_be_graded_are_told_together(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("query_id,query,document\n1,a,b\n1,other,c\n2,,d\n")
    with pytest.raises(InvalidFileError) as caught:
        load_pairs(path)
    assert [(fault.row, fault.column) for fault in caught.value.errors] == [(2, "query_id"), (3, "query")]
    path.write_text("query,answer\na,b\n")
    with pytest.raises(InvalidFileError, match="'document'"):
        load_pairs(path)
