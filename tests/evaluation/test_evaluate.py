import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bixse import EncoderSystem, Evaluation, collection_task, evaluate
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document, files_of_split
from bixse.data.trec import read_run, write_run
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError, InvalidFileError, OutputExistsError
from bixse.evaluation.open_system import RUN_NAME, RunFileSystem
from bixse.evaluation.systems import System
from bixse.files.files import hash_files
from bixse.search.retrieval_settings import EncodingSettings
from bixse.search.tasks import QuerySet, Task
from helpers.toy import CORPUS, QUERIES, save_toy
from helpers.toy import QRELS as TOY_QRELS

QRELS = {"q1": {"d2": 1}, "q2": {"d3": 1}}
"""Query q1 is a document too."""


@pytest.fixture
def folder_of_toy(tmp_path):
    return save_toy(tmp_path / "toy")


@pytest.fixture
def folder(tmp_path):
    return save_toy(tmp_path / "toy", QRELS)


@pytest.mark.parametrize("bm25", [False, True], ids=["model", "bm25"])
def test_a_query_that_is_a_document_finds_itself_unless_it_is_left_out(folder, tiny_model_path, bm25):
    model = "bm25" if bm25 else tiny_model_path
    with_self = evaluate(model, folder)
    assert next(iter(with_self.run["q1"])) == "q1"
    assert with_self.metrics["mrr@10"] < 1
    left_out = evaluate(model, collection_task(folder, exclude_self=True))
    assert "q1" not in left_out.run["q1"]
    assert "d3" in left_out.run["q2"]
    assert left_out.metrics["mrr@10"] == 1


def test_a_finished_evaluation_warns_again_and_is_not_mixed_with_the_other(folder, tmp_path):
    out, other = tmp_path / "out", collection_task(folder, exclude_self=True)
    first, again = (evaluate("bm25", folder, out) for _ in range(2))
    assert (again.reused, again.warnings, again.run) == (True, first.warnings, first.run)
    assert (again.metrics, again.by_query) == (first.metrics, first.by_query)
    with pytest.raises(OutputExistsError, match=r"exclude_self"):
        evaluate("bm25", other, out)
    evaluate("bm25", other, tmp_path / "left-out")
    assert json.loads((tmp_path / "left-out" / "run.json").read_text())["config"]["exclude_self"] is True
    assert "q1" not in read_run(tmp_path / "left-out" / "run.trec")["q1"]


@pytest.mark.parametrize("content", [None, "[]", "q1 Q0 d1"])
def test_damaged_results_are_refused(folder, tmp_path, content):
    evaluate("bm25", folder, tmp_path / "out")
    (tmp_path / "out" / RUN_NAME).unlink()
    if content is not None:
        (tmp_path / "out" / RUN_NAME).write_text(content)
    with pytest.raises(InputError):
        evaluate("bm25", folder, tmp_path / "out")


