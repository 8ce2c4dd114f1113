from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document
from bixse.data.collection_files import load_collection, save_collection
from bixse.data.trec import read_run
from bixse.errors import InputError, InvalidFileError, OutputExistsError
from bixse.evaluation.baseline import search_bm25
from bixse.evaluation.dense_search import EncodedCollection
from bixse.evaluation.evaluate import evaluate, model_hashes

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = {
    "a1": Document("", "copy a file to a folder"),
    "a2": Document("", "copy a file to a path"),
    "a3": Document("", "wait in a thread"),
}
QUERIES = {"a1": "copy a file to a folder", "q2": "wait in a thread"}
"""The first query is a document too, as in ArguAna."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    qrels = {"test": {"a1": {"a2": 1}, "q2": {"a3": 1}}}
    save_collection(Collection("toy", CORPUS, QUERIES, qrels), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.mark.parametrize("bm25", [False, True], ids=["model", "bm25"])
def test_a_query_that_is_a_document_finds_itself_unless_it_is_left_out(
    folder: Path, tiny_model_path: Path, bm25: bool
) -> None:
    model = "bm25" if bm25 else str(tiny_model_path)
    found = evaluate(model, folder)
    assert next(iter(found.run["a1"])) == "a1"
    assert found.metrics["mrr@10"] < 1
    left_out = evaluate(model, folder, exclude_self=True)
    assert "a1" not in left_out.run["a1"]
    assert "a3" in left_out.run["q2"]
    assert left_out.metrics["mrr@10"] == 1


def test_queries_that_are_documents_are_said_unless_they_are_left_out(folder: Path) -> None:
    (warning,) = evaluate("bm25", folder).warnings
    assert "1 query is a document too" in warning
    assert "'a1'" in warning
    assert "--exclude-self" in warning
    assert evaluate("bm25", folder, exclude_self=True).warnings == []


def test_a_finished_evaluation_warns_again_and_is_not_mixed_with_the_other(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = evaluate("bm25", folder, out=out)
    again = evaluate("bm25", folder, out=out)
    assert (again.reused, again.warnings) == (True, first.warnings)
    with pytest.raises(OutputExistsError, match=r"changed: exclude_self \(was False, now True\)"):
        evaluate("bm25", folder, out=out, exclude_self=True)
    evaluate("bm25", folder, out=tmp_path / "left-out", exclude_self=True)
    assert json.loads((tmp_path / "left-out" / "run.json").read_text())["config"]["exclude_self"] is True
    assert "a1" not in read_run(tmp_path / "left-out" / "run.trec")["a1"]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_depth_is_kept_when_a_query_is_left_out(depth: int) -> None:
    vectors = np.eye(4, dtype=np.float32)
    encoded = EncodedCollection(["a", "b", "c", "d"], vectors, ["a", "q"], vectors[:2] + 0.1)
    for query_id, found in encoded.search(["a", "q"], depth, exclude_self=True).items():
        others = [document for document in "abcd" if document != query_id]
        full = encoded.search([query_id], 4)[query_id]
        assert list(found) == [document for document in full if document in others][:depth]


def test_the_depth_of_bm25_is_kept_when_a_query_is_left_out() -> None:
    collection = Collection("toy", CORPUS, {"a1": QUERIES["a1"]})
    assert list(search_bm25(collection, ["a1"], 1)["a1"]) == ["a1"]
    assert list(search_bm25(collection, ["a1"], 1, exclude_self=True)["a1"]) == ["a2"]


def test_a_level_with_and_without_a_point_is_one_level(folder: Path, tmp_path: Path) -> None:
    assert not evaluate("bm25", folder, out=tmp_path / "out", relevance_level=1).reused
    assert evaluate("bm25", folder, out=tmp_path / "out", relevance_level=1.0).reused


def test_a_run_goes_on_from_another_working_folder(
    folder: Path, tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").symlink_to(tiny_model_path)
    monkeypatch.chdir(tmp_path)
    assert not evaluate("model", "toy", out="out").reused
    monkeypatch.chdir(tmp_path.parent)
    assert evaluate(str(tmp_path / "model"), folder, out=tmp_path / "out").reused
    (tmp_path / "out").rename(tmp_path / "moved")
    folder.rename(tmp_path / "moved-toy")
    assert evaluate(str(tmp_path / "model"), tmp_path / "moved-toy", out=tmp_path / "moved").reused
    config = json.loads((tmp_path / "moved" / "run.json").read_text())["config"]
    assert (config["model"], config["collection"]) == ("model", "toy")


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "modeling_own.py", "vocab.txt", "1_Dense/config.json"])
def test_files_that_embeddings_depend_on_are_hashed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("content")
    (tmp_path / "README.md").write_text("a description")
    (tmp_path / "relevance_head.json").write_text("{}")
    assert list(model_hashes(tmp_path)) == [f"model/{name}"]


def test_a_name_of_a_model_counts(folder: Path, tmp_path: Path, tiny_model_path: Path) -> None:
    evaluate("bm25", folder, out=tmp_path / "out")
    with pytest.raises(OutputExistsError, match=r"changed: .*model/"):
        evaluate(str(tiny_model_path), folder, out=tmp_path / "out")
    evaluate(str(tiny_model_path), folder, out=tmp_path / "other")
    with pytest.raises(OutputExistsError, match=r"changed: .*model "):
        evaluate("bm25", folder, out=tmp_path / "other")


class TestSelfMatches:
    """Only a document with the query's id and text is the query."""

    def put(self, tmp_path: Path, queries: dict[str, str]) -> Path:
        qrels = {"test": {query_id: {"a2": 1} for query_id in queries}}
        save_collection(Collection("toy", CORPUS, queries, qrels), tmp_path / "toy")
        return tmp_path / "toy"

    def test_ids_that_are_equal_by_accident_are_not_said(self, tmp_path: Path) -> None:
        folder = self.put(tmp_path, {"a1": "copy", "a3": "move"})
        assert evaluate("bm25", folder).warnings == []

    def test_and_excluding_them_is(self, tmp_path: Path) -> None:
        folder = self.put(tmp_path, {"a1": "copy", "a3": CORPUS["a3"].text})
        (warning,) = evaluate("bm25", folder, exclude_self=True).warnings
        assert "'a1'" in warning
        assert "'a3'" not in warning

    def test_both_kinds_are_counted(self, tmp_path: Path) -> None:
        folder = self.put(tmp_path, {"a1": "copy", "a3": " Wait in  a thread"})
        (warning,) = evaluate("bm25", folder).warnings
        assert "1 query is a document too" in warning
        assert "1 others share an id" in warning
        assert "'a3'" in warning


