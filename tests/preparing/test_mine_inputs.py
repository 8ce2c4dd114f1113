from __future__ import annotations

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import ConfigError, InputError, InvalidFileError
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig, read_inputs, sample_queries


def graded(path, *rows):
    save_graded_pairs(GradedPairs.from_rows([{"relevance": 1.0, **row} for row in rows]), path)
    return path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"corpus": "c"},
        {"queries": "q"},
        {"collection": "d", "corpus": "c", "queries": "q"},
        {"corpus": "c", "queries": "q", "split": "train"},
        {"collection": "d", "per_query": 11, "depth": 10},
        {"collection": "d", "depth": 7},
        {"collection": "d", "strategy": "one", "per_query": 2},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ConfigError, match="1 error"):
        MineConfig.load(None, settings)


def test_one_document_a_query_needs_no_number(tmp_path):
    assert MineConfig(collection=tmp_path, strategy="one").count == 1
    assert MineConfig(collection=tmp_path, strategy="one", depth=1, per_query=1).count == 1
    assert MineConfig(collection=tmp_path).count == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"collection": "none"}, "none/corpus.jsonl"),
        ({"collection": "toy", "split": "dev"}, "expected one of ['test', 'train']"),
        ({"collection": "toy", "known": "none.jsonl"}, "none.jsonl"),
        ({"collection": "toy", "known": "toy"}, "toy: got"),
        ({"corpus": "toy/corpus.jsonl", "queries": "none"}, "none: got"),
    ],
)
def test_files_that_are_missing(collection, settings, said, tmp_path, monkeypatch):
    monkeypatch.chdir(collection.parent)
    with pytest.raises(InputError) as raised:
        mine(MineConfig(**settings), tmp_path / "out")
    assert said in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_empty_documents_are_counted_and_left_out(collection):
    inputs = read_inputs(MineConfig(collection=collection))
    assert (inputs.documents, len(inputs.empty)) == (52, 1)


def test_queries_of_a_split_and_of_all(collection):
    inputs = read_inputs(MineConfig(collection=collection, split="test"))
    assert list(inputs.queries) == ["q-list", "q-find"]
    assert not inputs.warnings
    (warning,) = read_inputs(MineConfig(collection=collection)).warnings
    assert "test, train" in warning


def test_a_split_of_other_queries(collection):
    (collection / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nelsewhere\tcopy-file\t1\n")
    with pytest.raises(InputError, match="got no query of split 'dev'"):
        read_inputs(MineConfig(collection=collection, split="dev"))


def test_drawn_queries_do_not_depend_on_the_others():
    queries = {f"q{number}": "text" for number in range(200)}
    fifty, hundred = sample_queries(queries, 50, 0), sample_queries(queries, 100, 0)
    assert len(fifty) == 50
    assert set(fifty) < set(hundred)
    assert list(fifty) == [name for name in queries if name in fifty]
    turned = sample_queries(dict(reversed(queries.items())), 50, 0)
    assert set(turned) == set(fifty)
    assert set(sample_queries(queries, 50, 1)) != set(fifty)


def test_known_pairs_of_documents_that_are_not_there(collection, tmp_path):
    path = graded(
        tmp_path / "known.jsonl",
        {"query_id": "q-copy", "query": "x", "document_id": "copy-file", "document": "copy the file"},
        {"query_id": "q-copy", "query": "x", "document_id": "lost", "document": "no such text"},
        {"query_id": "q-move", "query": "y", "document_id": "gone", "document": "nor this"},
    )
    with pytest.raises(InvalidFileError, match="2 errors") as raised:
        read_inputs(MineConfig(collection=collection, known=path))
    assert "'lost' (of query 'q-copy')" in str(raised.value)
    assert "'gone' (of query 'q-move')" in str(raised.value)


def test_known_pairs_of_other_queries(collection, tmp_path):
    path = graded(tmp_path / "k.jsonl", {"query_id": "z", "query": "weather", "document": "copy the file"})
    with pytest.raises(InputError, match="got no pair of these queries"):
        read_inputs(MineConfig(collection=collection, known=path))


def test_known_pairs_without_ids_are_found_by_their_texts(collection, tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("query,document,relevance\nhow do i move a file,move the file,1\nweather,move the file,1\n")
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path))
    assert inputs.known == {"q-move": {"move-file"}}
    assert "known.csv: 1 queries are not among those to mine for" in inputs.warnings


def test_known_ids_with_other_texts_are_said(collection, tmp_path):
    path = graded(
        tmp_path / "k.jsonl",
        {"query_id": "q-copy", "query": "x", "document_id": "copy-file", "document": "of another corpus"},
        {"query_id": "q-copy", "query": "x", "document_id": "copy-disk", "document": "copy the disk"},
    )
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path))
    assert inputs.warnings == ("k.jsonl: 1 of 2 pairs have another text than the corpus has under their id",)
