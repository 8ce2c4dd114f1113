import hashlib
import json
import shutil
import tempfile
import tracemalloc

import pyarrow as pa
import pytest

from bixse.data import pydocs
from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.collection_folder import read_corpus
from bixse.data.corpus import Corpus, Document, check_corpus, warn_of_empty
from bixse.errors import InputError, InvalidFileError, StorageError
from bixse.files import parquet
from bixse.files.files import file_hash
from bixse.files.rows import FORMATS, write_rows
from helpers.row_files import faults, jsonl

CORPUS = [{"_id": "d1", "title": "copy", "text": "copies"}, {"_id": "d2", "title": "", "text": "moves"}]
QUERIES = [{"_id": "q1", "text": "copy a file"}]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = HEADER + "q1\td1\t3\nq1\td2\t0\n"


def make(folder, corpus=CORPUS, queries=QUERIES, qrels=QRELS):
    folder.mkdir(exist_ok=True)
    jsonl(folder / "corpus.jsonl", *corpus)
    jsonl(folder / "queries.jsonl", *queries)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_missing_folder_or_part_is_named(tmp_path, name):
    (make(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=name):
        load_collection(tmp_path)
    assert name == "corpus.jsonl" or read_corpus(tmp_path / "corpus.jsonl")["d1"].content == "copy copies"
    for folder, got in (("nothing", "no such folder"), ("qrels/test.tsv", "a file")):
        with pytest.raises(InputError) as caught:
            load_collection(tmp_path / folder)
        assert caught.value.got == got


def test_missing_split_is_refused_with_the_splits_that_exist(tmp_path):
    for split in ("dev", "../qrels/test"):
        with pytest.raises(InputError) as caught:
            load_collection(tmp_path if split != "dev" else make(tmp_path), [split])
        assert caught.value.expected == "one of ['test']"
    (tmp_path / "qrels" / "test.tsv").unlink()
    assert load_collection(tmp_path).qrels == {}
    with pytest.raises(InputError, match="qrels/<split>"):
        load_collection(tmp_path, ["test"])


@pytest.mark.parametrize("qrels", ["", HEADER, HEADER + "q1\td1\t0\n"])
def test_split_without_a_relevant_document_is_refused(tmp_path, qrels):
    with pytest.raises(InputError, match="got no judgement"):
        load_collection(make(tmp_path, qrels=qrels))


def test_judgements_of_unknown_ids_are_counted(tmp_path):
    with pytest.raises(InvalidFileError) as raised:
        load_collection(make(tmp_path, qrels=QRELS + "q1\td9\t1\nq9\td8\t1\n"))
    queries, documents = (error.got for error in raised.value.errors)
    assert "1 of 2" in queries and queries.endswith("'q9'")
    assert "2 of 4" in documents and documents.endswith("'d9', 'd8'")


@pytest.mark.parametrize(
    ("part", "row", "where"),
    [
        ("corpus", {"_id": "a b", "text": "x"}, (3, "_id")),
        ("corpus", {"_id": "d1", "text": "again"}, (3, "_id")),
        ("corpus", {"_id": "d3", "words": "another name"}, (3, "text")),
        ("corpus", {"_id": "d3", "title": ["x"], "text": "x"}, (3, "title")),
        ("queries", {"_id": "q1", "text": "again"}, (2, "_id")),
        ("queries", {"_id": "q2", "text": " "}, (2, "text")),
    ],
)
def test_invalid_row_is_named(tmp_path, part, row, where):
    rows = {"corpus": CORPUS, "queries": QUERIES}[part]
    assert faults(load_collection, make(tmp_path, **{part: [*rows, row]})) == [where]


@pytest.mark.parametrize(("identifier", "text"), [("id", "contents"), ("docid", "body"), ("doc_id", "passage")])
def test_names_of_other_tools_are_read(tmp_path, identifier, text):
    renamed = [{identifier: row["_id"], "title": row["title"], text: row["text"]} for row in CORPUS]
    folder = make(tmp_path / "renamed", renamed, [{"qid": row["_id"], "query": row["text"]} for row in QUERIES])
    plain, read = load_collection(make(tmp_path / "plain")), load_collection(folder)
    assert (read.corpus, read.queries, read.qrels) == (plain.corpus, plain.queries, plain.qrels)


def test_documents_without_title_and_text_stay_and_are_counted(tmp_path):
    empty = [{"_id": "d3", "title": " ", "text": ""}, {"_id": "d4", "text": None}]
    folder = make(tmp_path, corpus=[*CORPUS, *empty], qrels=QRELS + "q1\td3\t1\n")
    assert [text.content for text in load_collection(folder).corpus.values()] == ["copy copies", "moves", "", ""]
    (warning,) = warn_of_empty(["d3", "d4"], 4)
    assert "2 of 4" in warning and "'d3'" in warning
    assert warn_of_empty([], 3) == []
    with pytest.raises(InputError, match="2 documents"):
        read_corpus(make(tmp_path / "all", corpus=empty) / "corpus.jsonl")


@pytest.mark.parametrize(
    ("query", "grade", "quoted"),
    [
        ("Does it copy the file?", 1, True),
        ("does  it, COPY the\nfile", 1, True),
        ("does it copy the file", 0, False),
        ("does it copy the fil", 1, False),  # ends within a word
        ("it copy the file", 3, False),  # too short: the name of a topic
        ("the file does it copy", 3, False),
        ("?! ... -", 3, False),
    ],
)
def test_queries_that_stand_in_a_relevant_document_are_counted(tmp_path, query, grade, quoted):
    corpus = [
        {"_id": "d1", "title": "", "text": "First: does it copy the file? It does."},
        {"_id": "d2", "text": query},
    ]
    folder = make(tmp_path, corpus, [{"_id": "q1", "text": query}], HEADER + f"q1\td1\t{grade}\nq1\tother\t1\n")
    path, judged = folder / "corpus.jsonl", {"q1": {"d1": grade, "other": 1}}
    check = check_corpus(path, judged, Corpus(path), {"q1": query, "q2": query})
    assert check.quoted == ({"q1"} if quoted else set())


ROWS = [{"_id": f"d{number}", "title": "é" if number % 3 else None, "text": "x" * number} for number in range(1, 3000)]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder, for files of more than a few bytes."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(parquet, "BYTES_STREAMED", 1000)
    return tmp_path / "temporary"


def test_a_corpus_with_an_invalid_last_row_or_no_space_is_refused(tmp_path, temporary):
    file = jsonl(tmp_path / "corpus.jsonl", *ROWS, {"_id": "d1", "text": "again"}, {"_id": "x", "text": 3})
    assert faults(Corpus, file) == [(3000, "_id"), (3001, "text")]
    for path in (tmp_path / "none.jsonl", tmp_path, file.with_suffix(".xlsx")):
        with pytest.raises(InputError):
            Corpus(path)
    temporary.rmdir()
    temporary.write_text("no folder")
    with pytest.raises(StorageError) as caught:
        Corpus(jsonl(file, *ROWS))
    assert "TMPDIR" in str(caught.value)


@pytest.mark.parametrize("suffix", [*FORMATS, ".jsonl.gz", ".tsv.gz"])
def test_a_corpus_is_parsed_once_and_its_copy_leaves_no_file(tmp_path, temporary, cache_path, suffix):
    file = tmp_path / f"corpus{suffix}"
    write_rows(pa.Table.from_pylist(ROWS), file)
    if suffix == ".jsonl":
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes() + b"\n \n")
    content, documents = file.read_bytes(), read_corpus(file)
    corpus = Corpus(file)
    file.unlink()
    assert corpus.hash == hashlib.sha256(content).hexdigest()
    for _ in range(2):
        assert list(corpus.items()) == list(documents.items())
    assert not [*temporary.iterdir()] and not cache_path.exists()


