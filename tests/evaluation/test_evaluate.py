"""`evaluate`: a system on a collection folder."""

from __future__ import annotations

import json

import pytest

from bixse import EncoderSystem, collection_task, evaluate
from bixse.cli.main import main
from bixse.data.collection import Collection, Document
from bixse.data.collection_files import load_collection, save_collection
from bixse.data.trec import read_run
from bixse.encoders.identity import model_hashes
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError, InvalidFileError, OutputExistsError
from bixse.evaluation.evaluate import PER_QUERY_NAME, RUN_NAME
from bixse.evaluation.systems import Bm25System
from bixse.evaluation.tasks import QuerySet, Task
from bixse.retrieval import store

CORPUS = {
    "a1": Document("", "copy a file to a folder"),
    "a2": Document("", "copy a file to a path"),
    "a3": Document("", "wait in a thread"),
}
QUERIES = {"a1": "copy a file to a folder", "q2": "wait in a thread"}
"""The first query is a document too, as in ArguAna."""


@pytest.fixture
def folder(tmp_path):
    qrels = {"test": {"a1": {"a2": 1}, "q2": {"a3": 1}}}
    save_collection(Collection("toy", CORPUS, QUERIES, qrels), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.mark.parametrize("bm25", [False, True], ids=["model", "bm25"])
def test_a_query_that_is_a_document_finds_itself_unless_it_is_left_out(folder, tiny_model_path, bm25) -> None:
    model = "bm25" if bm25 else tiny_model_path
    found = evaluate(model, folder)
    assert next(iter(found.run["a1"])) == "a1"
    assert found.metrics["mrr@10"] < 1
    left_out = evaluate(model, collection_task(folder, exclude_self=True))
    assert "a1" not in left_out.run["a1"]
    assert "a3" in left_out.run["q2"]
    assert left_out.metrics["mrr@10"] == 1


def test_queries_that_are_documents_are_said_unless_they_are_left_out(folder) -> None:
    (warning,) = evaluate("bm25", folder).warnings
    assert "'a1'" in warning and "--exclude-self" in warning
    assert evaluate("bm25", collection_task(folder, exclude_self=True)).warnings == ()


def test_a_finished_evaluation_warns_again_and_is_not_mixed_with_the_other(folder, tmp_path) -> None:
    out, other = tmp_path / "out", collection_task(folder, exclude_self=True)
    first, again = (evaluate("bm25", folder, out) for _ in range(2))
    assert (again.reused, again.warnings, again.run) == (True, first.warnings, first.run)
    assert (again.metrics, again.per_query) == (first.metrics, first.per_query)
    with pytest.raises(OutputExistsError, match=r"exclude_self"):
        evaluate("bm25", other, out)
    evaluate("bm25", other, tmp_path / "left-out")
    assert json.loads((tmp_path / "left-out" / "run.json").read_text())["config"]["exclude_self"] is True
    assert "a1" not in read_run(tmp_path / "left-out" / "run.trec")["a1"]


@pytest.mark.parametrize("name", [RUN_NAME, PER_QUERY_NAME])
@pytest.mark.parametrize("content", [None, "[]", "{}", '{"ndcg@10": 5}'])
def test_damaged_results_are_refused(folder, tmp_path, name, content) -> None:
    evaluate("bm25", folder, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    if content is not None:
        (tmp_path / "out" / name).write_text(content)
    with pytest.raises(InputError):
        evaluate("bm25", folder, tmp_path / "out")


def test_a_system_that_finds_nothing_leaves_an_empty_run(folder, tmp_path) -> None:
    task = Task("t", lambda: iter([("d", "copy")]), 1, (QuerySet("t", {"q": "wait"}, {"q": {"d": 1}}),))
    for reused in (False, True):
        found = evaluate("bm25", task, tmp_path / "out")
        assert (found.metrics["ndcg@10"], found.reused) == (0, reused)


def test_a_grade_with_and_without_a_point_is_one(folder, tmp_path) -> None:
    for reused, grade in enumerate((1, 1.0)):
        assert evaluate("bm25", collection_task(folder, min_relevant_grade=grade), tmp_path / "out").reused == reused


@pytest.mark.parametrize("grade", [0, -1, float("nan")])
def test_a_lowest_relevant_grade_that_is_none(folder, grade) -> None:
    with pytest.raises(InputError):
        collection_task(folder, min_relevant_grade=grade)


def test_a_task_of_several_query_sets_is_refused(folder) -> None:
    task = collection_task(folder)
    with pytest.raises(InputError, match="evaluate_query_sets"):
        evaluate("bm25", Task("t", task.documents, task.count, task.query_sets * 2))


def test_a_run_goes_on_from_another_working_folder(folder, tmp_path, tiny_model_path, monkeypatch) -> None:
    (tmp_path / "model").symlink_to(tiny_model_path)
    monkeypatch.chdir(tmp_path)
    assert not evaluate("model", "toy", "out").reused
    monkeypatch.chdir(tmp_path.parent)
    assert evaluate(str(tmp_path / "model"), folder, tmp_path / "out").reused
    (tmp_path / "out").rename(tmp_path / "moved")
    folder.rename(tmp_path / "moved-toy")
    assert evaluate(tmp_path / "model", tmp_path / "moved-toy", tmp_path / "moved").reused
    config = json.loads((tmp_path / "moved" / "run.json").read_text())["config"]
    assert (config["model"], config["collection"]) == ("model", "toy")


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "modeling_own.py", "vocab.txt", "1_Dense/config.json"])
def test_files_that_embeddings_depend_on_are_hashed(tmp_path, name) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("content")
    (tmp_path / "README.md").write_text("a description")
    (tmp_path / "relevance_head.json").write_text("{}")
    assert list(model_hashes(tmp_path)) == [f"model/{name}"]


