"""The metrics beside those of ranx and ir_measures: equal where they mean the same, and where they differ."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from bixse.evaluation.metrics import evaluate_run

NAMES = ("ndcg@3", "ndcg@10", "ndcg", "recall@3", "recall@10", "precision@10", "mrr", "mrr@3", "map", "map@10")
LEVELS = (1, 2, 3)
WITH_RANX = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from ranx import Qrels, Run, evaluate
answers = []
for qrels, run, names in json.load(sys.stdin):
    scored = Run(run)
    evaluate(Qrels(qrels), scored, names, make_comparable=True)
    answers.append({name: {query: float(value) for query, value in scored.scores[name].items()} for name in names})
json.dump(answers, sys.stdout)
"""


def drawn(draw: random.Random, count: int, ties: bool) -> list[int]:
    return draw.choices(range(4), k=count) if ties else draw.sample(range(1000), count)


def case(seed: int, ties: bool):
    """Graded judgements with zeros, a run with unjudged documents, one query that the run does not answer."""
    draw = random.Random(seed)
    documents = [f"d{number}" for number in range(draw.randint(5, 40))]
    qrels = {f"q{query}": {d: draw.choice([0, 0, 1, 2, 3]) for d in draw.sample(documents, 5)} for query in range(6)}
    for judged in qrels.values():
        judged[next(iter(judged))] = 3
    found = {query: draw.sample(documents, draw.randint(1, len(documents))) for query in list(qrels)[1:]}
    return qrels, {
        query: {d: float(s) for d, s in zip(ids, drawn(draw, len(ids), ties), strict=True)}
        for query, ids in found.items()
    }


def ranx(*cases):
    """ranx' values, in a process of its own in which numba compiles nothing, which takes a minute."""
    if find_spec("ranx") is None:
        pytest.skip("ranx is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WITH_RANX], input=json.dumps(cases), capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ranx_name(name: str, level: int) -> str:
    return name if name.startswith("ndcg") or level == 1 else f"{name}-l{level}"


def ir_measure(name: str, level: int):
    im = pytest.importorskip("ir_measures")
    word, _, cut = name.partition("@")
    binary = {"recall": im.R, "precision": im.P, "mrr": im.RR, "map": im.AP}
    measure = im.nDCG if word == "ndcg" else binary[word](rel=level)
    return measure @ int(cut) if cut else measure


def test_ranx_gives_the_same_values_where_no_scores_are_equal():
    """Up to the rounding of sums of at most 40 terms, which ranx adds in another order."""
    cases = [(*case(seed, ties=False), level) for seed in range(12) for level in LEVELS]
    theirs = ranx(*((qrels, run, [ranx_name(name, level) for name in NAMES]) for qrels, run, level in cases))
    for (qrels, run, level), found in zip(cases, theirs, strict=True):
        ours = evaluate_run(qrels, run, NAMES, min_relevant_grade=level)
        for name in NAMES:
            assert ours[name] == pytest.approx(found[ranx_name(name, level)], rel=40 * sys.float_info.epsilon)


@pytest.mark.parametrize("level", LEVELS)
def test_ir_measures_gives_the_same_bits_ties_included(level):
    im = pytest.importorskip("ir_measures")
    measures = {name: ir_measure(name, level) for name in NAMES}
    for seed in range(30):
        ties = bool(seed % 2)
        qrels, run = case(seed, ties)
        theirs = {(str(one.measure), one.query_id): one.value for one in im.iter_calc(measures.values(), qrels, run)}
        for name, values in evaluate_run(qrels, run, NAMES, min_relevant_grade=level).items():
            if not ties or name != "mrr@3":
                assert values == {query: theirs[str(measures[name]), query] for query in qrels}


def test_where_ranx_differs():
    """Equal scores keep the order of the run, grades are cut to whole numbers, a query without relevant counts as 0."""
    one, fractions, none = {"q": {"a": 1, "b": 0}}, {"q": {"a": 0.5, "b": 1}}, {"p": {"a": 1}, "q": {"a": 0}}
    forward, backward = {"q": {"a": 1.0, "b": 1.0}}, {"q": {"b": 1.0, "a": 1.0}}
    both = {"p": {"a": 1.0}, "q": {"a": 1.0}}
    first, second, cut, unjudged = ranx(
        (one, forward, ["mrr"]), (one, backward, ["mrr"]), (fractions, forward, ["ndcg"]), (none, both, ["mrr"])
    )
    assert (first["mrr"]["q"], second["mrr"]["q"]) == (1.0, 0.5)
    assert [evaluate_run(one, run, ["mrr"])["mrr"]["q"] for run in (forward, backward)] == [0.5, 0.5]
    assert cut["ndcg"]["q"] < evaluate_run(fractions, forward, ["ndcg"])["ndcg"]["q"]
    assert unjudged["mrr"] == {"p": 1.0, "q": 0.0}
    assert evaluate_run(none, both, ["mrr"])["mrr"] == {"p": 1.0}


def test_where_ir_measures_differs():
    """No fractional grades; a query without relevant counts as 0; equal scores in `RR@k` by document id, ascending."""
    im = pytest.importorskip("ir_measures")
    run = {"p": {"a": 1.0}, "q": {"a": 1.0}}
    with pytest.raises(TypeError, match="integer"):
        list(im.iter_calc([im.nDCG], {"q": {"a": 0.5}}, {"q": {"a": 1.0}}))
    qrels, tied = {"q": {"a": 1}}, {"q": {"a": 1.0, "b": 1.0}}
    assert [one.value for one in im.iter_calc([im.RR], qrels, tied)] == [0.5]
    assert [one.value for one in im.iter_calc([im.RR @ 3], qrels, tied)] == [1.0]
    assert evaluate_run(qrels, tied, ["mrr@3"])["mrr@3"] == {"q": 0.5}
    found = {one.query_id: one.value for one in im.iter_calc([im.RR], {"p": {"a": 1}, "q": {"a": 0}}, run)}
    assert found == {"p": 1.0, "q": 0.0}