def test_the_hash_is_not_newer_than_the_texts(tmp_path, monkeypatch):
    """Else what is made of the texts would count as made of the file that replaced theirs."""
    path, newer = jsonl(tmp_path / "corpus.jsonl", *CORPUS), tmp_path / "newer.jsonl"
    before = file_hash(path)
    newer.write_text('{"_id": "d9", "text": "new"}')

    def replaced(*args, **kwargs):
        copy = parquet.spool(*args, **kwargs)
        newer.replace(path)
        return copy

    monkeypatch.setattr("bixse.data.corpus.spool", replaced)
    assert Corpus(path).hash == before != file_hash(path)


def test_the_texts_of_a_corpus_are_never_all_in_memory(tmp_path):
    file = jsonl(
        tmp_path / "corpus.jsonl", *({"_id": f"d{number}", "text": f"{number} " * 300} for number in range(9999))
    )
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        corpus = Corpus(file)
        size = sum(len(document.text) for _, document in corpus.items())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 14_000_000
    assert peak < size / 2
    assert pa.total_allocated_bytes() - before < size / 10


def test_odd_collection_survives_writing_and_reading(tmp_path):
    corpus = {'"é,': Document("a\r\nb", '"\t'), "\u200b": Document("", " x"), "日": Document("only a title", "")}
    qrels = {"test": {"q/1": {'"é,': 0.25, "日": 3.0}}, "dev": {"{}": {"\u200b": 1.0}}}
    collection = Collection(tmp_path.name, corpus, {"q/1": " a\nb", "{}": "\\"}, qrels)
    save_collection(collection, tmp_path)
    assert load_collection(tmp_path) == collection


