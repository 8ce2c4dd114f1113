"""Making, opening and searching an index; unhappy paths first."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from word_encoder import DIMENSIONS, WordEncoder, documents, embed, expected, write_documents

from bixse.errors import InputError, InvalidFileError, ModelError, OutputExistsError, StorageError
from bixse.retrieval import index_build
from bixse.retrieval.index import SearchIndex, open_index
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import add_documents, delete_documents
from bixse.retrieval.index_files import MANIFEST_FILE, PENDING_FILE, exclusive, read_manifest

QUERIES = ["group3 version", "member77 text", "title 5", "of"]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Several shards also in a small index."""
    monkeypatch.setattr(index_build, "LARGEST_SHARD", 30)


@pytest.fixture
def corpus(tmp_path):
    write_documents(tmp_path / "corpus" / "corpus.jsonl", documents(0, 100))
    return tmp_path / "corpus"


@pytest.fixture
def folder(corpus, tmp_path):
    make_index(WordEncoder(), corpus, tmp_path / "index", shard_size=30)
    return tmp_path / "index"


def check_message(error: BaseException) -> str:
    message = str(error)
    assert "got " in message and "expected " in message and "fix: " in message, message
    return message


def refused(kind, call, *arguments, **words) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments, **words)
    return check_message(caught.value)


# --- no index, or a damaged one


def test_what_is_no_index(tmp_path, corpus):
    assert "got no such folder" in refused(InputError, open_index, tmp_path / "none", WordEncoder())
    assert "got a folder that is no index" in refused(InputError, open_index, corpus, WordEncoder())
    assert "got a file" in refused(InputError, open_index, corpus / "corpus.jsonl", WordEncoder())


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', '"x"', "[" * 100_000])
def test_a_damaged_manifest(folder, content):
    (folder / MANIFEST_FILE).write_text(content)
    assert f"{folder / MANIFEST_FILE}: got a damaged file" in refused(InputError, open_index, folder, WordEncoder())


def test_an_index_of_a_later_version(folder):
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps({**manifest, "format": 2, "new": True}))
    assert "use a newer bixse" in refused(InputError, open_index, folder, WordEncoder())


def test_a_manifest_that_points_outside_of_its_folder(folder):
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest["shards"][0]["documents"]["name"] = "../corpus/corpus.jsonl"
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    assert "damaged" in refused(InputError, open_index, folder, WordEncoder())


@pytest.mark.parametrize("kind", ["embeddings", "documents"])
def test_a_file_that_was_cut(folder, kind):
    path = next(folder.glob(f"{kind}-*"))
    path.write_bytes(path.read_bytes()[:-1])
    said = refused(InputError, open_index, folder, WordEncoder())
    assert str(path) in said
    assert f"{path.stat().st_size} bytes" in said


@pytest.mark.parametrize("kind", ["embeddings", "documents"])
def test_a_file_that_is_missing(folder, kind):
    path = next(folder.glob(f"{kind}-*"))
    path.unlink()
    assert f"{path}: got a damaged file of the index (no such file)" in refused(
        InputError, open_index, folder, WordEncoder()
    )


@pytest.mark.parametrize("kind", ["embeddings", "documents"])
@pytest.mark.parametrize("place", [0.02, 0.5, 0.98])
def test_a_byte_that_changed(folder, kind, place):
    """Every file is read and held against its checksum before its content is used."""
    path = next(folder.glob(f"{kind}-*"))
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1

    def use():
        with open_index(folder, WordEncoder()) as index:
            index.search(QUERIES[0], top=100)

    path.write_bytes(content)
    assert str(path) in refused(InputError, use)


