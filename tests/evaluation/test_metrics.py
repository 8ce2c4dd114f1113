import math
import random

import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.errors import InputError
from bixse.evaluation.metrics import evaluate_run, mean

NAMES = {
    "ndcg@1": "ndcg_cut_1",
    "ndcg@10": "ndcg_cut_10",
    "ndcg": "ndcg",
    "recall@3": "recall_3",
    "recall@10": "recall_10",
    "precision@3": "P_3",
    "map": "map",
    "map@3": "map_cut_3",
    "mrr": "recip_rank",
}
BINARY = ("recall@3", "precision@3", "mrr", "map", "map@3")


def random_case(seed):
    """Return graded judgements with zeros and negatives, a run with ties, near-ties and unjudged documents."""
    draw = random.Random(seed)
    documents = [f"d{number}" for number in range(draw.randint(1, 40))] + ["é", "Z", "\U0001f600", "\uffff"]
    qrels, run = {}, {}
    for query in range(8):
        judged = draw.sample(documents, draw.randint(1, len(documents)))
        qrels[f"q{query}"] = {document: draw.choice([-2, -1, 0, 0, 1, 2, 3, 7]) for document in judged}
        ranked = draw.sample(documents, draw.randint(0, len(documents)))
        scores = [draw.choice([0.1, 0.1 + 1e-12, 0.5, -3.0, draw.random(), 1e30, -0.0, 0.0]) for _ in ranked]
        run[f"q{query}"] = dict(zip(ranked, scores, strict=True))
    return qrels, run


@pytest.mark.parametrize("level", [1, 2, 3])
def test_equals_pytrec_eval_bit_for_bit(level):
    compared = 0
    for seed in range(200):
        qrels, run = random_case(seed)
        judged = {query: grades for query, grades in qrels.items() if max(grades.values()) >= 0}  # others crash it
        oracle = pytrec_eval.RelevanceEvaluator(judged, set(NAMES.values()), relevance_level=level).evaluate(run)
        ours = evaluate_run(qrels, run, [*NAMES, "mrr@3"], min_relevant_grade=level)
        for name, measure in NAMES.items():
            for query, value in ours[name].items():
                assert value == oracle[query][measure], (seed, name, query)
                compared += 1
        for query, value in ours["mrr@3"].items():  # which trec_eval lacks
            full = oracle[query]["recip_rank"]
            assert value == (full if full >= 1 / 3 else 0.0)
    assert compared > 9000


def positive(qrels):
    """Return the queries with a grade above 0, their negative grades as 0."""
    judged = {query: {d: max(grade, 0) for d, grade in grades.items()} for query, grades in qrels.items()}
    return {query: grades for query, grades in judged.items() if any(grades.values())}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_equals_ir_measures_bit_for_bit(level):
    im = pytest.importorskip("ir_measures")
    binary = (im.R(rel=level) @ 3, im.P(rel=level) @ 3, im.RR(rel=level), im.AP(rel=level), im.AP(rel=level) @ 3)
    names = dict(zip((im.nDCG, im.nDCG @ 3, *binary), ("ndcg", "ndcg@3", *BINARY), strict=True))
    for seed in range(30):
        qrels, run = random_case(seed)
        qrels = positive(qrels)
        ours = evaluate_run(qrels, run, names.values(), min_relevant_grade=level)
        for value in im.iter_calc(list(names), qrels, run):
            assert ours[names[value.measure]][value.query_id] == value.value


def test_a_query_that_is_not_answered_counts_as_zero():
    qrels = {"q1": {"d": 1}, "q2": {"d": 1}, "zeros": {"d": 0}, "negative": {"d": -1}, "none": {}}
    values = evaluate_run(qrels, {"zeros": {"d": 1.0}, "q1": {"d": 1.0}}, ["ndcg@10", "recall@100"])
    assert values == {"ndcg@10": {"q1": 1.0, "q2": 0.0}, "recall@100": {"q1": 1.0, "q2": 0.0}}
    assert mean(values) == {"ndcg@10": 0.5, "recall@100": 0.5}
    assert evaluate_run({"q1": {"d": 1}}, {}, ["ndcg@10"]) == {"ndcg@10": {"q1": 0.0}}


