"""The rules for files of rows: each is tested here once, for every format that it concerns."""

import bz2
import gzip
import json
import lzma
import math
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.trec import read_qrels, read_run
from bixse.errors import InputError, InvalidFileError
from bixse.files import rows as reading
from bixse.files.files import read_text
from bixse.files.rows import FORMATS, read_blocks, read_rows, text_lines, write_rows
from bixse.files.values import FileColumn
from helpers.row_files import faults, jsonl

TEXT, ID, NUMBER = FileColumn("text"), FileColumn("id", "id"), FileColumn("number", "number", low=0, high=1)
TASK = FileColumn("task", needed=False)
UNIQUE = FileColumn("value", "id", unique=True)
NAMES = [*FORMATS, ".jsonl.gz", ".csv.gz", ".tsv.gz"]
PACKED = [name for name in NAMES if name != ".parquet"]


def put(folder, name, content):
    path = folder / name
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def places(path, *columns):
    return faults(lambda: list(read_rows(path, columns)))


def values_of(path, column):
    return [row[column.name] for _, row in read_rows(path, [column])]


@pytest.mark.parametrize("name", ["rows.xlsx", "rows", "rows.json", "rows.parquet.gz"])
def test_other_formats_are_neither_read_nor_written(tmp_path, name):
    with pytest.raises(InputError):
        list(read_rows(put(tmp_path, name, "x"), [TEXT]))
    with pytest.raises(InputError):
        write_rows(pa.table({"text": ["a"]}), tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_file_without_rows_is_refused(tmp_path, name):
    write_rows(pa.table({"text": pa.array([], pa.string())}), tmp_path / f"rows{name}")
    with pytest.raises(InputError, match="no rows"):
        list(read_rows(tmp_path / f"rows{name}", [TEXT]))


def test_gzip_damaged_in_the_middle_or_cut_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    write_rows(pa.table({"text": [f"{i} " + os.urandom(40).hex() for i in range(5000)]}), path)
    content = path.read_bytes()
    for damaged in (content[:20_000] + bytes(1000) + content[21_000:], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(InputError):
            list(read_rows(path, [TEXT]))


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = put(tmp_path, "rows.csv", b'\xef\xbb\xbftext\r\n"two\r\nlines"\r\n\r\n')
    assert list(read_rows(path, [TEXT])) == [(1, {"text": "two\r\nlines"})]
    path = put(tmp_path, "rows.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}')
    assert list(read_rows(path, [TEXT])) == [(1, {"text": "a"}), (3, {"text": "b"})]


@pytest.mark.parametrize("name", PACKED)
def test_row_that_is_not_utf8_is_named(tmp_path, name):
    content = "text\nx\né\n" if "sv" in name else '{"text": "x"}\n{"text": "é"}\n'
    assert places(put(tmp_path, f"rows{name}", content.encode("latin-1")), TEXT)[0][0] == 2


def test_missing_file_is_named_in_its_packed_form(tmp_path):
    packed = put(tmp_path, "rows.jsonl.gz", "{}")
    with pytest.raises(InputError) as caught:
        list(read_rows(tmp_path / "rows.jsonl", [TEXT]))
    assert f"gunzip -k {packed}" in caught.value.fix


@pytest.mark.parametrize("name", PACKED)
def test_folder_with_rows_of_two_formats_is_refused(tmp_path, name):
    write_rows(pa.table({"text": ["a"]}), tmp_path / "1.parquet")
    (tmp_path / "README.md").write_text("no rows")
    assert values_of(tmp_path, TEXT) == ["a"]
    write_rows(pa.table({"text": ["b"]}), tmp_path / f"2{name}")
    for others in (["1.parquet"], []):
        with pytest.raises(InputError) as caught:
            list(read_rows(tmp_path, [TEXT]))
        assert all(other in caught.value.got for other in [*others, f"2{name}"])
        (tmp_path / "1.parquet").unlink(missing_ok=True)


def test_lines_that_are_no_objects_are_all_named(tmp_path):
    lines = '["a"]\n{"text": \n"text"\n' + "[" * 100_000 + "\nnull\n" + "1" * 5000 + '\n{"text": "a", "text": "b"}\n'
    positions = places(put(tmp_path, "rows.jsonl", lines), TEXT)
    assert positions == [(1, None), (2, None), (3, None), (4, None), (5, None), (6, None), (7, "text")]


def test_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 20)
    long = "x" * (3 << 20)
    row = json.dumps({"text": long})
    assert places(put(tmp_path, "rows.jsonl", f'{{"text": "a"}}\n{row}\n{row}'), TEXT) == [(2, None), (3, None)]
    assert places(put(tmp_path, "rows.csv", f"text\na\n{long}\n"), TEXT) == [(2, None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column", "values", "most"),
    [(".jsonl", FileColumn("value"), ["x" * 1000] * 20_000, 8e6),
     (".parquet", UNIQUE, [f"a-document-{number:09}" for number in range(100_000)], 4e6)],
)  # fmt: skip
def test_memory_is_bounded(tmp_path, name, column, values, most):
    write_rows(pa.table({"value": values}), tmp_path / f"rows{name}")
    tracemalloc.start()
    sizes = [len(block) for block in read_blocks(tmp_path / f"rows{name}", [column])]
    assert (sum(sizes), max(sizes)) == (len(values), reading.BLOCK_ROWS)
    assert tracemalloc.get_traced_memory()[1] < most
    tracemalloc.stop()


def test_missing_and_repeated_columns_are_named(tmp_path):
    assert places(put(tmp_path, "rows.csv", "name;age\nx;3\n"), TEXT, ID) == [(None, "text"), (None, "id")]
    assert places(put(tmp_path, "rows.tsv", "text\tid\ttext\na\t1\tb\n"), TEXT) == [(None, "text")]
    write_rows(pa.table({"id": ["a"]}), tmp_path / "rows.parquet")
    assert places(tmp_path / "rows.parquet", TEXT, ID) == [(None, "text")]
    assert places(put(tmp_path, "rows.jsonl", '{"a": 1}\n'), TEXT, ID) == [(1, "text"), (1, "id")]


@pytest.mark.parametrize("name", NAMES)
def test_columns_have_other_names_and_unknown_columns_are_left_out(tmp_path, name):
    write_rows(pa.table({"_id": ["7"], "extra": [None]}), tmp_path / f"rows{name}")
    columns = [FileColumn("id", "id", other_names=("docid", "_id")), TASK]
    assert list(read_rows(tmp_path / f"rows{name}", columns)) == [(1, {"id": "7", "task": None})]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("a,0,5\na\nb,1\n", [(1, None), (2, None)]),
        ('b,7\na,1\n"never closed,0\nd,1\n', [(1, "number"), (3, None)]),
        ('b,7\na,1\n"x"y,0\n', [(1, "number"), (3, None)]),
    ],
    ids=["no silent shift", "open quote", "text after a quote"],
)
def test_separators_and_quotes_in_the_wrong_position_are_reported_with_errors_before_them(tmp_path, content, where):
    assert places(put(tmp_path, "rows.csv", "text,number\n" + content), TEXT, NUMBER) == where


INVALID = {
    FileColumn("value", "number", low=0, high=1): (
        1.0000001, -0.1, math.nan, math.inf, 10**400, True, None, "high", "1_0", [0.5], {}),
    FileColumn("value", "integer", low=0): [0.5, -1, "x", True, math.inf],
    FileColumn("value"): ["", " \t\n", None, 5, ["a"], True, "half \ud83d"],
    FileColumn("value", "id"): (
        "", " ", None, 1.5, True, ["a"], {}, "\ud83d", "a b", "a\u00a0b", " a", "a\t", math.nan),
    FileColumn("value", "numbers"): [0.5, "0.5", {"0": 1.0}, [0.5, None], ["x"], [math.inf], "[0.1"],
}  # fmt: skip
VALID = {
    "number": ([0, 1.0, 5e-324, "0.5", " 1 "], [0.0, 1.0, 5e-324, 0.5, 1.0]),
    "integer": ([3, "4", 5.0, 2**70], [3, 4, 5, 2**70]),
    "id": ([0, 10**30, "é", "0"], ["0", "1" + "0" * 30, "é", "0"]),
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in INVALID.items() for value in values]
)
def test_invalid_value_is_named(tmp_path, column, value):
    assert places(jsonl(tmp_path / "rows.jsonl", {"value": value}), column) == [(1, "value")]


