"""Checks that several verbs share: each verb is asked."""

import re
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.files.rows import write_rows
from helpers.command import call
from helpers.rerankers import save_reranker

WORDS = "copy move delete open read write list file folder tree disk path".split()  # noqa: SIM905
LONG = "sort find match search " * 20
LONG_WORDS = WORDS[:5]
"""The documents of these words are longer than the 32 tokens that the tiny model reads."""


def text_of(word):
    return f"{word} {LONG}" if word in LONG_WORDS else word


@pytest.fixture
def files(tmp_path, tiny_model_path):
    """A collection, pairs of the same documents, a model and a reranker, each under the word for its path."""
    corpus = {word: Document("", text_of(word)) for word in WORDS}
    qrels = {f"q-{word}": {word: 1} for word in WORDS}
    queries = {f"q-{word}": word for word in WORDS}
    save_collection(Collection("words", corpus, queries, {"test": qrels, "train": qrels}), tmp_path / "words")
    rows = [
        {"query": word, "document": text_of(other), "relevance": float(word == other)}
        for word in WORDS
        for other in WORDS
    ]
    save_graded_pairs(Pairs.from_rows(rows), tmp_path / "pairs.csv")
    return {"COLLECTION": tmp_path / "words", "PAIRS": tmp_path / "pairs.csv", "MODEL": tiny_model_path,
            "INDEX": tmp_path / "index", "OUT": tmp_path / "out", "QUERIES": tmp_path / "words/queries.jsonl",
            "CORPUS": tmp_path / "words/corpus.jsonl", "QRELS": tmp_path / "words/qrels/test.tsv",
            "RUN": tmp_path / "run.trec", "TRAINED": tmp_path / "trained",
            "REPLAY": f"replay:qrels:{tmp_path}/words/qrels/test.tsv"}  # fmt: skip


def warnings_of(capsys, files, words):
    code, envelope = call(capsys, *(files.get(word, word) for word in words.split()))
    assert code in (0, 1), envelope["errors"]  # 1: a calibration that is no better than a constant
    return envelope["warnings"]


def counted(warnings):
    """The number and the kind of the texts that the warnings call longer than a model reads."""
    return re.findall(r"(\d+ of \d+ \w+) are longer than the 32 tokens", "\n".join(warnings))


LENGTHS = {
    "evaluate": "evaluate MODEL --collection COLLECTION",
    "evaluate --out": "evaluate MODEL bm25 --collection COLLECTION --out OUT",
    "evaluate index": "evaluate INDEX --collection COLLECTION",
    "index": "index MODEL --collection COLLECTION --out OUT",
    "index again": "index MODEL --collection COLLECTION --out INDEX",
    "search": "search MODEL copy --collection COLLECTION",
    "search index": "search INDEX copy",
    "search queries": "search INDEX --queries QUERIES",
    "search --out": "search INDEX --queries QUERIES --out RUN",
    "mine": "mine --collection COLLECTION --split train --retriever MODEL --retriever bm25 --out OUT",
    "mine index": "mine --collection COLLECTION --split train --retriever INDEX --out OUT",
    "calibrate": "calibrate MODEL --pairs PAIRS --out OUT --anyway",
    "train": "train --model MODEL --pairs PAIRS --dry-run",
}


@pytest.mark.parametrize("verb", LENGTHS)
def test_texts_that_are_longer_than_the_model_reads_are_counted(capsys, files, verb):
    if "INDEX" in LENGTHS[verb]:
        warnings_of(capsys, files, LENGTHS["index again"])
    assert counted(warnings_of(capsys, files, LENGTHS[verb])) == ["5 of 12 documents"]
    if "--out" in LENGTHS[verb] and "RUN" not in LENGTHS[verb] and "calibrate" not in LENGTHS[verb]:
        again = warnings_of(capsys, files, LENGTHS[verb])  # a finished run is read
        assert counted(again) == ["5 of 12 documents"]


@pytest.mark.parametrize("kind", ["reranker", "late-interaction", "sparse"])
def test_texts_that_are_longer_than_a_reranker_reads_are_counted(capsys, files, tmp_path, kind):
    files["RERANKER"] = save_reranker(files["MODEL"], tmp_path / "reranker", kind=kind)
    texts = "60 of 144 pairs" if kind == "reranker" else "5 of 12 documents"
    reranked = warnings_of(capsys, files, "evaluate bm25 --rerank RERANKER --collection COLLECTION")
    assert counted(reranked) == ["5 of 12 pairs" if kind == "reranker" else texts]
    if kind == "reranker":
        words = "calibrate RERANKER --pairs PAIRS --out OUT --anyway"
        assert counted(warnings_of(capsys, files, words)) == [texts]