def test_fractional_grades_and_a_level_between_them():
    values = evaluate_run(
        {"q": {"a": 0.4, "b": 0.9}}, {"q": {"a": 2.0, "b": 1.0}}, ["mrr", "ndcg"], min_relevant_grade=0.5
    )
    assert values["mrr"]["q"] == 0.5
    assert values["ndcg"]["q"] == pytest.approx((0.4 + 0.9 / math.log2(3)) / (0.9 + 0.4 / math.log2(3)), abs=1e-15)


@pytest.mark.parametrize(
    ("qrels", "run", "options", "message"),
    [
        ({"q": {"d": 0}}, {"q": {"d": 1.0}}, {}, "none with a grade above 0"),
        ({"q": {"d": math.nan}}, {}, {}, "query 'q': grade of document 'd': got nan"),
        ({"q": {"c": 1, "d": "1"}}, {"q": {"d": 1.0}}, {}, "query 'q': grade of document 'd': got '1'"),
        ({"q": {"d": 1}}, {"q": {"c": 1.0, "d": "1"}}, {}, "score of document 'd': got '1'"),
        ({"q": {"d": 1}}, {"other": {"d": 1.0}}, {}, "queries such as 'other'"),
        ({"q": {"d": 1}}, {}, {"metrics": []}, "got none"),
        ({"q": {"d": 1}}, {}, {"metrics": ["nDCG@10"]}, "fix: write ndcg@10"),
        ({"q": {"d": 1}}, {}, {"metrics": ["recal@100"]}, "did you mean 'recall'"),
        ({"q": {"d": 1}}, {}, {"metrics": ["precision"]}, "fix: write precision@10"),
        ({"q": {"d": 1}}, {}, {"metrics": ["ndcg@0"]}, "@10"),
        ({"q": {"d": 1}}, {}, {"min_relevant_grade": 0}, "expected above 0"),
        ({"q": {"d": 1}}, {}, {"min_relevant_grade": math.nan}, "expected above 0"),
    ],
)
def test_unusable_input_is_refused(qrels, run, options, message):
    with pytest.raises(InputError, match=message):
        evaluate_run(qrels, run, **options)


names = st.text("abcdefgh", min_size=1, max_size=2)
grades = st.dictionaries(names, st.integers(-1, 3), min_size=1, max_size=12).filter(lambda own: max(own.values()) > 0)
scores = st.dictionaries(names, st.sampled_from([0.0, 0.5, 1.0, 2.5]), max_size=15)
METRICS = ("ndcg@5", "recall@5", "precision@5", "mrr@5", "map@5", "ndcg", "recall", "mrr", "map")


@settings(max_examples=100, deadline=None)
@given(grades, scores, st.randoms(use_true_random=False))
def test_order_of_run_and_judgements_changes_nothing_and_values_stay_in_range(judged, run, shuffler):
    expected = evaluate_run({"q": judged}, {"q": run}, METRICS)
    shuffled, shuffled_judged = list(run.items()), list(judged.items())
    shuffler.shuffle(shuffled)
    shuffler.shuffle(shuffled_judged)
    assert evaluate_run({"q": dict(shuffled_judged)}, {"q": dict(shuffled)}, METRICS) == expected
    assert all(0.0 <= values["q"] <= 1.0 for values in expected.values())
    perfect = evaluate_run({"q": judged}, {"q": judged}, METRICS)
    for name in ("ndcg@5", "ndcg", "mrr@5", "recall", "map"):
        assert perfect[name]["q"] == pytest.approx(1.0, abs=1e-12)