@pytest.mark.parametrize("kind", VALID)
def test_valid_values_are_converted(tmp_path, kind):
    values, expected = VALID[kind]
    path = jsonl(tmp_path / "rows.jsonl", *({"value": value} for value in values))
    assert values_of(path, FileColumn("value", kind)) == expected


@pytest.mark.parametrize("kind", ["text", "id", "number", "integer", "numbers"])
def test_absent_optional_value_is_none(tmp_path, kind):
    path = put(tmp_path, "rows.jsonl", '{"value": null}\n{"value": ""}\n{"value": " "}\n{"value": NaN}\n{}\n')
    assert values_of(path, FileColumn("value", kind, needed=False)) == [None] * 5


def test_text_that_may_be_empty_needs_its_key(tmp_path):
    column = FileColumn("text", may_be_empty=True)
    path = jsonl(tmp_path / "rows.jsonl", {"text": ""}, {"text": None}, {"text": "a"})
    assert values_of(path, column) == ["", "", "a"]
    assert places(jsonl(tmp_path / "rows.jsonl", {"contents": "a"}), column) == [(1, "text")]


def test_repeat_of_a_unique_value_is_an_error_next_to_others(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", *({"value": value} for value in ("a", 7, " ", "b", "7", None, "a")))
    assert places(path, UNIQUE) == [(row, "value") for row in (3, 5, 6, 7)]
    rows = [{"value": "a"}, {"value": "a", "text": "b"}, {"value": "c", "text": 7}, {"value": "c", "text": "d"}]
    assert places(jsonl(path, *rows), UNIQUE, TEXT) == [(1, "text"), (3, "text")], "an invalid row is no first one"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.tsv", "rows.jsonl", "rows.jsonl.gz"])
def test_repeats_blocks_apart_are_reported_with_the_row_they_repeat(tmp_path, name):
    values = [f"d{number}" for number in range(5 * reading.BLOCK_ROWS)]
    values[4000], values[4500], values[4501] = values[3], values[3999], values[3]
    write_rows(pa.table({"value": values}), tmp_path / name)
    with pytest.raises(InvalidFileError) as caught:
        list(read_blocks(tmp_path / name, [UNIQUE]))
    repeats = [(error.row, error.got.rpartition(" ")[2]) for error in caught.value.errors]
    assert repeats == [(4001, "4"), (4501, "4000"), (4502, "4")]


def test_rows_that_fail_alike_are_one_line_with_their_number(tmp_path):
    lines = [json.dumps({"text": f"{i}", "number": 2 if i % 2 else 0.5}) for i in range(100)]
    lines[1] = "{broken"  # found before values are checked, yet listed in order
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(put(tmp_path, "rows.jsonl", "\n".join(lines)), [TEXT, NUMBER]))
    head, broken, alike = str(caught.value).splitlines()
    assert (caught.value.total, head.endswith(": 2 errors"), broken.split()[1]) == (50, True, "2:")
    assert alike.startswith("  row 4, column 'number': got 2") and "48 more rows alike, for example 6, 8, 10" in alike


