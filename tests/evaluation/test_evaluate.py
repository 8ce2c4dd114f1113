"""`evaluate`: a system on a collection folder."""

import json

import pytest

from bixse import EncoderSystem, collection_task, evaluate
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.trec import read_run, write_run
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError, InvalidFileError, OutputExistsError
from bixse.evaluation.systems import RUN_NAME, System
from bixse.evaluation.tasks import QuerySet, Task
from bixse.search import store

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
def test_a_query_that_is_a_document_finds_itself_unless_it_is_left_out(folder, tiny_model_path, bm25):
    model = "bm25" if bm25 else tiny_model_path
    found = evaluate(model, folder)
    assert next(iter(found.run["a1"])) == "a1"
    assert found.metrics["mrr@10"] < 1
    left_out = evaluate(model, collection_task(folder, exclude_self=True))
    assert "a1" not in left_out.run["a1"]
    assert "a3" in left_out.run["q2"]
    assert left_out.metrics["mrr@10"] == 1


def test_a_finished_evaluation_warns_again_and_is_not_mixed_with_the_other(folder, tmp_path):
    out, other = tmp_path / "out", collection_task(folder, exclude_self=True)
    first, again = (evaluate("bm25", folder, out) for _ in range(2))
    assert (again.reused, again.warnings, again.run) == (True, first.warnings, first.run)
    assert (again.metrics, again.per_query) == (first.metrics, first.per_query)
    with pytest.raises(OutputExistsError, match=r"exclude_self"):
        evaluate("bm25", other, out)
    evaluate("bm25", other, tmp_path / "left-out")
    assert json.loads((tmp_path / "left-out" / "run.json").read_text())["config"]["exclude_self"] is True
    assert "a1" not in read_run(tmp_path / "left-out" / "run.trec")["a1"]


@pytest.mark.parametrize("content", [None, "[]", "q1 Q0 d1"])
def test_damaged_results_are_refused(folder, tmp_path, content):
    evaluate("bm25", folder, tmp_path / "out")
    (tmp_path / "out" / RUN_NAME).unlink()
    if content is not None:
        (tmp_path / "out" / RUN_NAME).write_text(content)
    with pytest.raises(InputError):
        evaluate("bm25", folder, tmp_path / "out")


def test_a_run_file_or_the_folder_that_holds_it(folder, tmp_path):
    own = evaluate("bm25", folder, tmp_path / "out")
    for given in (tmp_path / "out", tmp_path / "out" / RUN_NAME):
        assert evaluate(given, folder).per_query == own.per_query


def test_a_run_file_of_other_queries_is_refused(folder, tmp_path):
    write_run(tmp_path / "other.trec", {"another": {"a1": 1.0}}, "other")
    with pytest.raises(InputError, match="'another'"):
        evaluate(tmp_path / "other.trec", folder)


def test_a_system_that_finds_nothing_leaves_an_empty_run(folder, tmp_path):
    task = Task("t", lambda: iter([("d", "copy")]), 1, (QuerySet("t", {"q": "wait"}, {"q": {"d": 1}}),))
    for reused in (False, True):
        found = evaluate("bm25", task, tmp_path / "out")
        assert (found.metrics["ndcg@10"], found.reused) == (0, reused)


def test_a_task_of_several_query_sets_is_refused(folder):
    task = collection_task(folder)
    with pytest.raises(InputError, match="evaluate_query_sets"):
        evaluate("bm25", Task("t", task.documents, task.count, task.query_sets * 2))


def test_a_run_goes_on_from_another_working_folder(folder, tmp_path, tiny_model_path, monkeypatch):
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


def test_another_system_is_another_run(folder, tmp_path, tiny_model_path):
    evaluate("bm25", folder, tmp_path / "out")
    with pytest.raises(OutputExistsError, match=r"changed: .*model/"):
        evaluate(tiny_model_path, folder, tmp_path / "out")
    evaluate(EncoderSystem(tiny_model_path, max_length=16), folder, tmp_path / "other")
    with pytest.raises(OutputExistsError, match=r"changed: .*model "):
        evaluate("bm25", folder, tmp_path / "other")
    with pytest.raises(OutputExistsError, match="max_length"):
        evaluate(tiny_model_path, folder, tmp_path / "other")


