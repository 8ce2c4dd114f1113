"""The metrics beside those of ranx and ir_measures: equal where they mean the same, and where they differ."""

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from bixse.evaluation.metrics import evaluate_run

NAMES = ("ndcg@3", "ndcg", "recall@3", "precision@10", "mrr", "mrr@3", "map", "map@10")
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


def case(seed, ties):
    """Graded judgements with zeros, a run with unjudged documents, one query that the run does not answer."""
    draw = random.Random(seed)
    documents = [f"d{number}" for number in range(draw.randint(5, 40))]
    qrels = {f"q{query}": {d: draw.choice([0, 0, 1, 2, 3]) for d in draw.sample(documents, 5)} for query in range(6)}
    run = {}
    for query, judged in qrels.items():
        judged[next(iter(judged))] = 3
        found = draw.sample(documents, draw.randint(1, len(documents)))
        scores = draw.choices(range(4), k=len(found)) if ties else draw.sample(range(1000), len(found))
        run[query] = dict(zip(found, map(float, scores), strict=True))
    del run["q0"]
    return qrels, run


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


def test_ranx_gives_the_same_values_where_no_scores_are_equal():
    """Up to the rounding of sums of at most 40 terms, which ranx adds in another order."""
    names = {(name, level): name if name.startswith("ndcg") or level == 1 else f"{name}-l{level}"
             for name in NAMES for level in (1, 2, 3)}  # fmt: skip
    cases = [case(seed, ties=False) for seed in range(12)]
    theirs = ranx(*((qrels, run, sorted(set(names.values()))) for qrels, run in cases))
    for (qrels, run), found in zip(cases, theirs, strict=True):
        for (name, level), their_name in names.items():
            ours = evaluate_run(qrels, run, [name], min_relevant_grade=level)[name]
            assert ours == pytest.approx(found[their_name], rel=40 * sys.float_info.epsilon)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_ir_measures_gives_the_same_bits_ties_included(level):
    im = pytest.importorskip("ir_measures")
    binary = {"recall": im.R, "precision": im.P, "mrr": im.RR, "map": im.AP}
    measures = {}
    for name in NAMES:
        word, _, cut = name.partition("@")
        measure = im.nDCG if word == "ndcg" else binary[word](rel=level)
        measures[name] = measure @ int(cut) if cut else measure
    for seed in range(30):
        ties = bool(seed % 2)
        qrels, run = case(seed, ties)
        theirs = {(str(one.measure), one.query_id): one.value for one in im.iter_calc(measures.values(), qrels, run)}
        for name, values in evaluate_run(qrels, run, NAMES, min_relevant_grade=level).items():
            if not ties or name != "mrr@3":  # equal scores in `RR@k` are ordered by document id, ascending
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
    with pytest.raises(TypeError, match="integer"):
        list(im.iter_calc([im.nDCG], {"q": {"a": 0.5}}, {"q": {"a": 1.0}}))
    qrels, tied = {"q": {"a": 1}, "p": {"a": 0}}, {"q": {"a": 1.0, "b": 1.0}, "p": {"a": 1.0}}
    assert {one.query_id: one.value for one in im.iter_calc([im.RR], qrels, tied)} == {"q": 0.5, "p": 0.0}
    assert {one.query_id: one.value for one in im.iter_calc([im.RR @ 3], qrels, tied)} == {"q": 1.0, "p": 0.0}
    assert evaluate_run(qrels, tied, ["mrr@3"])["mrr@3"] == {"q": 0.5}