def test_message_lists_twenty_errors_of_different_kinds_and_counts_the_rest():
    errors = InvalidFileError(Path("rows.csv"))
    for row in range(30, 0, -1):
        errors.add(row, f"column{row}", "x", "a number", "write it as 0.5")
    head, *listed, rest = str(errors).splitlines()
    assert (head, rest.split()) == ("rows.csv: 30 errors", ["...", "and", "10", "more"])
    assert [int(line.split()[1].strip(",:")) for line in listed] == list(range(1, 21))


def test_numbers_of_postgres_are_read_and_blobs_are_one_error(tmp_path):
    column = FileColumn("value", "numbers")
    texts = ["{0.5,-1e-3}", " {1,2}\n", "[3, 4]", "{}"]
    write_rows(pa.table({"value": texts}), tmp_path / "rows.parquet")
    assert values_of(tmp_path / "rows.parquet", column) == [[0.5, -0.001], [1, 2], [3, 4], []]
    write_rows(pa.table({"value": [bytes(32), bytes(32), b"{1}"]}), tmp_path / "rows.parquet")
    with pytest.raises(InvalidFileError) as caught:
        values_of(tmp_path / "rows.parquet", column)
    assert (caught.value.got, str(caught.value).count("\n")) == ("a blob of 32 bytes", 1)