def test_a_byte_that_changed_in_the_list_of_deleted_rows(folder):
    delete_documents(folder, ["d3"])
    (path,) = folder.glob("deleted-*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert str(path) in refused(InputError, open_index, folder, WordEncoder())


def test_check_reads_what_a_search_does_not(folder):
    path = sorted(folder.glob("documents-*"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with open_index(folder, WordEncoder()) as index:
        assert str(path) in refused(InputError, index.check)


# --- another model


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"dimensions": 16}, "with 16 dimensions; expected the 32"),
        ({"weights": "v" * 64}, "with other weights, modules or tokenizer (hash vvvvvvvvvvvv)"),
        ({"prompts": "q" * 64}, "with other prompts before queries"),
        ({"document_prompt": "passage: "}, "which puts 'passage: ' before documents"),
    ],
)
def test_another_model_is_refused(folder, tmp_path, other, said):
    encoder = WordEncoder(**other)
    assert said in refused(ModelError, open_index, folder, encoder)
    new = write_documents(tmp_path / "new.jsonl", documents(200, 201))
    assert said in refused(ModelError, add_documents, folder, new, encoder)
    assert encoder.encoded == []


def test_a_model_that_has_moved_is_the_same(folder):
    with open_index(folder, WordEncoder(name="elsewhere")) as index:
        assert len(index) == 100


# --- a corpus that cannot be indexed


