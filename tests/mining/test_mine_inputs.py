from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import InputError, InvalidFileError
from bixse.mining.mine_inputs import read_inputs, read_texts, sample_queries
from bixse.mining.mine_settings import MineConfig

if TYPE_CHECKING:
    from pathlib import Path


def graded(path: Path, *rows: dict) -> Path:
    save_graded_pairs(GradedPairs.from_rows([{"relevance": 1.0, **row} for row in rows]), path)
    return path


# --- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "got no texts"),
        ({"corpus": "c"}, "got --corpus"),
        ({"queries": "q"}, "got --queries"),
        ({"collection": "d", "corpus": "c", "queries": "q"}, "got --collection and --corpus and --queries"),
        ({"corpus": "c", "queries": "q", "split": "train"}, "--split: got 'train' without --collection"),
        ({"corpus": "c", "queries": "q", "exclude_judged": "train"}, "--exclude-judged: got 'train' without"),
        ({"collection": "d", "strategy": "topp"}, "did you mean 'top'"),
        ({"collection": "d", "per_query": 11, "depth": 10}, "--per-query: got 11 with --depth 10"),
        ({"collection": "d", "depth": 7}, "--per-query: got 8 with --depth 7"),
        ({"collection": "d", "per_query": 0}, "--per-query: got 0"),
        ({"collection": "d", "depth": 0}, "--depth: got 0"),
        ({"collection": "d", "max_queries": 0}, "--max-queries: got 0"),
        ({"collection": "d", "max_length": -1}, "--max-length: got -1"),
        ({"collection": "d", "seed": -1}, "seed: got -1"),
        ({"collection": "d", "strategy": "one", "per_query": 2}, "expected 1"),
        ({"collection": "d", "strategy": "hard-negatives"}, "got no known pairs"),
    ],
)
def test_settings_that_cannot_be(settings: dict, said: str) -> None:
    with pytest.raises(InputError) as raised:
        MineConfig(**settings)
    assert said in str(raised.value)
    assert "fix: " in str(raised.value)


def test_one_document_a_query_needs_no_number(tmp_path: Path) -> None:
    assert MineConfig(collection=tmp_path, strategy="one").count == 1
    assert MineConfig(collection=tmp_path, strategy="one", depth=1, per_query=1).count == 1
    assert MineConfig(collection=tmp_path).count == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"collection": "none"}, "none: got no such folder"),
        ({"collection": "toy/corpus.jsonl"}, "corpus.jsonl: got a file"),
        ({"collection": "toy", "split": "dev"}, "got split 'dev'; expected one of test, train"),
        ({"collection": "toy", "exclude_judged": "dev"}, "got split 'dev'"),
        ({"collection": "toy", "known": "none.jsonl"}, "none.jsonl: got no such file"),
        ({"collection": "toy", "known": "toy"}, "toy: got a folder"),
        ({"corpus": "none", "queries": "toy/queries.jsonl"}, "none: got no such file"),
        ({"corpus": "toy/corpus.jsonl", "queries": "none"}, "none: got no such file"),
    ],
)
def test_files_that_are_missing(collection: Path, settings: dict, said: str) -> None:
    paths = {key: collection.parent / value if key in ("collection", "corpus", "queries", "known") else value
             for key, value in settings.items()}  # fmt: skip
    with pytest.raises(InputError, match="expected") as raised:
        read_inputs(MineConfig(**paths))
    assert said in str(raised.value)


# --- texts


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "one JSON object per line"),
        ("[]", "an object with an _id"),
        ('{"text": "a"}', "an object with an _id"),
        ('{"_id": " ", "text": "a"}', "an object with an _id"),
        ('{"_id": true, "text": "a"}', "an object with an _id"),
        ('{"_id": "a b", "text": "a"}', "an id without white space"),
        ('{"_id": " a", "text": "a"}', "an id without white space"),
        ('{"_id": "a\\u0085", "text": "a"}', "an id without white space"),
        ('{"_id": "\\ud83d", "text": "a"}', "an id without white space"),
        ('{"_id": "d1", "text": "a"}', "an id used once"),
        ('{"_id": "d2", "text": 3}', "a text"),
        ('{"_id": "d2", "title": "\\ud83d"}', "a text"),
    ],
)
def test_a_row_that_cannot_be_read(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "d1", "text": "fine"}\n\n' + line + "\n")
    with pytest.raises(InvalidFileError, match="row 3") as raised:
        read_texts(path)
    assert said in str(raised.value)


