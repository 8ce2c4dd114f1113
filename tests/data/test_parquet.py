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


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bit_in_pairs_is_an_error_that_names_the_file_or_changes_nothing(tmp_path):
    path = tmp_path / "pairs.parquet"
    rows = [{"query": f"query {i // 3}", "document": f"document {i}", "relevance": (i % 5) / 4} for i in range(60)]
    save_graded_pairs(GradedPairs.from_rows(rows), path)
    data, expected = path.read_bytes(), list(load_graded_pairs(path).rows())
    errors = 0
    for bit in random.Random(0).sample(range(8 * len(data)), 400):
        path.write_bytes(flipped(data, bit))
        try:
            assert list(load_graded_pairs(path).rows()) == expected, bit
        except InputError as error:
            assert str(path) in str(error)
            errors += 1
    assert errors > 200


def write_in_parts(table, path):
    with table_writer(path, table.schema) as writer:
        writer.write_table(table.slice(0, 30))
        writer.write_table(table.slice(30))


@pytest.mark.parametrize("write", [save_table, write_in_parts])
def test_every_page_has_a_checksum(tmp_path, write):
    path = tmp_path / "table.parquet"
    write(TABLE, path)
    data = path.read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    errors = 0
    for byte in random.Random(1).sample(range(4, len(data) - footer), 200):
        path.write_bytes(flipped(data, 8 * byte + 2))
        try:
            assert read_table(path).equals(TABLE)  # bits without effect, such as statistics
        except InputError as error:
            errors += "CRC checksum verification failed" in str(error)
    assert errors > 50


def test_columns_are_chosen_and_a_broken_file_is_named(tmp_path):
    path = tmp_path / "table.parquet"
    save_table(TABLE, path)
    assert read_table(path, ["b", "c"]).column_names == ["b"]
    assert column_names(path) == ["a", "b"]
    pq.write_table(TABLE, path)
    assert read_table(path).equals(TABLE), "a file without checksums is read"
    path.write_bytes(b"PAR1 and no more")
    for read in (read_table, column_names):
        with pytest.raises(InputError) as caught:
            read(path)
        assert caught.value.where == str(path)


def test_only_one_module_imports_pyarrow_parquet():
    source = Path(bixse.__file__).parent
    users = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(alias.name == "pyarrow.parquet" for alias in node.names)
    }
    assert users == {"files/parquet.py"}