def test_an_empty_corpus(corpus, tmp_path):
    (corpus / "corpus.jsonl").write_text("\n")
    assert "got no rows" in refused(InputError, make_index, WordEncoder(), corpus, tmp_path / "index")
    (corpus / "corpus.jsonl").unlink()
    assert "no such file" in refused(InputError, make_index, WordEncoder(), corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists(), "what is refused leaves nothing behind"


def test_all_faults_of_a_corpus_together(corpus, tmp_path):
    rows = ['{"_id": "a", "text": "x"}', '{"_id": "a", "text": "y"}', "{", '{"text": "x"}', '{"_id": "b", "text": 0}']
    rows += ['{"_id": "c", "contents": "x"}', '{"_id": "d", "text": "\\ud83d"}', "[]"]
    (corpus / "corpus.jsonl").write_text("\n".join(rows))
    message = refused(InvalidFileError, make_index, WordEncoder(), corpus, tmp_path / "index")
    assert message.splitlines()[0].endswith("corpus.jsonl: 7 errors")
    assert "row 2, column '_id': got 'a' again, after row 1" in message
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("content", ["x", None])
def test_a_folder_with_something_else(corpus, tmp_path, content):
    out = tmp_path / "out"
    if content is None:
        out.write_text("a file")
    else:
        (out / "mine").mkdir(parents=True)
    encoder = WordEncoder()
    assert "choose another --out" in refused(OutputExistsError, make_index, encoder, corpus, out)
    assert encoder.encoded == []


def test_an_index_of_something_else_stays(corpus, folder):
    before = sorted(folder.iterdir())
    write_documents(corpus / "corpus.jsonl", documents(0, 99))
    assert "another model, corpus or settings" in refused(
        OutputExistsError, make_index, WordEncoder(), corpus, folder, shard_size=30
    )
    assert sorted(folder.iterdir()) == before


def test_the_same_index_is_not_made_twice(corpus, folder):
    encoder = WordEncoder()
    change = make_index(encoder, corpus, folder, shard_size=30)
    assert (change.reused, change.documents, encoder.encoded) == (True, 100, [])


def test_unusable_settings(corpus, tmp_path):
    assert "--shard-size" in refused(InputError, make_index, WordEncoder(), corpus, tmp_path / "i", shard_size=0)


# --- searching


def test_what_cannot_be_asked(folder):
    with open_index(folder, WordEncoder()) as index:
        for query in ("", "  ", "caf\udce9"):
            refused(InputError, index.search, query)
            refused(InputError, index.search, ["of", query])
        assert "top" in refused(InputError, index.search, "of", top=0)
        for threshold in (-0.1, 1.1, float("nan")):
            assert "threshold" in refused(InputError, index.search, "of", threshold=threshold)
        index.encoder.head = None
        assert "bixse calibrate" in refused(InputError, index.search, "of", threshold=0.5)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("top", [1, 7, 100, 1000])
def test_the_best_are_those_of_a_product_over_all(folder, query, top):
    with open_index(folder, WordEncoder()) as index:
        found = index.search(query, top=top)
    best = expected(documents(0, 100), query, top)
    assert [hit.document_id for hit in found] == [name for name, _ in best]
    assert [hit.cosine for hit in found] == pytest.approx([cosine for _, cosine in best], abs=1e-6)


def test_a_hit_holds_all_there_is(folder):
    with open_index(folder, WordEncoder()) as index:
        hit = index.search("title 5 text of group0 member5 version one", top=1)[0]
    assert (hit.document_id, hit.title, hit.text) == ("d5", *documents(5, 6)["d5"])
    assert hit.cosine == pytest.approx(1.0)
    assert hit.probability == pytest.approx(1 / (1 + np.exp(-5.0)), abs=1e-6)


def test_equal_texts_stand_in_the_order_of_the_corpus(corpus, tmp_path):
    write_documents(corpus / "corpus.jsonl", {f"d{n}": ("", "the same") for n in (3, 1, 2, 5, 4)})
    make_index(WordEncoder(), corpus, tmp_path / "index", shard_size=2)
    with open_index(tmp_path / "index", WordEncoder()) as index:
        assert [hit.document_id for hit in index.search("same", top=4)] == ["d3", "d1", "d2", "d5"]


def test_a_list_of_queries(folder):
    with open_index(folder, WordEncoder()) as index:
        found = index.search(QUERIES, top=5)
        for hits, query in zip(found, QUERIES, strict=True):
            alone = index.search(query, top=5)
            assert [hit.document_id for hit in hits] == [hit.document_id for hit in alone]
            assert [hit.cosine for hit in hits] == pytest.approx([hit.cosine for hit in alone], abs=1e-6)
        assert index.search([]) == []


def test_a_threshold_keeps_the_probable(folder):
    with open_index(folder, WordEncoder()) as index:
        every = index.search(QUERIES[0], top=50)
        bar = every[20].probability
        assert index.search(QUERIES[0], top=50, threshold=bar) == [hit for hit in every if hit.probability >= bar]
        assert index.search(QUERIES[0], threshold=1.0) == []


def test_half_precision_takes_half_the_disk(corpus, tmp_path, folder):
    half = tmp_path / "half"
    make_index(WordEncoder(), corpus, half, dtype="float16", shard_size=30)
    sizes = [sum(file.stat().st_size for file in where.glob("embeddings-*")) for where in (folder, half)]
    assert 100 * DIMENSIONS * 2 <= sizes[1] < sizes[0] / 2 + 500
    with open_index(half, WordEncoder()) as index:
        found = index.search(QUERIES[0], top=100)
    cosines = dict(expected(documents(0, 100), QUERIES[0], 100))
    assert max(abs(hit.cosine - cosines[hit.document_id]) for hit in found) < 1e-3
    assert any(hit.cosine != pytest.approx(cosines[hit.document_id], abs=1e-7) for hit in found)


@pytest.mark.parametrize(("largest", "rows"), [(30, [30, 30, 30, 10]), (45, [45, 45, 10]), (1000, [100])])
def test_what_lies_on_the_disk(corpus, tmp_path, monkeypatch, largest, rows):
    """Small shards while documents are encoded, large ones when it is done."""
    folder = tmp_path / "index"
    monkeypatch.setattr(index_build, "LARGEST_SHARD", largest)
    make_index(WordEncoder(), corpus, folder, shard_size=20)
    manifest = read_manifest(folder)
    assert [shard.rows for shard in manifest.shards] == rows
    stored = np.concatenate([load_file(folder / shard.embeddings.name)["documents"] for shard in manifest.shards])
    assert stored.dtype == np.float32
    assert np.array_equal(stored, np.stack([embed(f"{title} {text}") for title, text in documents(0, 100).values()]))
    assert {path.name for path in folder.iterdir()} == {
        MANIFEST_FILE,
        ".lock",
        *(file.name for file in manifest.files()),
    }


def test_the_corpus_is_needed_no_more(folder, corpus):
    shutil.rmtree(corpus)
    with open_index(folder, WordEncoder()) as index:
        assert index.search("member42", top=1)[0].title == "title 42"


def test_opening_reads_no_text(folder, monkeypatch):
    """Texts and embeddings are touched by the first search that needs them, and only the shards it needs."""
    from bixse.retrieval.index_files import OpenedFile

    read: list[str] = []
    check = OpenedFile.check
    monkeypatch.setattr(OpenedFile, "check", lambda self: (read.append(self.path.name), check(self))[1])
    with open_index(folder, WordEncoder()) as index:
        assert read == []
        index.search("title 5 text of group0 member5 version one", top=1)
        assert sum(name.startswith("documents") for name in set(read)) == 1


def test_faiss_is_not_needed_for_exact_search(folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    make_index(WordEncoder(), corpus, tmp_path / "other")
    with open_index(folder, WordEncoder()) as index:
        assert index.search("member42", top=1)[0].document_id == "d42"


# --- going on after a kill


def test_a_stopped_index_goes_on_with_its_shards(corpus, tmp_path):
    out = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        make_index(WordEncoder(fails_after=70), corpus, out, shard_size=30)
    assert "run the same `bixse index` command again" in refused(InputError, open_index, out, WordEncoder()).replace(
        "\n", " "
    )
    encoder, bars = WordEncoder(), {}
    make_index(encoder, corpus, out, shard_size=30, progress=lambda title, total: bars.setdefault(title, []).append)
    assert len(encoder.encoded) == 40
    assert encoder.encoded[0].startswith("title 60 ")
    assert list(bars) == ["encode documents", "join shards"]
    assert bars["encode documents"][0] == 60, "the bar begins with what was done"
    assert sum(bars["encode documents"]) == sum(bars["join shards"]) == 100
    with open_index(out, WordEncoder()) as index:
        assert [hit.document_id for hit in index.search("of", top=100)] == [
            name for name, _ in expected(documents(0, 100), "of", 100)
        ]
    assert not (out / PENDING_FILE).exists()


def test_a_stopped_index_of_another_corpus_or_model_is_refused_and_kept(corpus, tmp_path):
    out = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        make_index(WordEncoder(fails_after=70), corpus, out, shard_size=30)
    before = sorted(out.iterdir())
    for encoder in (WordEncoder(weights="v" * 64), WordEncoder(prompts="q" * 64)):
        assert "an unfinished index of another model" in refused(
            OutputExistsError, make_index, encoder, corpus, out, shard_size=30
        )
    refused(OutputExistsError, make_index, WordEncoder(), corpus, out, shard_size=20)
    assert sorted(out.iterdir()) == before


def test_a_shard_that_was_damaged_meanwhile_is_encoded_again(corpus, tmp_path):
    out = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        make_index(WordEncoder(fails_after=70), corpus, out, shard_size=30)
    pending = json.loads((out / PENDING_FILE).read_text())
    (out / pending["shards"][1]["documents"]["name"]).write_bytes(b"")
    encoder = WordEncoder()
    make_index(encoder, corpus, out, shard_size=30)
    assert len(encoder.encoded) == 70
    with open_index(out, WordEncoder()) as index:
        index.check()


def test_a_large_corpus_is_saved_seldom():
    assert index_build.shard_size_for(100, None) == 1024
    assert index_build.shard_size_for(1_000_000, None) == 15_625
    assert index_build.shard_size_for(1_000_000, 10) == 10


# --- one writer


def test_a_second_writer_is_refused(folder, corpus, tmp_path):
    new = write_documents(tmp_path / "new.jsonl", documents(200, 201))
    with exclusive(folder):
        for call in (
            lambda: add_documents(folder, new, WordEncoder()),
            lambda: delete_documents(folder, ["d1"]),
            lambda: make_index(WordEncoder(), corpus, folder, shard_size=30),
        ):
            assert "another process is writing" in refused(StorageError, call)
        with open_index(folder, WordEncoder()) as index:
            assert len(index.search("of", top=100)) == 100
    assert delete_documents(folder, ["d1"]).deleted == 1


def test_an_opened_index_is_closed(folder):
    index = SearchIndex(folder, WordEncoder())
    index.search("of")
    index.close()
    import sqlite3

    with pytest.raises((sqlite3.ProgrammingError, InputError)):
        index.search("of")