def test_no_queries(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text("\n")
    with pytest.raises(InputError, match="got no rows"):
        read_texts(tmp_path / "queries.jsonl")


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("{\n" * 30)
    with pytest.raises(InvalidFileError, match="30 errors"):
        read_texts(tmp_path / "c.jsonl")


def test_empty_documents_are_counted_and_left_out(collection: Path) -> None:
    inputs = read_inputs(MineConfig(collection=collection))
    assert inputs.empty_documents == 1
    assert "empty" not in inputs.corpus
    assert len(inputs.corpus) == 51


def test_numbers_as_ids_and_a_missing_title(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('\ufeff{"_id": 7, "text": "a"}\n{"_id": "8", "title": "b"}\n', encoding="utf-8")
    assert {name: document.content for name, document in read_texts(tmp_path / "c.jsonl").items()} == {
        "7": "a",
        "8": "b",
    }


# --- which queries


def test_queries_of_a_split_only(collection: Path) -> None:
    inputs = read_inputs(MineConfig(collection=collection, split="test"))
    assert list(inputs.queries) == ["q-list", "q-find"]
    assert not inputs.warnings


def test_mining_for_the_queries_of_all_splits_is_said(collection: Path) -> None:
    (warning,) = read_inputs(MineConfig(collection=collection)).warnings
    assert "the splits test, train alike" in warning


def test_a_split_of_other_queries(collection: Path) -> None:
    (collection / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nelsewhere\tcopy-file\t1\n")
    with pytest.raises(InputError, match="got no query of split 'dev'"):
        read_inputs(MineConfig(collection=collection, split="dev"))


def test_drawn_queries_do_not_depend_on_the_others() -> None:
    queries = {f"q{number}": "text" for number in range(200)}
    fifty, hundred = sample_queries(queries, 50, 0), sample_queries(queries, 100, 0)
    assert len(fifty) == 50
    assert set(fifty) < set(hundred)
    assert list(fifty) == [name for name in queries if name in fifty]
    turned = sample_queries(dict(reversed(queries.items())), 50, 0)
    assert set(turned) == set(fifty)
    assert set(sample_queries(queries, 50, 1)) != set(fifty)
    assert len(sample_queries(queries, 999, 0)) == 200


# --- known pairs


def test_judged_pairs_are_known_whatever_their_grade(collection: Path) -> None:
    inputs = read_inputs(MineConfig(collection=collection, split="train", exclude_judged="train"))
    assert inputs.known["q-copy"] == {"copy-file", "copy-disk"}
    assert len(inputs.known) == 6


def test_known_pairs_of_documents_that_are_not_there(collection: Path, tmp_path: Path) -> None:
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


def test_known_pairs_of_other_queries(collection: Path, tmp_path: Path) -> None:
    path = graded(tmp_path / "k.jsonl", {"query_id": "z", "query": "weather", "document": "copy the file"})
    with pytest.raises(InputError, match="got no pair of these queries"):
        read_inputs(MineConfig(collection=collection, known=path))


def test_known_pairs_without_ids_are_found_by_their_texts(collection: Path, tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_text("query,document,relevance\nhow do i move a file,move the file,1\nweather,move the file,1\n")
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path, strategy="hard-negatives"))
    assert inputs.known == {"q-move": {"move-file"}}
    assert "known.csv: 1 queries are not among those to mine for" in inputs.warnings
    assert "5 of 6 queries have no known pair: their best documents are mined as they are" in inputs.warnings


def test_known_ids_with_other_texts_are_said(collection: Path, tmp_path: Path) -> None:
    path = graded(
        tmp_path / "k.jsonl",
        {"query_id": "q-copy", "query": "x", "document_id": "copy-file", "document": "of another corpus"},
        {"query_id": "q-copy", "query": "x", "document_id": "copy-disk", "document": "copy the disk"},
    )
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path))
    assert inputs.warnings == ("k.jsonl: 1 of 2 pairs have another text than the corpus has under their id",)


def test_known_pairs_of_file_and_split_are_joined(collection: Path, tmp_path: Path) -> None:
    path = graded(
        tmp_path / "k.jsonl",
        {"query_id": "q-copy", "query": "x", "document_id": "copy-tree", "document": "copy the tree"},
    )
    inputs = read_inputs(MineConfig(collection=collection, split="train", known=path, exclude_judged="train"))
    assert inputs.known["q-copy"] == {"copy-file", "copy-disk", "copy-tree"}


def test_a_judged_empty_document_is_no_fault(collection: Path) -> None:
    with (collection / "qrels" / "train.tsv").open("a") as file:
        file.write("q-copy\tempty\t0\n")
    assert "empty" in read_inputs(MineConfig(collection=collection, exclude_judged="train")).known["q-copy"]