def test_texts_within_the_limit_give_no_warning(capsys, files, monkeypatch):
    corpus = {word: Document("", word) for word in WORDS}
    qrels = {"test": {"q": {"copy": 1}}}
    save_collection(Collection("words", corpus, {"q": "copy"}, qrels), files["COLLECTION"])
    assert warnings_of(capsys, files, LENGTHS["evaluate"]) == warnings_of(capsys, files, LENGTHS["index"]) == []


def test_embeddings_of_an_earlier_version_are_counted_by_a_sample(capsys, files, cache_path):
    counted = warnings_of(capsys, files, LENGTHS["evaluate"])
    (file,) = cache_path.rglob("*.sqlite")
    with sqlite3.connect(file) as database:  # as they were kept at first
        database.execute("UPDATE embeddings SET embedding = substr(embedding, 1, length(embedding) - 1)")
    (warning,) = warnings_of(capsys, files, LENGTHS["index"])
    assert warning in counted[0]
    _, envelope = call(capsys, "search", files["OUT"], "copy")
    assert envelope["warnings"] == [warning] and len(envelope["metrics"]["results"]) == 10


READERS = {
    "train": "train --pairs FILE --out OUT",
    "grade": "grade --pairs FILE --judge REPLAY --scale 0 1 --out OUT",
    "audit": "grade audit --judge FILE --human FILE",
    "calibrate": "calibrate MODEL --pairs FILE --out OUT",
    "calibrate --scores": "calibrate --scores FILE --scored-by a-model --out OUT",
    "mine": "mine --corpus CORPUS --queries FILE --retriever bm25 --out OUT",
    "mine --known": "mine --collection COLLECTION --known FILE --split train --retriever bm25 --out OUT",
    "convert pairs": "convert pairs FILE --out OUT",
    "convert table": "convert table FILE --scale 0 1 --out OUT",
    "convert sentence-transformers": "convert sentence-transformers FILE --out OUT",
    "convert trec": "convert trec QRELS --queries FILE --corpus CORPUS --scale 0 1 --out OUT",
    "adapt": "adapt --vectors FILE --queries FILE --pairs FILE --vectors-of a-model --out OUT",
    "search": "search INDEX --queries FILE",
}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("verb", READERS)
def test_columns_of_other_names_are_one_error_each_with_the_columns_there_are(capsys, files, tmp_path, verb, suffix):
    if verb == "search":
        warnings_of(capsys, files, LENGTHS["index again"])
    files["FILE"] = tmp_path / f"file{suffix}"
    write_rows(pa.table({"alpha": [f"a{n}" for n in range(300)], "beta": ["b"] * 300}), files["FILE"])
    code, envelope = call(capsys, *(files.get(word, word) for word in READERS[verb].split()))
    (message,) = envelope["errors"]
    lines = [line for line in message.splitlines() if line.startswith("  ")]
    assert code == 2 and 1 <= len(lines) <= 4, message
    wrong = [line for line in lines if "got columns 'alpha, beta'" not in line]
    assert len(lines) == len({line.split(":")[0] for line in lines}) and not wrong


def test_rows_with_one_fault_are_one_error_and_bytes_are_not_printed(capsys, files, tmp_path):
    vectors = pa.table({"id": [f"d{n}" for n in range(300)], "vector": [bytes(256)] * 300})
    files["FILE"] = tmp_path / "file.parquet"
    pq.write_table(vectors, files["FILE"])
    _, envelope = call(capsys, *(files.get(word, word) for word in READERS["adapt"].split()))
    assert envelope["errors"][0].count("\n") == 1 and "a blob of 256 bytes" in envelope["errors"][0]
    table = pa.table({"query": [b"x" * 99] * 300, "document": ["d"] * 300, "relevance": [1.0] * 300})
    pq.write_table(table, files["FILE"])
    for verb in ("train", "convert pairs"):
        _, envelope = call(capsys, *(files.get(word, word) for word in READERS[verb].split()))
        lines = [line for line in envelope["errors"][0].splitlines() if line.startswith("  ")]
        assert len(lines) == 1 and "blob of 99 bytes" in lines[0] and "x" * 9 not in lines[0]
