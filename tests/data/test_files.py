from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest

from bixse.errors import ConfigError, InputError, StorageError
from bixse.files.files import append_line, file_hash, read_settings, read_text, storage_errors, write_atomically


def write(folder, content):
    path = folder / "file.txt"
    path.write_bytes(content)
    return path


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.txt: got 'No such file or directory'; expected .* fix"):
        read_text(tmp_path / "nothing.txt")


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no-bom", "bom"])
def test_latin1_names_the_byte_and_its_line(tmp_path, bom):
    with pytest.raises(InputError, match=r"got byte 0xe9 in line 3; .* `iconv -f latin1 "):
        read_text(write(tmp_path, bom + "a\nb\ncafé".encode("latin-1")))


def test_utf16_is_named(tmp_path):
    with pytest.raises(InputError, match="iconv -f utf-16 "):
        read_text(write(tmp_path, "text".encode("utf-16")))


def test_utf16_without_its_mark_is_named(tmp_path):
    with pytest.raises(InputError, match="iconv -f utf-16le "):
        read_text(write(tmp_path, "é text".encode("utf-16-le")))


@pytest.mark.parametrize(
    ("packed", "fix"), [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz")]
)
def test_a_packed_file_is_named(tmp_path, packed, fix):
    with pytest.raises(InputError, match=fix) as caught:
        read_text(write(tmp_path, packed(b"text")))
    assert "iconv" not in str(caught.value)


def test_bom_and_line_ends(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"


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
        (b"pairs: &x [*x]", "no valid YAML"),
        (b"a: &x {b: [1, {c: *x}]}", "no valid YAML"),
        (b"&x {a: *x}", "no valid YAML"),
    ],
)
def test_no_settings(tmp_path, content, found):
    with pytest.raises(ConfigError, match=f"file.txt: got .*{found}.*; expected .*; fix: "):
        read_settings(write(tmp_path, content))


def test_settings(tmp_path):
    assert read_settings(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: {c: x}\r\n")) == {"a": 1, "b": {"c": "x"}}
    assert read_settings(write(tmp_path, b"a: &x [1]\nb: [*x, *x]")) == {"a": [1], "b": [[1], [1]]}


def test_aliases_of_aliases_are_looked_at_once_each(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    assert len(read_settings(write(tmp_path, "\n".join(lines).encode()))) == 60


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("old", [None, b"old content"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, old):
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError, match=r"file.txt: got No space left on device; .* free disk space"):
        write_atomically(path, "new content")
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if old is None else ["file.txt"])
    assert old is None or path.read_bytes() == old


def test_ctrl_c_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_the_file_should_be(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match=r"taken: got a folder; expected .*; fix: "):
        write_atomically(tmp_path / "taken", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


@contextmanager
def umask(value):
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_writing_makes_folders_and_files_of_the_mode_that_is_asked_for(tmp_path, mask, expected):
    path = tmp_path / "a" / "b" / "file.txt"
    with umask(mask):
        write_atomically(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert mode(path) == expected


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o444])
def test_a_file_that_is_there_keeps_its_mode(tmp_path, kept):
    path = write(tmp_path, b"old")
    path.chmod(kept)
    with umask(0o022):
        write_atomically(path, "new")
    assert (path.read_text(), mode(path)) == ("new", kept)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(Path("real") / "file.txt")
    write_atomically(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "file.txt").read_text() == "new"
    (tmp_path / "later.txt").symlink_to(Path("real") / "new.txt")
    write_atomically(tmp_path / "later.txt", "first")
    assert (tmp_path / "real" / "new.txt").read_text() == "first"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["file.txt", "later.txt", "link.txt", "new.txt"]


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(StorageError, match=r"link: got a device; expected a file"):
        write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "pipe").is_fifo()


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (fsync(handle), done.append("fsync")))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("replace"), replace(path, target)))
    write_atomically(tmp_path / "file.txt", "text")
    assert done == ["fsync", "replace"]


# --- errors of storage


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError("Not enough free space to write 80000000 bytes after offset 128"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_a_full_disk_is_recognised(tmp_path, error):
    with (
        pytest.raises(StorageError, match=r"got .*; expected to write there; fix: free disk space"),
        storage_errors(tmp_path),
    ):
        raise error


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.ENOENT, "check that the path is right"),
        (errno.EACCES, "make the folder writable"),
        (errno.EROFS, "make the folder writable"),
        (errno.ENOTDIR, "check that the path is right"),
    ],
)
def test_another_error_of_storage_asks_for_no_space(tmp_path, number, mend):
    with pytest.raises(StorageError) as caught, storage_errors(tmp_path):
        raise OSError(number, os.strerror(number), "elsewhere.txt")
    assert f"got {os.strerror(number)} (elsewhere.txt); expected to write there; fix: {mend}" in str(caught.value)
    assert "space" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), InputError("No space left"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_error_of_storage_passes(tmp_path, error):
    with pytest.raises(type(error)) as caught, storage_errors(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("numbers", [4, 1_000_000])
def test_torch_on_a_full_disk(numbers):
    import torch

    with pytest.raises(StorageError, match="free disk space"), storage_errors(Path("/dev/full")):
        torch.save({"weight": torch.zeros(numbers)}, "/dev/full")


def test_a_line_that_fits_in_part_leaves_nothing(tmp_path):
    path, before = write(tmp_path, b"first\n"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
    try:
        with pytest.raises(StorageError):
            append_line(path, "of this line the system writes six bytes before it says that there is no more room")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "first\n"
    append_line(path, "second")
    assert path.read_text() == "first\nsecond\n"


def test_hash_is_that_of_sha256sum(tmp_path):
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert file_hash(write(tmp_path, b"abc")) == expected
