import errno
import os
import resource
import stat
from pathlib import Path

import pytest
import yaml

from bixse.errors import ConfigError, InputError, StorageError
from bixse.files import files


def write(folder, content):
    path = folder / "file.txt"
    path.write_bytes(content)
    return path


def test_text_has_no_byte_order_mark_and_unix_line_ends(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfa\r\nb\rc\n")
    assert files.read_text(path) == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"- a\n- b\n", "['a', 'b']"),
        (b"just words", "just words"),
        *((content, "no valid YAML") for content in (
            b"a: [1, 2", b"a: b: c", b"\ta: 1", b"day: 2026-99-99", b"x: !!python/object/apply:os.system ['true']",
            b"[" * 1200, b"pairs: &x [*x]", b"a: &x {b: [1, {c: *x}]}", b"&x {a: *x}",
        )),
        (b"1: one", "1: 'one'"),
        (b"on: 5", "True: 5"),
        (b"seed: 1\nloss: bixse\nseed: 2\n", "'seed' is there twice, again in line 3"),
        (b"optimizer:\n  epochs: 1\n  epochs: 2\n", "'epochs' is there twice, again in line 3"),
        (b"x: [{a: 1, a: 1}]\n", "'a' is there twice, again in line 1"),
        (b'"seed": 1\nseed: 1\n', "'seed' is there twice, again in line 2"),
    ],
)  # fmt: skip
def test_unusable_settings_are_refused(tmp_path, content, got):
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        files.read_settings(path)
    assert (caught.value.where, got in caught.value.got) == (str(path), True)


@pytest.mark.parametrize("inner", ['{"a": 1, "b": 2, "a": 3}', '[{"a": 1, "a": 1}]', '{"b": {"a": null, "a": null}}'])
def test_json_with_a_repeated_key_is_refused_at_any_depth(inner):
    with pytest.raises(ValueError, match="'a'"):
        files.parse_json(f'{{"outer": {inner}}}')


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {a: 1}\n", "a: &x {k: 1}\nb: *x\n", "b: &x {k: 1}\nc: {<<: *x, k: 2}\n", "1: a\n'1': b\n", ""]
)
def test_equal_keys_of_other_mappings_are_no_repeats(text):
    assert files.parse_yaml(text) == yaml.safe_load(text)


def test_settings_with_aliases_and_windows_line_ends_are_read(tmp_path):
    assert files.read_settings(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: {c: x}\r\n")) == {"a": 1, "b": {"c": "x"}}
    assert files.read_settings(write(tmp_path, b"a: &x [1]\nb: [*x, *x]")) == {"a": [1], "b": [[1], [1]]}
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    assert len(files.read_settings(write(tmp_path, "\n".join(lines).encode()))) == 60, "each alias is looked at once"


@pytest.mark.parametrize("old", [[], [b"old content"]])
@pytest.mark.parametrize(
    ("stop", "error"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StorageError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_stopped_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, old, stop, error):
    def fail(_):
        raise stop

    for content in old:
        write(tmp_path, content)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error):
        files.write_atomically(tmp_path / "file.txt", "new content")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == old


@pytest.mark.parametrize(("make", "kind"), [(os.mkdir, "a folder"), (os.mkfifo, "a device")])
def test_folder_and_device_are_not_replaced(tmp_path, make, kind):
    make(tmp_path / "target")
    (tmp_path / "link").symlink_to("target")
    before = (tmp_path / "target").stat()
    with pytest.raises(StorageError, match=f"got {kind}; expected .*; fix: "):
        files.write_atomically(tmp_path / "link", "text")
    assert os.path.samestat((tmp_path / "target").stat(), before)


@pytest.mark.parametrize(
    ("earlier", "mask", "expected"),
    [
        *((None, mask, expected) for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664))),
        *((earlier, 0o022, earlier) for earlier in (0o600, 0o640, 0o444)),
    ],
)
def test_new_file_has_the_mode_of_the_umask_and_an_existing_file_keeps_its_mode(tmp_path, earlier, mask, expected):
    path = tmp_path / "a" / "b" / "file.txt"
    if earlier is not None:
        path.parent.mkdir(parents=True)
        path.touch(earlier)
        path.chmod(earlier)
    before = os.umask(mask)
    try:
        files.write_atomically(path, "é\n")
    finally:
        os.umask(before)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"\xc3\xa9\n", expected)


def test_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(Path("real") / "file.txt")
    files.write_atomically(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "file.txt").read_text() == "new"
    (tmp_path / "later.txt").symlink_to(Path("real") / "new.txt")
    files.write_atomically(tmp_path / "later.txt", "first")
    assert (tmp_path / "real" / "new.txt").read_text() == "first"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["file.txt", "later.txt", "link.txt", "new.txt"]


def test_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (fsync(handle), done.append("fsync")))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("replace"), replace(path, target)))
    files.write_atomically(tmp_path / "file.txt", "text")
    assert done == ["fsync", "replace"]


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        *((OSError(number, os.strerror(number), "elsewhere.txt"), fix) for number, fix in (
            (errno.ENOSPC, "free disk space"),
            (errno.EDQUOT, "free disk space"),
            (errno.ENOENT, "check that the path is right"),
            (errno.ENOTDIR, "check that the path is right"),
            (errno.EACCES, "make the folder writable"),
            (errno.EROFS, "make the folder writable"),
        )),
        (OSError("Not enough free space to write 80000000 bytes after offset 128"), "free disk space"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), "free disk space"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "free disk space"),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "free disk space"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_full_disk_is_recognised_and_other_errors_of_storage_get_their_own_fix(tmp_path, error, fix):
    with pytest.raises(StorageError, match=f"fix: {fix}") as caught, files.storage_errors(tmp_path):
        raise error
    assert getattr(error, "filename", None) is None or "(elsewhere.txt); " in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), InputError("No space left"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_no_storage_pass_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as caught, files.storage_errors(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("numbers", [4, 1_000_000])
def test_torch_on_a_full_disk(numbers):
    import torch

    with pytest.raises(StorageError, match="free disk space"), files.storage_errors(Path("/dev/full")):
        torch.save({"weight": torch.zeros(numbers)}, "/dev/full")


def test_line_that_fits_in_part_leaves_nothing(tmp_path):
    path, before = write(tmp_path, b"first\n"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
    try:
        with pytest.raises(StorageError):
            files.append_line(path, "the system writes six bytes of this line and then reports that there is no space")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "first\n"
    files.append_line(path, "second")
    assert path.read_text() == "first\nsecond\n"


def test_hash_is_that_of_sha256sum(tmp_path):
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert files.file_hash(write(tmp_path, b"abc")) == expected