def test_another_system_is_another_run(folder, tmp_path, tiny_model_path) -> None:
    evaluate("bm25", folder, tmp_path / "out")
    with pytest.raises(OutputExistsError, match=r"changed: .*model/"):
        evaluate(tiny_model_path, folder, tmp_path / "out")
    evaluate(EncoderSystem(tiny_model_path, max_length=16), folder, tmp_path / "other")
    with pytest.raises(OutputExistsError, match=r"changed: .*model "):
        evaluate("bm25", folder, tmp_path / "other")
    with pytest.raises(OutputExistsError, match="max_length"):
        evaluate(tiny_model_path, folder, tmp_path / "other")


def test_a_loaded_model_is_evaluated_and_told_apart_by_its_weights(folder, tmp_path, tiny_model_path) -> None:
    model = build_encoder(str(tiny_model_path))
    found = evaluate(model, folder, tmp_path / "out")
    assert found.run == evaluate(tiny_model_path, folder).run
    assert evaluate(model, folder, tmp_path / "out").reused
    next(model.parameters()).data[0, 0] += 1
    with pytest.raises(OutputExistsError, match="weights"):
        evaluate(model, folder, tmp_path / "out")


def test_unchanged_documents_are_not_encoded_twice(folder, tmp_path, tiny_model_path, monkeypatch) -> None:
    encoded = []
    encode = store.encode_texts
    monkeypatch.setattr(
        store, "encode_texts", lambda m, texts, k, **o: encoded.extend(texts) or encode(m, texts, k, **o)
    )
    for cache, number in ((tmp_path / "cache", 3), (tmp_path / "cache", 3), ("none", 6), ("none", 9)):
        found = evaluate(EncoderSystem(tiny_model_path, cache=cache), folder)
        assert len(encoded) == number
        assert found.run == evaluate(EncoderSystem(tiny_model_path, cache=tmp_path / "cache"), folder).run
    monkeypatch.setattr("bixse.evaluation.systems.MOST_KEPT", 2)
    for _ in range(2):
        evaluate(tiny_model_path, folder)
    assert len(encoded) == 15  # a corpus that long is not kept where no folder is named


def test_anything_with_the_members_of_a_system_can_be_evaluated(folder) -> None:
    class Always(Bm25System):
        def search(self, task, depth, partial=None, progress=None):
            return {own.name: {query: {"a2": 1.0} for query in own.queries} for own in task.query_sets}

    assert evaluate(Always(), folder).per_query["mrr@10"] == {"a1": 1, "q2": 0}


