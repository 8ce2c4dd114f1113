import errno
import os
import random
import resource
import shutil
import stat
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import bixse
from bixse.errors import ConfigError, InputError, StorageError
from bixse.files import files
from bixse.files.files import HASHES_FILE, damage, drop_hashes, write_hashes, write_with_hash
from bixse.files.parquet import footer_of, read_table, save_table, table_writer
from bixse.settings import parse_yaml, read_settings


def write(folder, content):
    path = folder / "file.txt"
    path.write_bytes(content)
    return path


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
        read_settings(path)
    assert (caught.value.where, got in caught.value.got) == (str(path), True)


@pytest.mark.parametrize("inner", ['{"a": 1, "b": 2, "a": 3}', '[{"a": 1, "a": 1}]', '{"b": {"a": null, "a": null}}'])
def test_json_with_a_repeated_key_is_refused_at_any_depth(inner):
    with pytest.raises(ValueError, match="'a'"):
        files.parse_json(f'{{"outer": {inner}}}')


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {a: 1}\n", "a: &x {k: 1}\nb: *x\n", "b: &x {k: 1}\nc: {<<: *x, k: 2}\n", "1: a\n'1': b\n", ""]
)
def test_equal_keys_of_other_mappings_are_no_repeats(text):
    assert parse_yaml(text) == yaml.safe_load(text)


def test_settings_with_aliases_a_byte_order_mark_and_line_ends_of_other_systems_are_read(tmp_path):
    assert files.read_text(write(tmp_path, b"\xef\xbb\xbfa\r\nb\rc\n")) == "a\nb\nc\n"
    assert read_settings(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: {c: x}\r\n")) == {"a": 1, "b": {"c": "x"}}
    assert read_settings(write(tmp_path, b"a: &x [1]\nb: [*x, *x]")) == {"a": [1], "b": [[1], [1]]}
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    assert len(read_settings(write(tmp_path, "\n".join(lines).encode()))) == 60, "each alias is looked at once"


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


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "1_Pooling/config.json", "weights.bin", "README.md"):
        (folder / name).write_bytes(random.Random(name).randbytes(50))
    write_hashes(folder)
    return folder


def test_hashes_are_those_of_sha256sum(folder):
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert files.file_hash(write(folder.parent, b"abc")) == expected
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

    def write(path, content, real=files.write_atomically):
        writes.append(path)
        if len(writes) == last:
            raise StorageError("stopped")
        real(path, content)

    monkeypatch.setattr(files, "write_atomically", write)
    with pytest.raises(StorageError):
        write_with_hash(folder / "config.json", f"content {last}")
    assert damage(folder) is None


TABLE = pa.table({"a": [f"text {i % 9} of a page" for i in range(60)], "b": [i / 60 for i in range(60)]})


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


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
    pq.write_table(TABLE, path)
    assert read_table(path).equals(TABLE), "a file without checksums is read"
    path.write_bytes(b"PAR1 and no more")
    for read in (read_table, footer_of):
        with pytest.raises(InputError) as caught:
            read(path)
        assert caught.value.where == str(path)


def test_only_one_module_imports_pyarrow_parquet():
    source = Path(bixse.__file__).parent
    texts = {str(path.relative_to(source)): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    assert [name for name, text in texts.items() if "import pyarrow.parquet" in text] == ["files/parquet.py"]