class TestRelevanceLevel:
    def warnings(self, tmp_path: Path, grades: dict[str, float], level: float = 1.0) -> list[str]:
        save_collection(Collection("toy", CORPUS, {"q": "copy a file"}, {"test": {"q": grades}}), tmp_path / "toy")
        return evaluate("bm25", tmp_path / "toy", relevance_level=level).warnings

    def test_a_level_that_no_grade_reaches(self, tmp_path: Path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": 0.8, "a2": 0.4})
        assert "0.8" in warning
        assert "--relevance-level" in warning
        (warning,) = self.warnings(tmp_path, {"a1": 3, "a2": 1}, level=4)
        assert "3" in warning

    def test_fractions_below_the_default(self, tmp_path: Path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": 1.0, "a2": 0.5, "a3": 0})
        assert "1 of 2 grades" in warning

    @pytest.mark.parametrize(
        ("grades", "level"),
        [({"a1": 1, "a2": 0}, 1.0), ({"a1": 3, "a2": 1}, 2.0), ({"a1": 1.0, "a2": 0.2}, 0.5), ({"a1": 2.5}, 1.0)],
    )
    def test_levels_that_fit(self, tmp_path: Path, grades: dict[str, float], level: float) -> None:
        assert self.warnings(tmp_path, grades, level) == []


class TestMissingDocuments:
    @pytest.fixture
    def lacking(self, tmp_path: Path) -> Path:
        qrels = {"test": {"a1": {"a2": 1, "gone": 2}, "q2": {"a3": 1}, "q3": {"away": 1}}}
        save_collection(Collection("toy", CORPUS, {**QUERIES, "q3": "sleep"}, qrels), tmp_path / "toy")
        return tmp_path / "toy"

    def test_they_are_refused_or_left_out_and_counted(self, lacking: Path, tmp_path: Path) -> None:
        with pytest.raises(InvalidFileError) as raised:
            evaluate("bm25", lacking, exclude_self=True)
        assert len(raised.value.errors) == 2
        assert "--missing-documents drop" in str(raised.value)
        found = evaluate("bm25", lacking, exclude_self=True, missing_documents="drop", out=tmp_path / "out")
        (warning,) = found.warnings
        assert "2 of 4 judgements" in warning
        assert set(found.run) == {"a1", "q2"}
        assert found.metrics["ndcg@10"] == 1
        again = evaluate("bm25", lacking, exclude_self=True, missing_documents="drop", out=tmp_path / "out")
        assert (again.reused, again.warnings) == (True, found.warnings)

    def test_nothing_left_is_refused(self, tmp_path: Path) -> None:
        save_collection(Collection("toy", CORPUS, {"q": "copy"}, {"test": {"q": {"gone": 1}}}), tmp_path / "toy")
        with pytest.raises(InputError, match="no judgement above 0"):
            evaluate("bm25", tmp_path / "toy", missing_documents="drop")

    def test_a_whole_collection_says_nothing(self, folder: Path) -> None:
        assert evaluate("bm25", folder, exclude_self=True, missing_documents="drop").warnings == []
        assert load_collection(folder, missing_documents="drop").missing == {"test": 0}

    def test_the_flag(self, lacking: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["evaluate", "bm25", "--collection", str(lacking), "--json"]
        assert main(words) == 2
        capsys.readouterr()
        assert main([*words, "--missing-documents", "drop"]) == 0
        assert any("2 of 4" in warning for warning in json.loads(capsys.readouterr().out)["warnings"])
        assert main(["evaluate", "bm25", "--suite", "beir", "--missing-documents", "drop"]) == 2
