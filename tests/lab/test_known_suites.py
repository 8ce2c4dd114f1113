"""The suites as data, as mteb has them, and the cut of a task: the same lists on every machine."""

import pytest

from bixse.data.collection import Collection, Document, save_collection
from bixse.errors import InputError
from bixse.evaluation.tasks import collection_task, cut_collection
from bixse.lab.suites.known_suites import SUITES
from bixse.lab.suites.suite_run import short_task

BEIR = SUITES["beir"]
CORPUS = [f"d{number}" for number in range(200)]
QRELS = {f"q{number}": {f"d{number}": 1.0, f"d{number + 50}": 0.0} for number in range(40)}


def test_the_tasks_of_beir():
    assert len({task.group or task.name for task in BEIR.tasks}) == 15
    assert sum(task.group == "CQADupstackRetrieval" for task in BEIR.tasks) == 12
    assert [task.name for task in BEIR.optional if task.hub is None] == ["BioASQ", "Signal1M", "TRECNEWS", "Robust04"]
    short = SUITES["beir-short"].tasks
    assert len(short) == 6 and all(task in BEIR.tasks for task in short)


def test_every_task_says_how_to_get_its_data():
    for task in (*BEIR.tasks, *BEIR.optional, *SUITES["nanobeir"].tasks):
        assert any(word in task.fetch for word in ("curl -LO https://", "--download", "licence")), task


@pytest.mark.parametrize(("suite", "benchmark"), [("beir", "BEIR"), ("nanobeir", "NanoBEIR")])
def test_splits_self_matches_and_data_sets_are_mteb_s(suite, benchmark):
    whole = pytest.importorskip("mteb").get_benchmark(benchmark).tasks
    theirs = {part.metadata.name: part for task in whole for part in getattr(task, "tasks", [task])}
    ours = {task.name: task for task in SUITES[suite].tasks}
    assert ours.keys() == theirs.keys()
    for name, task in ours.items():
        assert task.exclude_self == theirs[name].ignore_identical_ids, name
        assert task.splits[0] in theirs[name].eval_splits, name
        assert task.hub == theirs[name].metadata.dataset["path"], name


@pytest.mark.parametrize(
    ("suite", "tasks"), [("mteb-eng-v2", 41), ("mteb-multilingual-v1", 132), ("mteb-multilingual-v2", 131)]
)
def test_mteb_has_the_benchmarks(suite, tasks):
    assert len(pytest.importorskip("mteb").get_benchmark(SUITES[suite].benchmark).tasks) == tasks


def test_a_cut_holds_judged_passages_and_depends_on_the_task_alone():
    cut = cut_collection("t", QRELS, CORPUS, queries=10, passages=60)
    assert (len(cut.queries), len(cut.documents)) == (10, 60)
    assert {name for query in cut.queries for name in QRELS[query]} <= set(cut.documents)
    assert cut.documents == tuple(name for name in CORPUS if name in set(cut.documents))
    assert cut.queries == tuple(name for name in QRELS if name in set(cut.queries))
    turned = cut_collection("t", dict(reversed(QRELS.items())), CORPUS[::-1], 10, 60)
    assert (set(turned.queries), set(turned.documents)) == (set(cut.queries), set(cut.documents))
    assert set(cut_collection("u", QRELS, CORPUS, 10, 60).queries) != set(cut.queries)


def test_a_small_task_is_complete_without_queries_that_have_no_relevant_document():
    cut = cut_collection("t", {**QRELS, "none": {"d1": 0.0}}, CORPUS)
    assert (set(cut.queries), cut.documents) == (QRELS.keys(), tuple(CORPUS))


def test_more_judged_passages_than_the_limit_are_refused():
    with pytest.raises(InputError, match="got 20 judged passages of 10 queries; expected at most 19"):
        cut_collection("t", QRELS, CORPUS, 10, 19)


def test_a_short_task_is_the_cut_of_its_collection(tmp_path):
    corpus = {name: Document("", f"text of {name}") for name in CORPUS}
    queries = {name: f"question {name}" for name in QRELS}
    save_collection(Collection("fiqa", corpus, queries, {"test": QRELS}), tmp_path / "fiqa")
    task = short_task(collection_task(tmp_path / "fiqa", exclude_self=True), "FiQA2018", queries=10, passages=60)
    cut = cut_collection("FiQA2018", QRELS, CORPUS, 10, 60)
    assert tuple(task.query_sets[0].queries) == cut.queries
    assert tuple(name for name, _ in task.documents()) == cut.documents
    assert (task.count, task.exclude_self) == (60, True)