@pytest.mark.parametrize(
    "name", ["corpus.jsonl.gz", "queries.jsonl", *(f"qrels/{split}.tsv" for split in pydocs.SPLITS)]
)
def test_missing_or_damaged_file_of_pydocs_is_named(tmp_path, monkeypatch, name):
    shutil.copytree(pydocs.FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(pydocs, "FOLDER", tmp_path)
    flipped = bytearray((tmp_path / name).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    for content in (b"\xff\xfe\x00", *([flipped] if name.endswith(".gz") else []), None):
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            pydocs.load_pydocs()


def test_pydocs_are_the_documents_that_were_graded_and_every_query_has_a_kind_one_split_and_a_solution():
    """The digest is of what Python 3.11.7 under Linux documented when the queries were graded."""
    loaded = pydocs.load_pydocs()
    content = json.dumps([[name, document.title, document.text] for name, document in loaded.corpus.items()])
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert digest == "ecbcd951e402ff1101605ef31e200ae77808d85c17ed35f88c67b253a8686c97"
    judged = [row for qrels in loaded.qrels.values() for row in qrels.values()]
    graded = {document for row in judged for document in row}
    assert (sum(map(len, judged)), len(graded), graded <= loaded.corpus.keys()) == (12_883, 3864, True)
    assert all(max(row.values()) >= pydocs.PYDOCS_RELEVANT_GRADE for row in judged)
    assert {name: len(qrels) for name, qrels in loaded.qrels.items()} == {
        "train": 679, "dev": 109, "test": 266, "guard": 45,
    }  # fmt: skip
    assert sorted(query for qrels in loaded.qrels.values() for query in qrels) == sorted(loaded.queries)
    rows = map(json.loads, (pydocs.FOLDER / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    kinds = {row["_id"]: row["kind"] for row in rows}
    assert kinds.keys() == loaded.queries.keys()
    assert set(kinds.values()) == {"howto", "keyword", "symptom", "concept", "task"}


def test_objects_in_place_of_a_folder_are_refused():
    with pytest.raises(InputError) as caught:
        load_collection(({"q": "copy"}, {"d": "copy"}, {"q": {"d": 1}}))
    assert caught.value.got == "tuple" and "Collection.of" in caught.value.fix
