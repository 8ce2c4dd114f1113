from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bixse.data.files import file_hash, is_unicode, read_settings, read_text, write_atomically
from bixse.errors import ConfigError, InputError, StorageError


def write(folder: Path, content: bytes) -> Path:
    path = folder / "file.txt"
    path.write_bytes(content)
    return path


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.txt: got 'No such file or directory'; expected .* to mend"):
        read_text(tmp_path / "nothing.txt")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no-bom", "bom"])
def test_latin1_names_the_byte_and_its_line(tmp_path: Path, bom: bytes) -> None:
    with pytest.raises(InputError, match=r"got byte 0xe9 in line 3; .* `iconv -f latin1 "):
        read_text(write(tmp_path, bom + "a\nb\ncafé".encode("latin-1")))


def test_utf16_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="iconv -f utf-16 "):
        read_text(write(tmp_path, "text".encode("utf-16")))


def test_bom_and_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"
    assert read_text(path, keep_line_ends=True) == "a\r\nb\rc\n"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"- a\n- b\n", r"\['a', 'b'\]"),
        (b"just words", "just words"),
        (b"a: [1, 2", "no valid YAML"),
        (b"a: b: c", "no valid YAML"),
        (b"\ta: 1", "no valid YAML"),
        (b"1: one", "1: 'one'"),
        (b"on: 5", "True: 5"),
        (b"day: 2026-99-99", "no valid YAML"),
        (b"x: !!python/object/apply:os.system ['true']", "no valid YAML"),
        (b"[" * 1200, "no valid YAML"),
    ],
)
def test_no_settings(tmp_path: Path, content: bytes, found: str) -> None:
    with pytest.raises(ConfigError, match=f"file.txt: got .*{found}.*; expected .*; to mend: "):
        read_settings(write(tmp_path, content))


def test_settings(tmp_path: Path) -> None:
    assert read_settings(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: {c: x}\r\n")) == {"a": 1, "b": {"c": "x"}}


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile:
    """A file on a disk that is full: what is written before the end is kept, then it fails."""

    def __init__(self, handle: int, mode: str) -> None:
        self.handle = handle

    def __enter__(self) -> FullFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def write(self, data: bytes) -> None:
        os.write(self.handle, data[:3])
        no_space()


@pytest.mark.parametrize("old", [None, b"old content"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(os, "fdopen", FullFile)
    with pytest.raises(StorageError, match=r"file.txt: got No space left on device; .* free disk space"):
        write_atomically(path, "new content")
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if old is None else ["file.txt"])
    assert old is None or path.read_bytes() == old


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(StorageError):
        write_atomically(tmp_path / "file.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    with pytest.raises(StorageError, match="got Permission denied; expected to write there"):
        write_atomically(tmp_path / "new" / "file.txt", "text")


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="to mend"):
        write_atomically(write(tmp_path, b"x") / "below.txt", "text")


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError):
        write_atomically(tmp_path / "taken", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_writing_makes_folders_and_readable_files(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_atomically(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_hash_is_that_of_sha256sum(tmp_path: Path) -> None:
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert file_hash(write(tmp_path, b"abc")) == expected


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert is_unicode("naïve 🎈")
    assert not is_unicode("\ud83d")
