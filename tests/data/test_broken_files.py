"""One corpus of files that no reader can use: each error names the file and its fix."""

import bz2
import gzip
import lzma

import pytest

from bixse.data.trec import read_qrels, read_run
from bixse.errors import InputError
from bixse.files.files import read_text
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn


def rows(path):
    return list(read_rows(path, [FileColumn("text")]))


READERS = {
    "file.txt": read_text,
    "file.run": read_run,
    "file.tsv": read_qrels,
    **{f"rows{suffix}": rows for suffix in (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".parquet")},
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


def put(folder, name, content):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


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
