"""The rules for files of rows: each is tested here once, for every format that it concerns."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.errors import InputError, InvalidFileError, StorageError
from bixse.files import rows as reading
from bixse.files.rows import FORMATS, read_blocks, read_rows, text_lines, write_rows
from bixse.files.values import FileColumn

TEXT, ID, NUMBER = FileColumn("text"), FileColumn("id", "id"), FileColumn("number", "number", low=0, high=1)
NAMES = [*FORMATS, ".jsonl.gz", ".csv.gz", ".tsv.gz"]
PACKED = [name for name in NAMES if name != ".parquet"]


def put(folder, name, content):
    path = folder / name
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def jsonl(folder, *values, column="value"):
    return put(folder, "rows.jsonl", "".join(json.dumps({column: value}) + "\n" for value in values))


def places(path, *columns):
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(path, columns))
    assert caught.value.path == path
    assert all(error.got and error.expected and error.fix for error in caught.value.errors)
    return [(error.row, error.column) for error in caught.value.errors]


# --- the file


@pytest.mark.parametrize("name", ["rows.xlsx", "rows", "rows.json", "rows.parquet.gz"])
def test_another_format_is_neither_read_nor_written(tmp_path, name):
    with pytest.raises(InputError):
        list(read_rows(put(tmp_path, name, "x"), [TEXT]))
    with pytest.raises(InputError):
        write_rows(pa.table({"text": ["a"]}), tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_a_folder_or_without_rows(tmp_path, name):
    path = tmp_path / f"rows{name}"
    for _ in range(2):
        with pytest.raises(InputError):
            list(read_rows(path, [TEXT]))
        path.mkdir(exist_ok=True)
    path.rmdir()
    write_rows(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match="no rows"):
        list(read_rows(path, [TEXT]))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" \n"])
def test_an_empty_text_file(tmp_path, content):
    for name in (".jsonl", ".csv"):
        with pytest.raises(InputError):
            list(read_rows(put(tmp_path, f"rows{name}", content), [TEXT]))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"text\n", b"PAR1" + b"\0" * 200 + b"PAR1"])
def test_no_parquet_and_no_gzip(tmp_path, content):
    for name in ("rows.parquet", "rows.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            list(read_rows(tmp_path / name, [TEXT]))


def test_files_that_are_damaged_in_the_middle(tmp_path):
    table = pa.table({"text": [f"{i} " + os.urandom(40).hex() for i in range(5000)]})
    for name in ("rows.parquet", "rows.jsonl.gz"):
        write_rows(table, tmp_path / name)
        content = bytearray((tmp_path / name).read_bytes())
        for damaged in (content[:20_000] + bytes(1000) + content[21_000:], content[:-30]):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(InputError):
                list(read_rows(tmp_path / name, [TEXT]))


def test_a_byte_order_mark_and_windows_line_ends(tmp_path):
    path = put(tmp_path, "rows.csv", b'\xef\xbb\xbftext\r\n"two\r\nlines"\r\n\r\n')
    assert list(read_rows(path, [TEXT])) == [(1, {"text": "two\r\nlines"})]
    path = put(tmp_path, "rows.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}')
    assert list(read_rows(path, [TEXT])) == [(1, {"text": "a"}), (3, {"text": "b"})]


@pytest.mark.parametrize("name", PACKED)
def test_other_encodings(tmp_path, name):
    row = "text\nx\né\n" if "sv" in name else '{"text": "x"}\n{"text": "é"}\n'
    assert places(put(tmp_path, f"rows{name}", row.encode("latin-1")), TEXT)[0][0] == 2
    with pytest.raises(InputError, match="utf-16"):
        list(read_rows(put(tmp_path, f"rows{name}", row.encode("utf-16")), [TEXT]))


@pytest.mark.parametrize("name", PACKED)
def test_utf16_without_its_mark(tmp_path, name):
    with pytest.raises(InputError, match="utf-16le"):
        list(read_rows(put(tmp_path, f"rows{name}", '{"text": "x"}\n'.encode("utf-16-le")), [TEXT]))


@pytest.mark.parametrize("name", PACKED)
def test_gzip_under_another_name(tmp_path, name):
    path = put(tmp_path, f"rows{name}", gzip.compress(b'{"text": "x"}\n'))
    with pytest.raises(InputError, match="got gzip") as caught:
        list(read_rows(path, [TEXT]))
    assert "gunzip" in str(caught.value) and "iconv" not in str(caught.value)


def test_a_file_that_is_there_packed(tmp_path):
    packed = put(tmp_path, "rows.jsonl.gz", "{}")
    with pytest.raises(InputError) as caught:
        list(read_rows(tmp_path / "rows.jsonl", [TEXT]))
    assert f"gunzip -k {packed}" in str(caught.value)


def test_a_folder_without_parquet_names_the_file_that_it_has(tmp_path):
    put(tmp_path, "rows.csv", "text\na\n")
    with pytest.raises(InputError, match=r"rows\.csv"):
        list(read_rows(tmp_path, [TEXT]))


@pytest.mark.parametrize("other", PACKED)
def test_a_folder_of_parquet_and_other_rows_names_both(tmp_path, other):
    write_rows(pa.table({"text": ["a"]}), tmp_path / "1.parquet")
    (tmp_path / "README.md").write_text("of no rows")
    assert [row["text"] for _, row in read_rows(tmp_path, [TEXT])] == ["a"]
    write_rows(pa.table({"text": ["b"]}), tmp_path / f"2{other}")
    with pytest.raises(InputError) as caught:
        list(read_rows(tmp_path, [TEXT]))
    assert "1.parquet" in str(caught.value) and f"2{other}" in str(caught.value)


def test_lines_that_are_no_objects(tmp_path):
    lines = '["a"]\n{"text": \n"text"\n' + "[" * 100_000 + "\nnull\n" + "1" * 5000 + '\n{"text": "a", "text": "b"}\n'
    found = places(put(tmp_path, "rows.jsonl", lines), TEXT)
    assert found == [(1, None), (2, None), (3, None), (4, None), (5, None), (6, None), (7, "text")]


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 20)
    long = "x" * (3 << 20)
    row = json.dumps({"text": long})
    assert places(put(tmp_path, "rows.jsonl", f'{{"text": "a"}}\n{row}\n{row}'), TEXT) == [(2, None), (3, None)]
    assert places(put(tmp_path, "rows.csv", f"text\na\n{long}\n"), TEXT) == [(2, None)]


def test_memory_is_bounded(tmp_path):
    text = "x" * 1000
    write_rows(pa.table({"text": [text] * 20_000}), tmp_path / "rows.jsonl")
    tracemalloc.start()
    sizes = [len(block) for block in read_blocks(tmp_path / "rows.jsonl", [TEXT])]
    assert (sum(sizes), max(sizes)) == (20_000, reading.BLOCK_ROWS)
    assert tracemalloc.get_traced_memory()[1] < 8e6
    tracemalloc.stop()


# --- its columns


def test_columns_that_are_missing_or_there_twice(tmp_path):
    assert places(put(tmp_path, "rows.csv", "name;age\nx;3\n"), TEXT, ID) == [(None, "text"), (None, "id")]
    assert places(put(tmp_path, "rows.tsv", "text\tid\ttext\na\t1\tb\n"), TEXT) == [(None, "text")]
    write_rows(pa.table({"id": ["a"]}), tmp_path / "rows.parquet")
    assert places(tmp_path / "rows.parquet", TEXT, ID) == [(None, "text")]
    assert places(put(tmp_path, "rows.jsonl", '{"a": 1}\n'), TEXT, ID) == [(1, "text"), (1, "id")]


@pytest.mark.parametrize("name", NAMES)
def test_other_names_and_other_columns(tmp_path, name):
    write_rows(pa.table({"_id": ["7"], "extra": [None]}), tmp_path / f"rows{name}")
    columns = [FileColumn("id", "id", other_names=("docid", "_id")), FileColumn("task", needed=False)]
    assert list(read_rows(tmp_path / f"rows{name}", columns)) == [(1, {"id": "7", "task": None})]


def test_a_separator_outside_quotes_is_no_silent_shift(tmp_path):
    assert places(put(tmp_path, "rows.csv", "text,id\na,0,5\na\nb,c\n"), TEXT, ID) == [(1, None), (2, None)]


@pytest.mark.parametrize("content", ['a,1\n"never closed,0\nd,1\n', 'a,1\n"x"y,0\n'])
def test_a_bad_quote_keeps_the_errors_before_it(tmp_path, content):
    found = places(put(tmp_path, "rows.csv", "text,number\nb,7\n" + content), TEXT, NUMBER)
    assert found == [(1, "number"), (3, None)]


# --- its values


@pytest.mark.parametrize("value", [1.0000001, -0.1, math.nan, math.inf, 10**400, True, None, "high", "1_0", [0.5], {}])
def test_values_that_are_no_number_in_a_range(tmp_path, value):
    assert places(jsonl(tmp_path, 0.5, value), FileColumn("value", "number", low=0, high=1)) == [(2, "value")]


def test_values_that_are_numbers(tmp_path):
    values = [0, 1.0, 5e-324, "0.5", " 1 "]
    found = [row["value"] for _, row in read_rows(jsonl(tmp_path, *values), [FileColumn("value", "number", high=1)])]
    assert found == [0.0, 1.0, 5e-324, 0.5, 1.0]


def test_values_that_are_whole_numbers(tmp_path):
    found = [
        row["value"] for _, row in read_rows(jsonl(tmp_path, 3, "4", 5.0, 2**70), [FileColumn("value", "integer")])
    ]
    assert found == [3, 4, 5, 2**70]


@pytest.mark.parametrize("value", ["", " \t\n", None, 5, ["a"], True, "half \ud83d"])
def test_values_that_are_no_text(tmp_path, value):
    assert places(jsonl(tmp_path, "a", value), FileColumn("value")) == [(2, "value")]


@pytest.mark.parametrize(
    "value", ["", " ", None, 1.5, True, ["a"], {}, "\ud83d", "a b", "a\u00a0b", " a", "a\t", math.nan]
)
def test_values_that_are_no_id(tmp_path, value):
    assert places(jsonl(tmp_path, "a", value), FileColumn("value", "id")) == [(2, "value")]


def test_whole_numbers_are_ids(tmp_path):
    found = [row["value"] for _, row in read_rows(jsonl(tmp_path, 0, 10**30, "é", "0"), [FileColumn("value", "id")])]
    assert found == ["0", "1" + "0" * 30, "é", "0"]


@pytest.mark.parametrize("value", [0.5, "0.5", {"0": 1.0}, [0.5, None], ["x"], [math.inf], "[0.1"])
def test_values_that_are_no_list_of_numbers(tmp_path, value):
    assert places(jsonl(tmp_path, value), FileColumn("value", "numbers")) == [(1, "value")]


@pytest.mark.parametrize("kind", ["text", "id", "number", "integer", "numbers"])
def test_what_is_absent_is_none_where_it_is_not_needed(tmp_path, kind):
    path = put(tmp_path, "rows.jsonl", '{"value": null}\n{"value": ""}\n{"value": " "}\n{"value": NaN}\n{}\n')
    assert [row["value"] for _, row in read_rows(path, [FileColumn("value", kind, needed=False)])] == [None] * 5


def test_a_text_that_may_be_empty_has_to_be_there(tmp_path):
    path = put(tmp_path, "rows.jsonl", '{"text": ""}\n{"text": null}\n{"text": "a"}\n')
    column = FileColumn("text", may_be_empty=True)
    assert [row["text"] for _, row in read_rows(path, [column])] == ["", "", "a"]
    assert places(put(tmp_path, "rows.jsonl", '{"contents": "a"}\n'), column) == [(1, "text")]


def test_values_that_have_to_be_unique(tmp_path):
    column = FileColumn("value", "id", unique=True)
    assert places(jsonl(tmp_path, "a", 7, " ", "b", "7", None, "a"), column) == [
        (3, "value"), (5, "value"), (6, "value"), (7, "value"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["rows.parquet", "rows.tsv", "rows.jsonl", "rows.jsonl.gz"])
def test_repeats_are_found_blocks_apart_with_the_row_they_repeat(tmp_path, name):
    values = [f"d{number}" for number in range(5 * reading.BLOCK_ROWS)]
    values[4000], values[4500], values[4501] = values[3], values[3999], values[3]
    write_rows(pa.table({"value": values}), tmp_path / name)
    with pytest.raises(InvalidFileError) as caught:
        list(read_blocks(tmp_path / name, [FileColumn("value", "id", unique=True)]))
    found = [(error.row, error.got.rpartition(" ")[2]) for error in caught.value.errors]
    expected = [(4001, 4), (4501, 4000), (4502, 4)]
    assert found == [(row, str(first)) for row, first in expected]


def test_a_row_that_is_left_out_is_not_repeated(tmp_path):
    rows = [{"value": "a"}, {"value": "a", "text": "b"}, {"value": "c", "text": 7}, {"value": "c", "text": "d"}]
    path = put(tmp_path, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert places(path, FileColumn("value", "id", unique=True), TEXT) == [(1, "text"), (3, "text")]


def test_ids_that_differ_take_a_few_bytes_each(tmp_path):
    ids = [f"a-document-{number:09}" for number in range(100_000)]
    write_rows(pa.table({"value": ids}), tmp_path / "rows.parquet")
    tracemalloc.start()
    assert sum(len(block) for block in read_blocks(tmp_path / "rows.parquet", [FileColumn("value", "id", unique=True)]))
    assert tracemalloc.get_traced_memory()[1] < 4e6, "where ids and rows are kept it is 15e6"
    tracemalloc.stop()


def test_bytes_in_parquet_are_no_text(tmp_path):
    write_rows(pa.table({"text": [b"a"], "number": [b"1"]}), tmp_path / "rows.parquet")
    assert places(tmp_path / "rows.parquet", TEXT, NUMBER) == [(1, "text"), (1, "number")]


# --- errors


def test_fifty_errors_show_twenty_by_row_and_the_count(tmp_path):
    lines = [json.dumps({"text": f"{i}", "number": 2 if i % 2 else 0.5}) for i in range(100)]
    lines[1] = "{broken"  # found before the values are looked at, yet listed in its place
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(put(tmp_path, "rows.jsonl", "\n".join(lines)), [TEXT, NUMBER]))
    head, *listed, rest = str(caught.value).splitlines()
    assert (caught.value.total, "50 errors" in head, "30 more" in rest) == (50, True, True)
    assert [int(line.split()[1].strip(",:")) for line in listed] == list(range(2, 42, 2))


def test_of_very_many_errors_the_first_are_kept(tmp_path):
    path = put(tmp_path, "rows.jsonl", '{"text": "", "number": 7}\n' * 20_000)
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(path, [TEXT, NUMBER]))
    assert caught.value.total == 40_000
    assert [error.row for error in caught.value.errors[:4]] == [1, 1, 2, 2]
    assert len(caught.value.errors) < 6_000


def test_a_caller_may_go_on_without_the_rows_that_have_errors(tmp_path):
    errors = InvalidFileError(tmp_path)
    path = put(tmp_path, "rows.csv", "text,number\na,0\n,1\nb,x\nc,1\n")
    assert [number for number, _ in read_rows(path, [TEXT, NUMBER], errors)] == [1, 4]
    assert [(error.row, error.column) for error in errors.errors] == [(2, "text"), (3, "number")]


def test_lines_of_text(tmp_path):
    errors = InvalidFileError(tmp_path)
    path = put(tmp_path, "run.gz", b"\xef\xbb\xbfa\r\n \n\xe9\nb")
    assert [(number, line) for number, line, _ in text_lines(path, errors)] == [(1, "a"), (4, "b")]
    assert [error.row for error in errors.errors] == [3]


# --- writing


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_the_old_file(tmp_path, name, monkeypatch):
    path = tmp_path / f"rows{name}"
    write_rows(pa.table({"text": ["a"]}), path)
    before = path.read_bytes()

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(StorageError):
        write_rows(pa.table({"text": ["b"]}), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_batches_are_written_one_after_the_other(tmp_path):
    schema = pa.schema({"text": pa.string()})
    for name in NAMES:
        batches = (pa.record_batch({"text": [f"{i}"] * 3}) for i in range(4))
        write_rows(pa.RecordBatchReader.from_batches(schema, batches), tmp_path / f"rows{name}")
        assert [row["text"] for _, row in read_rows(tmp_path / f"rows{name}", [TEXT])] == list("000111222333")


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
finite = st.floats(allow_nan=False, allow_infinity=False)
rows = st.fixed_dictionaries(
    {
        "text": texts,
        "number": finite,
        "integer": st.integers(-(2**63), 2**63 - 1),
        "task": st.none() | texts,
        "numbers": st.none() | st.lists(finite, min_size=1, max_size=3),
    }
)
ALL = [TEXT, FileColumn("number", "number"), FileColumn("integer", "integer"), FileColumn("task", needed=False),
       FileColumn("numbers", "numbers", needed=False)]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(rows, min_size=1, max_size=4))
def test_any_rows_survive_writing_and_reading(tmp_path, name, rows):
    types = [pa.string(), pa.float64(), pa.int64(), pa.string(), pa.list_(pa.float64())]
    schema = pa.schema(list(zip([column.name for column in ALL], types, strict=True)))
    write_rows(pa.Table.from_pylist(rows, schema), tmp_path / f"rows{name}")
    assert [row for _, row in read_rows(tmp_path / f"rows{name}", ALL)] == rows


def test_parquet_types_of_data_frames(tmp_path):
    table = pa.table(
        {
            "text": pa.array(["a", "b"]).dictionary_encode(),
            "id": pa.array([7, 8], pa.int32()),
            "number": pa.array([0, 1], pa.float16()),
            "task": pa.array(["x", None], pa.large_string()),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    found = [
        row for _, row in read_rows(tmp_path / "rows.parquet", [TEXT, ID, NUMBER, FileColumn("task", needed=False)])
    ]
    assert found == [
        {"text": "a", "id": "7", "number": 0.0, "task": "x"}, {"text": "b", "id": "8", "number": 1.0, "task": None},
    ]  # fmt: skip


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
    b"\t",
    b"\\",
    b"\xed\xa0\x80",
    b"NaN",
    b"\xef\xbb\xbf",
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1), cut=st.integers(0, 4), put_in=st.sampled_from(NASTY))
def test_whatever_is_in_a_file_gives_rows_or_an_error_that_names_it(tmp_path, name, place, cut, put_in):
    path = tmp_path / f"rows{name}"
    table = {"text": ["a, b", 'c "d"', "é"], "id": ["1", "2", "3"], "number": [0.0, 0.5, 1.0]}
    write_rows(pa.table(table), path)
    content = path.read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    start = int(place * len(content))
    put(tmp_path, f"rows{name}", content[:start] + put_in + content[start + cut :])
    try:
        found = [row for _, row in read_rows(path, [TEXT, ID, NUMBER])]
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert all(
            row["text"].strip() and row["id"].split() == [row["id"]] and 0 <= row["number"] <= 1 for row in found
        )


@pytest.mark.parametrize("value", [0.5, -1, "x", True, math.inf])
def test_values_that_are_no_whole_number(tmp_path, value):
    assert places(jsonl(tmp_path, 3, value), FileColumn("value", "integer", low=0)) == [(2, "value")]