def test_a_loaded_model_is_evaluated_and_told_apart_by_its_weights(folder, tmp_path, tiny_model_path):
    model = build_encoder(str(tiny_model_path))
    found = evaluate(model, folder, tmp_path / "out")
    assert found.run == evaluate(tiny_model_path, folder).run
    assert evaluate(model, folder, tmp_path / "out").reused
    next(model.parameters()).data[0, 0] += 1
    with pytest.raises(OutputExistsError, match="weights"):
        evaluate(model, folder, tmp_path / "out")


def test_unchanged_documents_are_not_encoded_twice(folder, tmp_path, tiny_model_path, monkeypatch):
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


def test_a_system_of_ones_own(folder):
    class Always(System):
        label = "always"

        def search(self, task, depth, partial=None, progress=None):
            return {own.name: {query: {"a2": 1.0} for query in own.queries} for own in task.query_sets}

    assert evaluate(Always(), folder).per_query["mrr@10"] == {"a1": 1, "q2": 0}


def warnings(tmp_path, queries, grades, **settings):
    qrels = {"test": dict.fromkeys(queries, grades)}
    save_collection(Collection("toy", CORPUS, queries, qrels), tmp_path / "toy")
    return collection_task(tmp_path / "toy", **settings).warnings


@pytest.mark.parametrize(
    ("queries", "exclude_self", "said"),
    [
        ({"a1": "copy", "a3": "move"}, False, ()),  # ids that are equal by accident
        ({"a1": "copy", "a3": CORPUS["a3"].text}, True, ("'a1'",)),
        ({"a1": "copy", "a3": " Wait in  a thread"}, False, ("1 queries are documents too", "1 others", "'a3'")),
        ({"a3": CORPUS["a3"].text}, True, ()),
    ],
)
def test_queries_with_the_id_of_a_document(tmp_path, queries, exclude_self, said):
    found = warnings(tmp_path, queries, {"a2": 1}, exclude_self=exclude_self)
    assert len(found) == bool(said)
    assert all(word in found[0] for word in said)


@pytest.mark.parametrize(
    ("grades", "lowest", "said"),
    [
        ({"a1": 0.8, "a2": 0.4}, 1.0, "no grade reaches"),
        ({"a1": 3, "a2": 1}, 4.0, "no grade reaches"),
        ({"a1": 1.0, "a2": 0.5, "a3": 0}, 1.0, "1 of 2 grades"),
        ({"a1": 1, "a2": 0}, 1.0, None),
        ({"a1": 3, "a2": 1}, 2.0, None),
        ({"a1": 1.0, "a2": 0.2}, 0.5, None),
    ],
)
def test_grades_below_the_lowest_relevant_one(tmp_path, grades, lowest, said):
    found = warnings(tmp_path, {"q": "copy a file"}, grades, min_relevant_grade=lowest)
    assert [said in line for line in found] == [True] * (said is not None)


def test_judgements_without_their_document_are_refused_or_left_out_and_counted(tmp_path, folder):
    qrels = {"test": {"a1": {"a2": 1, "gone": 2}, "q2": {"a3": 1}, "q3": {"away": 1}}}
    save_collection(Collection("toy", CORPUS, {**QUERIES, "q3": "sleep"}, qrels), tmp_path / "lacks")
    with pytest.raises(InvalidFileError) as raised:
        evaluate("bm25", tmp_path / "lacks")
    assert len(raised.value.errors) == 2
    for reused in (False, True):
        task = collection_task(tmp_path / "lacks", exclude_self=True, missing_documents="drop")
        found = evaluate("bm25", task, tmp_path / "out")
        assert "2 of 4 judgements" in found.warnings[0]
        assert (set(found.run), found.metrics["ndcg@10"], found.reused) == ({"a1", "q2"}, 1, reused)
    assert collection_task(folder, exclude_self=True, missing_documents="drop").warnings == ()
    save_collection(Collection("none", CORPUS, {"q": "copy"}, {"test": {"q": {"gone": 1}}}), tmp_path / "none")
    with pytest.raises(InputError, match="no judgement above 0"):
        collection_task(tmp_path / "none", missing_documents="drop")
