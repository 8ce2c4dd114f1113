import ast
import random
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bixse
import bixse.files.files as module
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_graded_pairs, save_graded_pairs
from bixse.errors import InputError, StorageError
from bixse.files.files import HASHES_FILE, damage, drop_hashes, write_hashes, write_with_hash
from bixse.files.parquet import column_names, read_table, save_table, table_writer


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "1_Pooling/config.json", "weights.bin", "README.md"):
        (folder / name).write_bytes(random.Random(name).randbytes(50))
    write_hashes(folder)
    return folder


def test_sha256sum_finds_no_damage_either(folder):
    assert damage(folder) is None
    program = shutil.which("sha256sum")
    if program is not None:
        assert subprocess.run([program, "-c", HASHES_FILE], cwd=folder, check=True, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json", "weights.bin", HASHES_FILE])
def test_every_flipped_bit_is_damage(folder, name):
    path = folder / name
    content = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), 60):
        path.write_bytes(flipped(content, bit))
        assert damage(folder) is not None, bit
    path.write_bytes(content)
    assert damage(folder) is None


def test_missing_truncated_or_unreadable_file_is_named(folder):
    path = folder / "weights.bin"
    for change in (lambda: path.write_bytes(b""), path.unlink, path.mkdir):
        change()
        assert "weights.bin" in str(damage(folder))


def test_pages_for_people_added_files_and_folders_without_hashes_are_not_checked(folder):
    (folder / "README.md").write_text("edited")
    (folder / "notes.txt").write_text("mine")
    assert damage(folder) is None
    for _ in range(2):
        drop_hashes(folder)
    (folder / "weights.bin").write_bytes(b"other")
    assert damage(folder) is None
    write_with_hash(folder / "config.json", "{}")
    assert not (folder / HASHES_FILE).exists()


@pytest.mark.parametrize("line", ["../outside", "/etc/hostname", "a/../../b"])
def test_hashes_never_lead_out_of_the_folder(folder, line):
    (folder / HASHES_FILE).write_text(f"{'0' * 64}  {line}\n")
    assert HASHES_FILE in str(damage(folder))
    write_with_hash(folder / "config.json", "new")
    assert damage(folder) is not None, "damaged hashes are not written over"


def test_replaced_file_has_its_hash(folder):
    write_with_hash(folder / "config.json", "new")
    write_with_hash(folder / "head.json", "added")
    assert damage(folder) is None
    assert "head.json" in (folder / HASHES_FILE).read_text()
    (folder / "head.json").write_text("addee")
    assert "head.json" in str(damage(folder))


@pytest.mark.parametrize("last", [1, 2, 3])
def test_replacement_stopped_at_any_write_leaves_no_damage(folder, monkeypatch, last):
    writes = []

    def write(path, content, real=module.write_atomically):
        writes.append(path)
        if len(writes) == last:
            raise StorageError("stopped")
        real(path, content)

    monkeypatch.setattr(module, "write_atomically", write)
    with pytest.raises(StorageError):
        write_with_hash(folder / "config.json", f"content {last}")
    assert damage(folder) is None


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