def test_a_run_file_or_its_folder_is_scored_again_and_refused_for_other_queries(folder, tmp_path):
    first = evaluate("bm25", folder, tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out" / RUN_NAME):
        assert evaluate(path, folder).by_query == first.by_query
    write_run(tmp_path / "other.trec", {"another": {"q1": 1.0}}, "other")
    with pytest.raises(InputError, match="'another'"):
        evaluate(tmp_path / "other.trec", folder)


def test_a_system_that_finds_nothing_is_an_error_and_no_0(folder, tmp_path):
    task = Task("t", lambda: iter([("d", "copy")]), 1, (QuerySet("t", {"q": "wait"}, {"q": {"d": 1}}),))
    for _ in range(2):
        with pytest.raises(InputError):
            evaluate("bm25", task, tmp_path / "out")
    assert not (tmp_path / "out" / RUN_NAME).exists()
    queries = QuerySet("t", {"q": "wait", "r": "copy"}, {"q": {"d": 1}, "r": {"d": 1}})
    assert evaluate("bm25", Task("t", task.documents, 1, (queries,))).metrics["ndcg@10"] == 0.5


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
    run = tmp_path / "moved" / "run.trec"
    assert not evaluate(RunFileSystem(run), tmp_path / "moved-toy", tmp_path / "of-run").reused
    (tmp_path / "of-run" / "per_query.json").unlink()
    monkeypatch.chdir(run.parent)
    assert evaluate(RunFileSystem("run.trec"), tmp_path / "moved-toy", tmp_path / "of-run").reused
    assert (tmp_path / "of-run" / "per_query.json").is_file(), "written again"


def test_another_system_is_another_run(folder, tmp_path, tiny_model_path):
    model = build_encoder(str(tiny_model_path))
    first = evaluate(model, folder, tmp_path / "out")
    assert first.run == evaluate(tiny_model_path, folder).run
    assert evaluate(model, folder, tmp_path / "out").reused
    next(model.parameters()).data[0, 0] += 1
    evaluate(EncoderSystem(tiny_model_path, max_length=16), folder, tmp_path / "other")
    changes = ((model, "out", "weights"), ("bm25", "other", "model "), (tiny_model_path, "other", "max_length"))
    for system, out, changed in changes:
        with pytest.raises(OutputExistsError, match=f"changed: .*{changed}"):
            evaluate(system, folder, tmp_path / out)


def test_a_corpus_that_is_long_is_not_cached_where_no_folder_is_named(folder, tiny_model_path, encoded, monkeypatch):
    monkeypatch.setattr("bixse.evaluation.systems.MOST_CACHED", 2)
    for _ in range(2):
        evaluate(tiny_model_path, folder)
    assert sum(kind == "document" for kind, _ in encoded) == 2 * len(CORPUS)


def test_a_system_of_ones_own(folder):
    class Always(System):
        label = "always"

        def answers(self, task, depth, partial=None, progress=None):
            for sets in task.query_sets:
                for query in sets.queries:  # a block per query
                    yield sets.name, {query: {"d2": 1.0}}

    assert evaluate(Always(), folder).by_query["mrr@10"] == {"q1": 1, "q2": 0}


def warnings(tmp_path, queries, grades, **settings):
    qrels = {"test": dict.fromkeys(queries, grades)}
    save_collection(Collection("toy", CORPUS, queries, qrels), tmp_path / "toy")
    return collection_task(tmp_path / "toy", **settings).warnings


@pytest.mark.parametrize(
    ("queries", "exclude_self", "words"),
    [
        ({"q1": "copy", "d3": "move"}, False, ()),  # ids that are equal by accident
        ({"q1": "copy", "d3": CORPUS["d3"].text}, True, ("'q1'",)),
        ({"q1": "copy", "d3": " Wait in  a thread"}, False, ("1 queries are documents too", "1 others", "'d3'")),
        ({"d3": CORPUS["d3"].text}, True, ()),
    ],
)
def test_queries_with_the_id_of_a_document(tmp_path, queries, exclude_self, words):
    messages = warnings(tmp_path, queries, {"d2": 1}, exclude_self=exclude_self)
    assert len(messages) == bool(words)
    assert all(word in messages[0] for word in words)


@pytest.mark.parametrize(
    ("grades", "lowest", "fact"),
    [
        ({"q1": 0.8, "d2": 0.4}, 1.0, "no grade reaches"),
        ({"q1": 1.0, "d2": 0.5, "d3": 0}, 1.0, "1 of 2 grades"),
        ({"q1": 1, "d2": 0}, 1.0, None),
        ({"q1": 1.0, "d2": 0.2}, 0.5, None),
    ],
)
def test_grades_below_the_lowest_relevant_one(tmp_path, grades, lowest, fact):
    messages = warnings(tmp_path, {"q": "copy a file"}, grades, min_relevant_grade=lowest)
    assert [fact in message for message in messages] == [True] * (fact is not None)


def test_judgements_without_their_document_are_refused_or_left_out_and_counted(tmp_path, folder):
    save_toy(tmp_path / "lacks", {"q1": {"d2": 1, "gone": 2}, "q2": {"d3": 1}, "q3": {"away": 1}})
    with pytest.raises(InvalidFileError) as raised:
        evaluate("bm25", tmp_path / "lacks")
    (error,) = raised.value.errors
    assert "2 of 4 judged documents" in error.got and error.got.endswith("'gone', 'away'")
    for reused in (False, True):
        task = collection_task(tmp_path / "lacks", exclude_self=True, missing_documents="drop")
        result = evaluate("bm25", task, tmp_path / "out")
        assert "2 of 4 judgements" in result.warnings[0]
        assert "1 of 3 judged queries" in result.warnings[1] and "'q3'" in result.warnings[1]
        assert (set(result.run), result.metrics["ndcg@10"], result.reused) == ({"q1", "q2"}, 1, reused)
    assert collection_task(folder, exclude_self=True, missing_documents="drop").warnings == ()
    save_toy(tmp_path / "none", {"q1": {"gone": 1}})
    with pytest.raises(InputError, match="no judgement above 0"):
        collection_task(tmp_path / "none", missing_documents="drop")


def test_documents_come_in_file_order_as_often_as_wanted_and_judged_queries_alone(tmp_path):
    corpus = {**CORPUS, "e": Document("", "")}
    save_collection(Collection("toy", corpus, QUERIES, {"test": {"q2": {"d3": 2}}}), tmp_path / "toy")
    task = collection_task(tmp_path / "toy")
    for _ in range(2):
        assert list(task.documents()) == [(name, document.content) for name, document in corpus.items()]
    (judged,) = task.query_sets
    assert (task.name, task.count, judged.queries) == ("toy", 5, {"q2": QUERIES["q2"]})
    assert judged.qrels == {"q2": {"d3": 2.0}}
    assert "'e'" in task.warnings[0]


def test_an_error_of_the_last_document_is_told_before_anything_is_encoded(folder, tiny_model, encoded, tmp_path):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d4", "text": "again"}\n{"_id": "d5"}\n')
    with pytest.raises(InvalidFileError) as caught:
        evaluate(tiny_model, folder, tmp_path / "out")
    assert [(error.row, error.column) for error in caught.value.errors] == [(5, "_id"), (6, "text")]
    assert not encoded and not (tmp_path / "out").exists()


def test_the_corpus_is_parsed_once(folder, tiny_model, tmp_path):
    expected = evaluate(tiny_model, folder, tmp_path / "out")
    task, hashes = collection_task(folder), hash_files(files_of_split(folder, "test"))
    (folder / "corpus.jsonl").unlink()
    assert task.inputs == hashes
    assert evaluate(tiny_model, task).by_query == expected.by_query
    assert evaluate("bm25", task).warnings == evaluate(tiny_model, task, tmp_path / "out").warnings


def test_a_grade_of_0_as_the_lowest_relevant_one_and_a_corpus_without_texts_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="min_relevant_grade"):
        collection_task(folder, min_relevant_grade=0)
    save_collection(Collection("e", {"d": Document("", " ")}, {"q": "x"}, {"test": {"q": {"d": 1}}}), tmp_path / "e")
    with pytest.raises(InputError, match="got 1 documents"):
        collection_task(tmp_path / "e")