@pytest.mark.parametrize("name", NAMES)
def test_column_that_no_row_has_is_one_error_with_the_columns_there_are(tmp_path, name):
    path = tmp_path / f"rows{name}"
    write_rows(pa.table({"question": ["a", "b", "c"], "number": [0.5] * 3}), path)
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(path, [TEXT, NUMBER]))
    assert str(caught.value).count("\n") == 1
    assert caught.value.got == "columns 'question, number'" and caught.value.fix == "rename or add 'text'"


def test_facts_of_an_error_are_those_of_its_first_row():
    errors = InvalidFileError(Path("rows.csv"))
    for row in range(3, 9):
        errors.add(row, "number", f"{row}", "a number (0 to 1)", "divide by 8 (the highest)")
    assert (errors.where, errors.got) == ("row 3, column 'number'", "3")
    assert (errors.expected, errors.fix) == ("a number (0 to 1)", "divide by 8 (the highest)")


def test_only_the_first_of_very_many_errors_are_stored(tmp_path):
    path = put(tmp_path, "rows.jsonl", '{"text": "", "number": 7}\n' * 20_000)
    with pytest.raises(InvalidFileError) as caught:
        list(read_rows(path, [TEXT, NUMBER]))
    assert caught.value.total == 40_000
    assert [error.row for error in caught.value.errors[:4]] == [1, 1, 2, 2]
    assert len(caught.value.errors) < 6_000


def test_very_many_kinds_of_errors_are_not_all_stored():
    errors = InvalidFileError(Path("rows.jsonl"))
    for row in range(1, 20_001):
        errors.add(row, f"key{row}", "the key twice", "each key once per object", "keep one of the two values")
    assert errors.total == 20_000 and len(errors.errors) < 6_000


def test_caller_may_go_on_without_invalid_rows(tmp_path):
    errors = InvalidFileError(tmp_path)
    path = put(tmp_path, "rows.csv", "text,number\na,0\n,1\nb,x\nc,1\n")
    assert [number for number, _ in read_rows(path, [TEXT, NUMBER], errors)] == [1, 4]
    assert [(error.row, error.column) for error in errors.errors] == [(2, "text"), (3, "number")]


def test_lines_of_text_that_are_blank_or_not_utf8_are_left_out(tmp_path):
    errors = InvalidFileError(tmp_path)
    path = put(tmp_path, "run.gz", b"\xef\xbb\xbfa\r\n \n\xe9\nb")
    assert [(number, line) for number, line, _ in text_lines(path, errors)] == [(1, "a"), (4, "b")]
    assert [error.row for error in errors.errors] == [3]


@pytest.mark.parametrize("name", NAMES)
def test_stopped_write_leaves_the_old_file(tmp_path, name):
    def batches():
        yield pa.record_batch({"text": ["b"]})
        raise KeyboardInterrupt

    path = put(tmp_path, f"rows{name}", "old")
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_rows(pa.RecordBatchReader.from_batches(pa.schema({"text": pa.string()}), batches()), path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_parquet_types_of_data_frames_are_read(tmp_path):
    columns = {
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "id": pa.array([7, 8], pa.int32()),
        "number": pa.array([0, 1], pa.float16()),
        "task": pa.array(["x", None], pa.large_string()),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert [list(row.values()) for _, row in read_rows(tmp_path / "rows.parquet", [TEXT, ID, NUMBER, TASK])] == [
        ["a", "7", 0.0, "x"], ["b", "8", 1.0, None],
    ]  # fmt: skip
    write_rows(pa.table({"text": [b"a"], "number": [b"1"]}), tmp_path / "rows.parquet")
    assert places(tmp_path / "rows.parquet", TEXT, NUMBER) == [(1, "text"), (1, "number")], "bytes are no text"


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
finite = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    FileColumn("text"): (texts, pa.string()),
    FileColumn("number", "number"): (finite, pa.float64()),
    FileColumn("integer", "integer"): (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    FileColumn("task", needed=False): (st.none() | texts, pa.string()),
    FileColumn("numbers", "numbers", needed=False): (
        st.none() | st.lists(finite, min_size=1, max_size=3), pa.list_(pa.float64())
    ),
}  # fmt: skip
"""Column -> values of it, and their type in Parquet."""
ANY_ROW = st.fixed_dictionaries({column.name: values for column, (values, _) in VALUES.items()})


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ANY_ROW, min_size=1, max_size=4))
def test_any_rows_survive_writing_and_reading(tmp_path, name, rows):
    schema = pa.schema([(column.name, kind) for column, (_, kind) in VALUES.items()])
    write_rows(pa.Table.from_pylist(rows, schema).to_reader(max_chunksize=2), tmp_path / f"rows{name}")
    assert [row for _, row in read_rows(tmp_path / f"rows{name}", list(VALUES))] == rows


