"""Adding, replacing, deleting and compacting, against a plain dictionary of the documents."""

from __future__ import annotations

import errno
import json
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_encoder import WordEncoder, documents, expected, write_documents

from bixse.errors import InputError, InvalidFileError, StorageError
from bixse.retrieval import index_build, index_files, index_shards
from bixse.retrieval.index import open_index
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import add_documents, delete_documents, rewrite_index
from bixse.retrieval.index_files import MANIFEST_FILE, read_manifest
from bixse.retrieval.index_kind import KindSettings
from bixse.retrieval.index_manifest import Knobs


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(index_build, "LARGEST_SHARD", 30)


@pytest.fixture
def folder(tmp_path):
    write_documents(tmp_path / "corpus" / "corpus.jsonl", documents(0, 100))
    make_index(WordEncoder(), tmp_path / "corpus", tmp_path / "index", shard_size=10)
    return tmp_path / "index"


def found(folder, query="text version one", top=1000, **words):
    with open_index(folder, WordEncoder(), **words) as index:
        index.check()
        return [(hit.document_id, pytest.approx(hit.cosine, abs=1e-6)) for hit in index.search(query, top=top)]


def state(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- unhappy


def test_faults_of_added_documents_change_nothing(folder, tmp_path):
    before = state(folder)
    file = tmp_path / "add.jsonl"
    file.write_text('{"_id": "d1", "text": "x"}\n{"_id": "d1", "text": "y"}\n{"_id": "n"}\n')
    with pytest.raises(InvalidFileError, match=r"(?s)2 errors.*row 2.*'d1' again, after row 1.*row 3.*no title"):
        add_documents(folder, file, WordEncoder())
    for content, said in (("", "got no rows"), ("x", "one JSON object per line")):
        file.write_text(content)
        with pytest.raises(InputError, match=said):
            add_documents(folder, file, WordEncoder())
    assert state(folder) == before


def test_changes_need_an_index(tmp_path):
    file = write_documents(tmp_path / "add.jsonl", documents(0, 1))
    for call in (
        lambda: add_documents(tmp_path / "none", file, WordEncoder()),
        lambda: delete_documents(tmp_path / "none", ["d1"]),
        lambda: rewrite_index(tmp_path / "none", compact=True),
    ):
        with pytest.raises(InputError, match="got no such folder"):
            call()
    assert not (tmp_path / "none").exists()


def test_unknown_ids_are_told_and_the_others_deleted(folder):
    change = delete_documents(folder, ["d3", "none", "d4", "d3", "no"])
    assert (change.deleted, change.unknown, change.documents) == (2, ("none", "no"), 98)
    assert not {"d3", "d4"} & {name for name, _ in found(folder)}
    before = state(folder)
    assert delete_documents(folder, ["d3"]).unknown == ("d3",)
    assert state(folder) == before, "nothing to do, nothing written"


@pytest.mark.parametrize("place", ["shard", "texts", "manifest", "pending"])
def test_a_full_disk_leaves_the_former_state(folder, tmp_path, monkeypatch, place):
    file = write_documents(tmp_path / "add.jsonl", documents(90, 130, "two"))
    before = found(folder)

    def full(*arguments, **words):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_database(path, connect=sqlite3.connect, **words):
        if words:  # only to be read
            return connect(path, **words)
        raise sqlite3.OperationalError("database or disk is full")

    def full_at_last(path, content, write=index_files.write_atomically):
        with index_files.storage_errors(path):
            return full() if path.name == MANIFEST_FILE else write(path, content)

    with monkeypatch.context() as patch:
        if place == "shard":
            patch.setattr(index_shards, "save", full)
        elif place == "texts":
            patch.setattr(index_shards.sqlite3, "connect", full_database)
        elif place == "pending":
            patch.setattr("bixse.data.io.files.os.fsync", full)
        else:
            patch.setattr(index_files, "write_atomically", full_at_last)
        with pytest.raises(StorageError) as caught:
            add_documents(folder, file, WordEncoder())
    assert "fix: " in str(caught.value)
    assert found(folder) == before
    pending = index_files.read_pending(folder)
    kept = {entry.name for shard in (pending.shards if pending else ()) for entry in shard.files()}
    kept |= {entry.name for entry in read_manifest(folder).files()}
    assert {path.name for path in folder.glob("*-*")} == kept, "what failed takes no room on a full disk"
    assert add_documents(folder, file, WordEncoder()).added == 30
    assert len(found(folder)) == 130
    named = {entry.name for entry in read_manifest(folder).files()}
    assert {path.name for path in folder.iterdir()} == {MANIFEST_FILE, ".lock", *named}, "no file is left over"


# --- what changes do


def test_added_replaced_and_unchanged(folder, tmp_path):
    encoder = WordEncoder()
    new = {**documents(80, 90), **documents(90, 100, "two"), **documents(100, 115)}
    change = add_documents(folder, write_documents(tmp_path / "add.jsonl", new), encoder)
    assert (change.added, change.replaced, change.unchanged, change.documents) == (15, 10, 10, 115)
    assert len(encoder.encoded) == 25, "what is there with this very text is not encoded again"
    now = {**documents(0, 100), **new}
    assert dict(found(folder)) == dict(expected(now, "text version one", 1000))
    with open_index(folder, WordEncoder()) as index:
        (hit,) = index.search("title 95 text of group9 member95 version two", top=1)
    assert (hit.document_id, hit.text) == ("d95", now["d95"][1])
    again = add_documents(folder, tmp_path / "add.jsonl", encoder)
    assert (again.added, again.replaced, again.unchanged, len(encoder.encoded)) == (0, 0, 35, 25)
    named = {entry.name for entry in read_manifest(folder).files()}
    assert {path.name for path in folder.iterdir()} == {MANIFEST_FILE, ".lock", *named}


def test_a_deleted_document_can_come_back(folder, tmp_path):
    delete_documents(folder, ["d7"])
    change = add_documents(folder, write_documents(tmp_path / "add.jsonl", documents(7, 8)), WordEncoder())
    assert (change.added, change.replaced, change.documents) == (1, 0, 100)
    assert dict(found(folder)) == dict(expected(documents(0, 100), "text version one", 1000))


def test_many_small_additions_leave_few_shards(folder, tmp_path):
    written = []
    for number in range(100, 140):
        file = write_documents(tmp_path / "add.jsonl", documents(number, number + 1))
        add_documents(folder, file, WordEncoder())
        written.append(len(read_manifest(folder).shards))
    assert max(written) <= 8, "4 of the corpus, and few of forty additions"
    assert dict(found(folder)) == dict(expected(documents(0, 140), "text version one", 1000))


def test_compaction_drops_what_is_deleted(folder):
    gone = [f"d{number}" for number in range(0, 90, 2)]
    change = delete_documents(folder, gone)
    assert "45 of 100 stored documents are deleted" in change.warnings[0]
    before = found(folder)
    size = sum(file.size for file in read_manifest(folder).files())
    change = rewrite_index(folder, compact=True)
    assert change.warnings == ()
    manifest = read_manifest(folder)
    assert (manifest.rows, manifest.deleted, [shard.rows for shard in manifest.shards]) == (55, None, [30, 25])
    assert sum(file.size for file in manifest.files()) < size
    assert found(folder) == before


def test_an_index_from_which_all_is_deleted(folder, tmp_path):
    delete_documents(folder, list(documents(0, 100)))
    for _ in range(2):
        with open_index(folder, WordEncoder()) as index:
            assert (len(index), index.search("text"), index.search(["text", "of"])) == (0, [], [[], []])
        rewrite_index(folder, compact=True)
    assert read_manifest(folder).rows == 0
    add_documents(folder, write_documents(tmp_path / "add.jsonl", documents(0, 3)), WordEncoder())
    assert dict(found(folder)) == dict(expected(documents(0, 3), "text version one", 3))


def test_a_stopped_addition_goes_on(folder, tmp_path):
    before = found(folder)
    file = write_documents(tmp_path / "add.jsonl", documents(100, 150))
    with pytest.raises(KeyboardInterrupt):
        add_documents(folder, file, WordEncoder(fails_after=35))
    assert found(folder) == before, "an addition is there whole or not at all"
    encoder = WordEncoder()
    assert add_documents(folder, file, encoder).added == 50
    assert len(encoder.encoded) == 20
    assert dict(found(folder)) == dict(expected(documents(0, 150), "text version one", 1000))


def test_a_stopped_addition_is_forgotten_when_the_index_changes(folder, tmp_path):
    file = write_documents(tmp_path / "add.jsonl", {**documents(5, 6, "two"), **documents(100, 150)})
    with pytest.raises(KeyboardInterrupt):
        add_documents(folder, file, WordEncoder(fails_after=35))
    delete_documents(folder, ["d5"])
    encoder = WordEncoder()
    change = add_documents(folder, file, encoder)
    assert (change.added, change.replaced, len(encoder.encoded)) == (51, 0, 51)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60), st.integers(1, 25), st.sampled_from(["one", "two"])),
        st.tuples(st.just("delete"), st.integers(0, 60), st.integers(1, 25)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("kind"), st.sampled_from(["exact", "hnsw", "ivf"])),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_row_of_changes_is_that_of_a_dictionary(steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    now = documents(0, 40)
    write_documents(folder / "corpus" / "corpus.jsonl", now)
    make_index(WordEncoder(), folder / "corpus", folder / "index", shard_size=10)
    for step, *values in steps:
        if step == "add":
            first, number, version = values
            new = documents(first, first + number, version)
            change = add_documents(folder / "index", write_documents(folder / "add.jsonl", new), WordEncoder())
            assert change.added == len(new.keys() - now.keys())
            now |= new
        elif step == "delete":
            names = list(documents(values[0], sum(values)))
            change = delete_documents(folder / "index", names)
            assert change.deleted == len(now.keys() & set(names))
            now = {name: document for name, document in now.items() if name not in names}
        else:
            kind = KindSettings(values[0], Knobs(lists=2, nprobe=2)) if step == "kind" else None
            change = rewrite_index(folder / "index", step == "compact", kind, WordEncoder())
        assert change.documents == len(now)
    for top in (1, 5, 1000):
        best = dict(expected(now, "text version one", top)) if now else {}
        hits = dict(found(folder / "index", top=top))
        assert len(hits) == len(best)
        assert sorted(map(float, (value.expected for value in hits.values()))) == pytest.approx(
            sorted(best.values()), abs=1e-6
        )
        if top == 1000:
            assert hits == best


# --- readers


def test_a_reader_keeps_its_state(folder, tmp_path):
    """All its files are gone from the folder before it has read a text; it answers all the same."""
    old = open_index(folder, WordEncoder())
    names = {file.name for file in old.manifest.files()}
    add_documents(folder, write_documents(tmp_path / "add.jsonl", documents(0, 100, "two")), WordEncoder())
    rewrite_index(folder, compact=True)
    assert not names & {path.name for path in folder.iterdir()}
    assert [hit.document_id for hit in old.search("text version one", top=1000)] == [
        name for name, _ in expected(documents(0, 100), "text version one", 1000)
    ]
    assert {hit.text.split()[-1] for hit in old.search("text", top=1000)} == {"one"}
    old.check()
    old.close()
    assert {name for name, _ in found(folder)} == set(documents(0, 100))


def test_a_state_that_is_replaced_while_it_is_opened(folder, monkeypatch):
    """The manifest was read, and then its files were removed: the new one is read."""
    read = index_files.read_manifest
    seen = []

    def slow(where):
        manifest = read(where)
        if not seen:
            seen.append(manifest.generation)
            rewrite_index(folder, compact=True)
        return manifest

    delete_documents(folder, ["d1"])
    monkeypatch.setattr("bixse.retrieval.index_contents.read_manifest", slow)
    with open_index(folder, WordEncoder()) as index:
        assert index.manifest.generation > seen[0]
        assert len(index.search("text", top=1000)) == 99


def test_manifests_hold_no_number_that_json_lacks(folder):
    json.loads((folder / MANIFEST_FILE).read_text(), parse_constant=lambda name: pytest.fail(name))


def test_rows_of_many_ids_are_found_alike(folder):
    """Few ids are looked up one by one, many by reading all ids of a shard."""
    with open_index(folder, WordEncoder()) as index:
        names = [f"d{number}" for number in range(0, 2000, 3)]
        many = index._contents.find(names)
        few = {name: row for name in names for name, row in index._contents.find([name]).items()}
    assert many == few == {f"d{number}": number for number in range(0, 100, 3)}
    assert np.all(np.diff(list(many.values())) > 0)