def test_the_corpus_is_read_once_for_all_run_files(folder, tmp_path):
    task, reads = collection_task(folder), []
    counted = replace(task, documents=lambda: (reads.append(1), task.documents())[1])
    for number in range(3):
        write_run(tmp_path / f"{number}.trec", {"q1": {"d2": 2.0, "other": 1.0}, "q2": {"d3": 1.0}}, "r")
        evaluation = evaluate(RunFileSystem(tmp_path / f"{number}.trec"), counted, tmp_path / "out" / str(number))
        assert any("1 of 3 documents of the run" in warning for warning in evaluation.warnings)
    assert evaluate(RunFileSystem(tmp_path / "0.trec"), counted, tmp_path / "out" / "0").reused
    assert len(reads) == 1


OBJECTS = (QUERIES, {name: {"title": each.title, "text": each.text} for name, each in CORPUS.items()}, TOY_QRELS)


def test_objects_have_the_figures_of_their_folder_and_leave_no_file(folder_of_toy, tiny_model, cache_path):
    for system, same in (("bm25", "bm25"), (tiny_model, tiny_model)):
        of_folder, of_objects = evaluate(system, folder_of_toy), evaluate(same, OBJECTS)
        assert (of_objects.metrics, of_objects.by_query) == (of_folder.metrics, of_folder.by_query)
        assert of_objects.warnings == of_folder.warnings
        assert evaluate(of_objects.run, OBJECTS).by_query == of_objects.by_query
        collection = Collection("toy", CORPUS, QUERIES, {"test": TOY_QRELS})
        assert evaluate(system, collection).by_query == of_objects.by_query
    assert not cache_path.exists()


