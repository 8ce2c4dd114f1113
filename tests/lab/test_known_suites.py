"""The suites as data: their tasks, self-matches and sources are those of mteb."""

import pytest

from bixse.lab.suites.known_suites import SUITES

BEIR = SUITES["beir"]


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