class TestSelfMatches:
    """Only a document with the query's id and text is the query."""

    def warnings(self, tmp_path, queries, **settings):
        qrels = {"test": {query_id: {"a2": 1} for query_id in queries}}
        save_collection(Collection("toy", CORPUS, queries, qrels), tmp_path / "toy")
        return collection_task(tmp_path / "toy", **settings).warnings

    def test_ids_that_are_equal_by_accident_are_not_said(self, tmp_path) -> None:
        assert self.warnings(tmp_path, {"a1": "copy", "a3": "move"}) == ()

    def test_and_excluding_them_is(self, tmp_path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": "copy", "a3": CORPUS["a3"].text}, exclude_self=True)
        assert "'a1'" in warning and "'a3'" not in warning

    def test_both_kinds_are_counted(self, tmp_path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": "copy", "a3": " Wait in  a thread"})
        assert "1 query is a document too" in warning and "1 others share an id" in warning and "'a3'" in warning


class TestGrades:
    def warnings(self, tmp_path, grades, lowest=1.0):
        save_collection(Collection("toy", CORPUS, {"q": "copy a file"}, {"test": {"q": grades}}), tmp_path / "toy")
        return collection_task(tmp_path / "toy", min_relevant_grade=lowest).warnings

    def test_a_lowest_grade_that_no_grade_reaches(self, tmp_path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": 0.8, "a2": 0.4})
        assert "0.8" in warning and "--min-relevant-grade" in warning
        (warning,) = self.warnings(tmp_path, {"a1": 3, "a2": 1}, lowest=4)
        assert "3" in warning

    def test_fractions_below_the_default(self, tmp_path) -> None:
        (warning,) = self.warnings(tmp_path, {"a1": 1.0, "a2": 0.5, "a3": 0})
        assert "1 of 2 grades" in warning

    @pytest.mark.parametrize(
        ("grades", "lowest"),
        [({"a1": 1, "a2": 0}, 1.0), ({"a1": 3, "a2": 1}, 2.0), ({"a1": 1.0, "a2": 0.2}, 0.5), ({"a1": 2.5}, 1.0)],
    )
    def test_grades_that_fit(self, tmp_path, grades, lowest) -> None:
        assert self.warnings(tmp_path, grades, lowest) == ()


class TestMissingDocuments:
    @pytest.fixture
    def incomplete(self, tmp_path):
        qrels = {"test": {"a1": {"a2": 1, "gone": 2}, "q2": {"a3": 1}, "q3": {"away": 1}}}
        save_collection(Collection("toy", CORPUS, {**QUERIES, "q3": "sleep"}, qrels), tmp_path / "toy")
        return tmp_path / "toy"

    def test_they_are_refused_or_left_out_and_counted(self, incomplete, tmp_path) -> None:
        with pytest.raises(InvalidFileError) as raised:
            evaluate("bm25", incomplete)
        assert len(raised.value.errors) == 2
        assert "--missing-documents drop" in str(raised.value)
        for reused in (False, True):
            task = collection_task(incomplete, exclude_self=True, missing_documents="drop")
            found = evaluate("bm25", task, tmp_path / "out")
            assert "2 of 4 judgements" in found.warnings[0]
            assert (set(found.run), found.metrics["ndcg@10"], found.reused) == ({"a1", "q2"}, 1, reused)

    def test_nothing_left_is_refused(self, tmp_path) -> None:
        save_collection(Collection("toy", CORPUS, {"q": "copy"}, {"test": {"q": {"gone": 1}}}), tmp_path / "toy")
        with pytest.raises(InputError, match="no judgement above 0"):
            collection_task(tmp_path / "toy", missing_documents="drop")

    def test_a_whole_collection_says_nothing(self, folder) -> None:
        assert collection_task(folder, exclude_self=True, missing_documents="drop").warnings == ()
        assert load_collection(folder, missing_documents="drop").missing == {"test": 0}

    def test_the_flag(self, incomplete, capsys) -> None:
        words = ["evaluate", "bm25", "--collection", str(incomplete), "--json"]
        assert main(words) == 2
        capsys.readouterr()
        assert main([*words, "--missing-documents", "drop"]) == 0
        assert any("2 of 4" in warning for warning in json.loads(capsys.readouterr().out)["warnings"])
        assert main(["evaluate", "bm25", "--suite", "beir", "--missing-documents", "drop"]) == 2