NASTY = [*(bytes([byte]) for byte in b'\xff\x00\n\r"{}[,\t\\'), b"\xed\xa0\x80", b"NaN", b"\xef\xbb\xbf"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1), cut=st.integers(0, 4), inserted=st.sampled_from(NASTY))
def test_any_file_gives_valid_rows_or_an_error_that_names_it(tmp_path, name, position, cut, inserted):
    path = tmp_path / f"rows{name}"
    table = {"text": ["a, b", 'c "d"', "é"], "id": ["1", "2", "3"], "number": [0.0, 0.5, 1.0]}
    write_rows(pa.table(table), path)
    content = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    start = int(position * len(content))
    put(tmp_path, f"rows{name}", content[:start] + inserted + content[start + cut :])
    try:
        for _, row in read_rows(path, [TEXT, ID, NUMBER]):
            assert row["text"].strip() and row["id"].split() == [row["id"]] and 0 <= row["number"] <= 1
    except InputError as error:
        assert str(path) in str(error)


READERS = {
    "file.txt": read_text,
    "file.run": read_run,
    "file.tsv": read_qrels,
    **{f"rows{name}": lambda path: values_of(path, TEXT) for name in NAMES},
}
OF_TEXT = [name for name in READERS if name != "rows.parquet"]
OF_ROWS = [name for name in READERS if name != "file.txt"]
NOT_TEXT = {
    "utf-16": ("é text".encode("utf-16"), "iconv -f utf-16 "),
    "utf-16 without its mark": ("é text".encode("utf-16-le"), "iconv -f utf-16le "),
    "gzip": (gzip.compress(b"text"), "gunzip"),
    "bzip2": (bz2.compress(b"text"), "bunzip2"),
    "xz": (lzma.compress(b"text"), "unxz"),
}


def refused(name, path):
    with pytest.raises(InputError) as caught:
        READERS[name](path)
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", READERS)
def test_missing_file_and_folder_are_refused(tmp_path, name):
    path = tmp_path / name
    assert refused(name, path).fix == "check the path"
    path.mkdir()
    assert refused(name, path).fix == "check the path"


@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.parametrize("kind", NOT_TEXT)
def test_bytes_that_are_no_utf8_text_get_the_command_that_converts_them(tmp_path, name, kind):
    content, command = NOT_TEXT[kind]
    assert command in refused(name, put(tmp_path, name, content)).fix


@pytest.mark.parametrize("name", ["file.txt", "file.run", "file.tsv", "rows.jsonl", "rows.jsonl.gz"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["no-bom", "bom"])
def test_latin1_names_the_byte(tmp_path, name, start):
    error = refused(name, put(tmp_path, name, start + "café".encode("latin-1")))
    assert "byte 0xe9" in str(error) and "iconv -f latin1 " in str(error)


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b"\n \t\n"])
def test_empty_file_is_refused(tmp_path, name, content):
    refused(name, put(tmp_path, name, content))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"text\n", b"PAR1" + b"\0" * 200 + b"PAR1"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz"])
def test_what_is_no_parquet_and_no_gzip_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(name, tmp_path / name)
