import random
import shutil
import subprocess

import pytest

import bixse.files.files as module
from bixse.errors import StorageError
from bixse.files.files import HASHES_FILE, damage, drop_hashes, write_hashes, write_with_hash


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
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert damage(folder) is not None, bit
    path.write_bytes(content)
    assert damage(folder) is None


def test_missing_truncated_or_unreadable_file_is_named(folder):
    path = folder / "weights.bin"
    for change in (lambda: path.write_bytes(b""), path.unlink, path.mkdir):
        change()
        assert "weights.bin" in str(damage(folder))


def test_pages_for_people_and_added_files_are_not_checked(folder):
    (folder / "README.md").write_text("edited")
    (folder / "notes.txt").write_text("mine")
    assert damage(folder) is None


def test_folder_without_hashes_is_not_checked(folder):
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
