"""A reranked first stage: its order, what lies below the depth, ties, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from bixse.encoders.loading.load_scorer import load_scorer
from bixse.errors import InputError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.open_system import RunFileSystem
from bixse.evaluation.reranking import RerankedSystem
from bixse.evaluation.systems import Bm25System
from bixse.relevance import DEPTH, ranked
from helpers.rerankers import save_reranker


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model_path):
    return save_reranker(tiny_model_path, tmp_path_factory.mktemp("reranker") / "model")


@pytest.fixture
def task(actions):
    return collection_task(actions)


@pytest.mark.parametrize("name", ["owner/name", "none", ""])
def test_what_is_no_reranker(name, tiny_model_path):
    for other in (name, tiny_model_path):
        with pytest.raises(InputError, match="reranker"):
            RerankedSystem(Bm25System(), other, 10)


def test_a_depth_below_1_is_refused(folder):
    with pytest.raises(InputError, match="got 0"):
        RerankedSystem(Bm25System(), folder, 0)


def test_candidates_are_those_of_the_task_and_not_of_another_of_its_name(folder, actions, task):
    system = RerankedSystem(Bm25System(), folder, 10)
    for other in (task, collection_task(actions, exclude_self=True), collection_task(actions, "train")):
        assert system.search(other, DEPTH) == RerankedSystem(Bm25System(), folder, 10).search(other, DEPTH)


@pytest.mark.parametrize("depth", [1, 3, 200])
def test_the_best_are_ordered_by_logit_and_the_others_follow(folder, task, depth):
    first = Bm25System().search(task, DEPTH)[task.name]
    run = RerankedSystem(Bm25System(), folder, depth).search(task, DEPTH)[task.name]
    model, texts = load_scorer(folder), dict(task.documents())
    for query, hits in list(first.items())[:5]:
        before, after = ranked(hits), ranked(run[query])
        names = before[:depth]
        text = task.query_sets[0].queries[query]
        logits = model.logits([text] * len(names), [texts[name] for name in names])
        assert [run[query][name] for name in names] == pytest.approx(logits.tolist(), abs=1e-4)
        assert set(after[:depth]) == set(names)
        assert after[depth:] == before[depth:DEPTH]


def test_a_depth_beyond_that_of_the_first_stage_searches_deeper(folder, tmp_path, actions):
    task = collection_task(actions)
    query = next(iter(task.query_sets[0].queries))
    names = [name for name, _ in task.documents()]
    lines = [f"{query} Q0 {name} {rank} {-rank} x" for rank, name in enumerate(names[:110], 1)]
    (tmp_path / "first.trec").write_text("\n".join(lines) + "\n")
    run = RerankedSystem(RunFileSystem(tmp_path / "first.trec"), folder, 110).search(task, DEPTH)[task.name]
    assert len(run[query]) == DEPTH
    assert set(run[query]) - set(names[:DEPTH])


def test_equal_texts_tie_and_their_order_does_not_depend_on_the_first_stage(folder, task):
    twins = dict(task.documents())
    one, other = sorted(twins)[:2]
    twins[other] = twins[one]
    query = next(iter(task.query_sets[0].queries))
    orders = []
    for scores in ({one: 2.0, other: 1.0}, {one: 1.0, other: 2.0}):
        system = RerankedSystem(Bm25System(), folder, 10)
        system._loaded = load_scorer(folder)
        hits = system._rerank({query: "copy"}, {query: scores}, twins, 10, None)[query]
        assert hits[one] == hits[other]
        orders.append(ranked(hits))
    assert orders[0] == orders[1]


def test_a_query_without_hits_stays_without(folder, task):
    part = replace(task.query_sets[0], queries={**task.query_sets[0].queries, "q": "zzz"})
    asked = replace(task, query_sets=(part,))
    assert RerankedSystem(Bm25System(), folder, 10).search(asked, DEPTH)[task.name]["q"] == {}


def test_a_record_knows_reranker_and_depth(folder, tmp_path, task, tiny_model_path):
    system = RerankedSystem(Bm25System(), folder, 5)
    first = evaluate(system, task, tmp_path / "out")
    assert evaluate(RerankedSystem(Bm25System(), folder, 5), task, tmp_path / "out").reused
    assert first.metrics["ndcg@10"] == pytest.approx(np.mean(list(first.by_query["ndcg@10"].values())))
    other = save_reranker(tiny_model_path, tmp_path / "model", seed=1)
    others = [RerankedSystem(Bm25System(), *given) for given in ((folder, 6), (other, 5))]
    for changed in others:
        with pytest.raises(InputError):
            evaluate(changed, task, tmp_path / "out")
    assert len({each.name for each in (system, *others)}) == 3


def test_a_run_of_another_collection_is_refused(folder, task, tmp_path):
    query = next(iter(task.query_sets[0].queries))
    (tmp_path / "other.trec").write_text(f"{query} Q0 unknown 1 1.0 x\n")
    with pytest.raises(InputError):
        RerankedSystem(RunFileSystem(tmp_path / "other.trec"), folder, 10).search(task, DEPTH)
