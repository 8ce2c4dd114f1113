from __future__ import annotations

import ast
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bixse
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.errors import InputError
from bixse.files.parquet import column_names, read_table, save_table, table_writer

TABLE = pa.table({"a": [f"text {i % 9} of a page" for i in range(60)], "b": [i / 60 for i in range(60)]})


def pages(data):
    """The bytes of a Parquet file before its footer."""
    return range(4, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def graded():
    return GradedPairs.from_rows(
        {"query": f"how do i copy file {i // 3}", "document": f"document {i}", "relevance": (i % 5) / 4}
        for i in range(60)
    )


def test_a_flipped_bit_in_a_file_of_pairs_is_an_error_that_names_it_or_changes_nothing(tmp_path):
    path = tmp_path / "pairs.parquet"
    save_graded_pairs(graded(), path)
    data, expected = path.read_bytes(), list(load_graded_pairs(path).rows())
    named = 0
    for bit in random.Random(0).sample(range(8 * len(data)), 400):
        path.write_bytes(flipped(data, bit))
        try:
            assert list(load_graded_pairs(path).rows()) == expected, bit
        except InputError as error:
            assert str(path) in str(error)
            named += 1
    assert named > 200


@pytest.mark.parametrize("several", [False, True], ids=["one table", "table after table"])
def test_every_page_has_a_checksum(tmp_path, several):
    path = tmp_path / "table.parquet"
    if several:
        with table_writer(path, TABLE.schema) as writer:
            writer.write_table(TABLE.slice(0, 30))
            writer.write_table(TABLE.slice(30))
    else:
        save_table(TABLE, path)
    data = path.read_bytes()
    seen = 0
    for byte in random.Random(1).sample(pages(data), 200):
        path.write_bytes(flipped(data, 8 * byte + 2))
        try:
            assert read_table(path).equals(TABLE)  # bits that say nothing, such as statistics
        except InputError as error:
            seen += "CRC checksum verification failed" in str(error)
    assert seen > 50


def test_a_file_without_checksums_is_read_as_before(tmp_path):
    pq.write_table(TABLE, tmp_path / "theirs.parquet")
    assert read_table(tmp_path / "theirs.parquet").equals(TABLE)


def test_columns_and_rows(tmp_path):
    path = tmp_path / "table.parquet"
    save_table(TABLE, path)
    assert read_table(path, ["b", "c"]).column_names == ["b"]
    assert column_names(path) == ["a", "b"]
    path.write_bytes(b"PAR1 and no more")
    for read in (read_table, column_names):
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_parquet_is_read_and_written_in_one_place():
    source = Path(bixse.__file__).parent
    users = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(alias.name == "pyarrow.parquet" for alias in node.names)
    }
    assert users == {"files/parquet.py"}
