from __future__ import annotations

import pytest
from source_files import lines, put

from bixse.errors import ConfigError, InputError, InvalidFileError
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig, read_inputs, sample_queries


def read_known(collection, rows, **settings):
    """Read the inputs with these known pairs."""
    content = lines({"query_id": "q-copy", "query": "x", "relevance": 1.0, **row} for row in rows)
    path = put(collection.parent, {"known.jsonl": content}) / "known.jsonl"
    return read_inputs(MineConfig(collection=collection, known=path, **settings))


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
def test_contradicting_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="1 error"):
        MineConfig.load(None, settings)


def test_default_number_of_documents_depends_on_the_strategy(tmp_path):
    assert MineConfig(collection=tmp_path, strategy="one", depth=1, per_query=1).count == 1
    assert [MineConfig(collection=tmp_path, strategy=name).count for name in ("one", "top", "spread")] == [1, 8, 8]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collection": "none"}, "none/corpus.jsonl"),
        ({"collection": "toy", "split": "dev"}, "expected one of ['test', 'train']"),
        ({"collection": "toy", "known": "none.jsonl"}, "none.jsonl"),
        ({"collection": "toy", "known": "toy"}, "toy: got"),
        ({"corpus": "toy/corpus.jsonl", "queries": "none"}, "none: got"),
    ],
)
def test_missing_files_are_refused(collection, settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(collection.parent)
    with pytest.raises(InputError) as error:
        mine(MineConfig(**settings), tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_queries_of_a_split_or_of_all_with_a_warning(collection):
    inputs = read_inputs(MineConfig(collection=collection, split="test"))
    assert (inputs.documents, len(inputs.empty)) == (52, 1)
    assert (list(inputs.queries), inputs.warnings) == (["q-list", "q-find"], ())
    (warning,) = read_inputs(MineConfig(collection=collection)).warnings
    assert "test, train" in warning
    (collection / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nelsewhere\tcopy-file\t1\n")
    with pytest.raises(InputError, match="dev"):
        read_inputs(MineConfig(collection=collection, split="dev"))


def test_drawn_queries_do_not_depend_on_the_others():
    queries = {f"q{number}": "text" for number in range(200)}
    fifty, hundred = sample_queries(queries, 50, 0), sample_queries(queries, 100, 0)
    assert len(fifty) == 50
    assert set(fifty) < set(hundred)
    assert list(fifty) == [name for name in queries if name in fifty]
    assert set(sample_queries(dict(reversed(queries.items())), 50, 0)) == set(fifty)
    assert set(sample_queries(queries, 50, 1)) != set(fifty)


def test_known_pairs_of_missing_documents_are_refused(collection):
    rows = [
        {"document_id": "copy-file", "document": "copy the file"},
        {"document_id": "lost", "document": "no such text"},
        {"query_id": "q-move", "query": "y", "document_id": "gone", "document": "nor this"},
    ]
    with pytest.raises(InvalidFileError, match="2 errors") as error:
        read_known(collection, rows)
    assert "'lost' (of query 'q-copy')" in str(error.value)
    assert "'gone' (of query 'q-move')" in str(error.value)


def test_known_pairs_of_other_queries_are_refused(collection):
    with pytest.raises(InputError, match="'z'"):
        read_known(collection, [{"query_id": "z", "query": "weather", "document": "copy the file"}])


def test_known_pairs_are_matched_by_their_texts_or_ids(collection, tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("query,document,relevance\nhow do i move a file,move the file,1\nweather,move the file,1\n")
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path))
    assert inputs.known == {"q-move": {"move-file"}}
    assert "known.csv: 1 queries are not among those to mine for" in inputs.warnings
    rows = [
        {"document_id": "copy-file", "document": "of another corpus"},
        {"document_id": "copy-disk", "document": "copy the disk"},
    ]
    inputs = read_known(collection, rows, split="train")
    assert inputs.known == {"q-copy": {"copy-file", "copy-disk"}}
    assert inputs.warnings == ("known.jsonl: 1 of 2 pairs have another text than the corpus has under their id",)