def test_objects_and_a_folder_resume_and_refuse_another_collection(tmp_path):
    first = evaluate("bm25", OBJECTS, tmp_path / "out")
    assert evaluate("bm25", OBJECTS, tmp_path / "out").reused
    queries, corpus, qrels = OBJECTS
    with pytest.raises(OutputExistsError, match="changed: collection"):
        evaluate("bm25", (queries, {**corpus, "new": "a text"}, qrels), tmp_path / "out")
    run = {query: {name: np.float32(score) for name, score in hits.items()} for query, hits in first.run.items()}
    assert evaluate(run, OBJECTS, tmp_path / "run").metrics == first.metrics


def test_an_evaluation_is_a_mapping_a_table_and_a_frame_and_survives_a_file(tmp_path):
    first = evaluate("bm25", OBJECTS)
    assert dict(first) == {"nDCG@10": first.metrics["ndcg@10"], "R@100": first.metrics["recall@100"],
                           "RR@10": first.metrics["mrr@10"], "AP@100": first.metrics["map@100"]}  # fmt: skip
    frame = first.per_query
    assert (frame.index.name, list(frame.columns)) == ("query", list(first))
    assert frame.mean().to_dict() == pytest.approx(dict(first))
    assert "nDCG@10" in str(first) and "bm25" in str(first) and "<table" in first._repr_html_()
    first.save(tmp_path / "first.json")
    assert Evaluation.load(tmp_path / "first.json") == first
    (tmp_path / "other.json").write_text('{"task": "toy"}')
    for name in ("other.json", "none.json"):
        with pytest.raises(InputError):
            Evaluation.load(tmp_path / name)


@pytest.mark.parametrize(
    ("collection", "message"),
    [
        ((OBJECTS[1], OBJECTS[0], OBJECTS[2]), "queries: got .*; expected a text per id"),
        ((OBJECTS[2], OBJECTS[1], OBJECTS[0]), "expected a text per id.* in this order"),
        (({"d2": "copy"}, QUERIES, {"q1": {"d2": 1}}), "judged queries such as 'q1' in the corpus"),
        ((QUERIES, CORPUS, {"q1": {"d2": 2, "gone": 1}}), "1 of 2 judged documents that the corpus lacks.*'gone'"),
        ((QUERIES, CORPUS, {"q1": {"d2": 2}, "gone": {"d2": 1}}), "1 of 2 judged queries that the queries lack"),
        ((QUERIES, CORPUS, {"q1": {"d2": "high"}}), "got 'high'; expected a finite number"),
        ((QUERIES, CORPUS, {"q1": {"d2": 0}}), "no judgement above 0"),
        ((QUERIES, {1: "copy"}, TOY_QRELS), "corpus: got .*; expected .* ids as text"),
        ((QUERIES, {"d2": {"body": 3}}, TOY_QRELS), "all without title and text"),
        ((QUERIES, {"d2": {"text": 3}}, TOY_QRELS), "corpus: got .*expected a text or"),
        (({}, CORPUS, TOY_QRELS), "queries: got no entry"),
        ((QUERIES, CORPUS), "collection: got tuple of 2"),
        (QUERIES, "collection: got dict"),
        (EncodingSettings(), "collection: got EncodingSettings"),
    ],
)
def test_wrong_collections_are_refused(collection, message):
    with pytest.raises(InputError, match=message):
        evaluate("bm25", collection)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (torch.nn.Linear(2, 2), "system: got 'Linear'; expected a model"),
        (EncodingSettings(), "system: got 'EncodingSettings'"),
        ({"q1": ["d2"]}, "system: got"),
        ({}, "system: got"),
        ({query: {"d2": "high"} for query in QUERIES}, "got 'high'; expected a number"),
        ({"other": {"d2": 1.0}}, "queries"),
    ],
)
def test_wrong_systems_are_refused(system, message):
    with pytest.raises(InputError, match=message):
        evaluate(system, OBJECTS)


def test_a_result_is_a_frame_of_its_table():
    evaluation = Evaluation("toy", {"ndcg@10": 0.75}, {"ndcg@10": {"q1": 1.0, "q2": 0.5}}, {}, 0.0)
    assert evaluation.to_pandas().to_dict("records") == [{"metric": "nDCG@10", "mean": 0.75}]
