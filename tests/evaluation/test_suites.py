"""The suites as data: their tasks, self-matches and sources are those of mteb."""

from __future__ import annotations

import pytest

from bixse.errors import InputError
from bixse.evaluation.suites.known_suites import BEIR_TASKS, LICENSED_TASKS, SHORT, SUITES, suite_named


def test_an_unknown_suite_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"got 'beir-shrt'; expected one of local, beir, .*did you mean 'beir-short'"):
        suite_named("beir-shrt")


def test_the_tasks_of_beir() -> None:
    groups = {task.group or task.name for task in BEIR_TASKS}
    assert len(groups) == 15
    assert sum(task.group == "CQADupstackRetrieval" for task in BEIR_TASKS) == 12
    assert {task.name for task in LICENSED_TASKS} == {"BioASQ", "Signal1M", "TRECNEWS", "Robust04"}
    assert all(task.hub_name is None for task in LICENSED_TASKS)


def test_the_paper_s_validation_set_is_a_part_of_beir_and_says_that_it_leaks() -> None:
    assert {task.name for task in SUITES["beir-short"].tasks} == set(SHORT)
    assert "selection leak" in str(SUITES["beir-short"].note)


@pytest.mark.parametrize("task", [*BEIR_TASKS, *LICENSED_TASKS, *SUITES["nanobeir"].tasks], ids=lambda task: task.name)
def test_every_task_says_how_to_get_its_data(task) -> None:
    assert any(word in task.fetch for word in ("curl -LO https://", "--download", "licence"))
    assert task.name in task.folders


@pytest.mark.parametrize("name", ["beir", "nanobeir"])
def test_splits_self_matches_and_data_sets_are_mteb_s(name) -> None:
    mteb = pytest.importorskip("mteb")
    whole = mteb.get_benchmark({"beir": "BEIR", "nanobeir": "NanoBEIR"}[name]).tasks
    theirs = {part.metadata.name: part for task in whole for part in getattr(task, "tasks", [task])}
    ours = {task.name: task for task in SUITES[name].tasks}
    assert ours.keys() == theirs.keys()
    for task_name, task in ours.items():
        their = theirs[task_name]
        assert task.exclude_self == their.ignore_identical_ids, task_name
        assert task.splits[0] in their.eval_splits, task_name
        assert task.hub_name == their.metadata.dataset["path"], task_name


@pytest.mark.parametrize(
    ("suite", "tasks"), [("mteb-eng-v2", 41), ("mteb-multilingual-v1", 132), ("mteb-multilingual-v2", 131)]
)
def test_mteb_has_the_benchmarks(suite, tasks) -> None:
    mteb = pytest.importorskip("mteb")
    assert len(mteb.get_benchmark(SUITES[suite].benchmark).tasks) == tasks
    assert f"{tasks} tasks" in SUITES[suite].about
