import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from bixse import evaluate_few_labels
from bixse.errors import InputError
from bixse.evaluation.metrics import evaluate_run

PRECISION = ["precision@2"]
DRAWN = [("q00", "d0"), ("q01", "d1"), ("q02", "d2")]


def population(queries, documents, seed=0, rate=None):
    """Judge's grades, people's labels that they are somewhat like, and two rankings; or labels of 1 at a rate."""
    generator = np.random.default_rng(seed)
    pairs = [(f"q{q:02}", f"d{d}") for q in range(queries) for d in range(documents)]
    labels = {pair: float(generator.random() < rate) if rate else int(generator.integers(0, 4)) / 3 for pair in pairs}
    grades = {pair: float(np.clip(labels[pair] + generator.normal(0, 0.3), 0, 1)) for pair in pairs}
    runs = {name: {query: {} for query, _ in pairs} for name in ("a", "b")}
    for name, noise in (("a", 0.3), ("b", 1.0)):
        for query, document in pairs:
            runs[name][query][document] = labels[query, document] + float(generator.normal(0, noise))
    return runs, grades, labels


def qrels_of(labels):
    qrels = {}
    for (query, document), relevance in labels.items():
        qrels.setdefault(query, {})[document] = relevance
    return qrels


def some(labels, count, seed=0):
    pairs = sorted(labels)
    return {pairs[i]: labels[pairs[i]] for i in np.random.default_rng(seed).choice(len(pairs), count, replace=False)}


def only(evaluated, metric, baseline=None):
    wanted = (metric, baseline, "a")
    return next(each for each in evaluated.estimates if (each.metric, each.baseline, each.system) == wanted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": {}}, "none of a graded pair"),
        ({"labels": {("q00", "nowhere"): 1.0}}, "none of a graded pair"),
        ({"probabilities": {("q00", "d0"): 0.5}}, "without one"),
        ({"probabilities": dict.fromkeys(DRAWN, 0.0)}, "0.0"),
        ({"probabilities": dict.fromkeys(DRAWN, 1.5)}, "1.5"),
        ({"metrics": ["mrr@10"]}, "mrr@10"),
        ({"metrics": ["precision"]}, "precision"),
        ({"metrics": []}, "no metric"),
        ({"runs": {}}, "no run"),
        ({"runs": {"a": {"other": {"d0": 1.0}}}}, "4 of 4 queries"),
        ({"positive_from": 0.0}, "relevance 0"),
        ({"grades": {("q00", "d0"): 1.0}}, "1 query"),
    ],
)
def test_refused(change, said):
    runs, grades, labels = population(4, 3)
    labels = {pair: labels[pair] for pair in DRAWN}
    with pytest.raises(InputError, match=said):
        evaluate_few_labels(**{"runs": runs, "grades": grades, "labels": labels, **change})


def test_labels_and_documents_without_a_grade_are_counted():
    runs, grades, labels = population(5, 4)
    del grades["q00", "d0"]
    drawn = some(labels, 9) | {("q00", "d0"): 1.0, ("q77", "d0"): 1.0}
    found = evaluate_few_labels(runs, grades, drawn, metrics=["precision@4"])
    assert found.labelled == len(drawn.keys() & grades.keys())
    assert [line.split(" of ")[0] for line in found.joined] == ["labels: 2", "a: 1", "b: 1"]


def test_one_useful_label_or_equal_labels_give_no_interval():
    runs, grades, labels = population(6, 8)
    top = {(query, max(scores, key=scores.get)) for query, scores in runs["a"].items()}
    drawn = {pair: labels[pair] for pair in sorted(labels.keys() - top)[:9]} | {min(top): 1.0}
    first = only(evaluate_few_labels(runs, grades, drawn, metrics=["precision@1"]), "precision@1")
    assert first.queries.value is not None
    assert (first.labels_worth, first.labels.low, first.queries.high, first.plain.low) == (None,) * 4
    equal = dict.fromkeys(some(labels, 10), 0.0)
    assert only(evaluate_few_labels(runs, grades, equal, metrics=["precision@2"]), "precision@2").labels.low is None


def test_ndcg_needs_whole_queries():
    runs, grades, labels = population(25, 12)
    drawn = some(labels, 40)
    with pytest.raises(InputError, match=r"ndcg: got labels of pairs; .* label whole queries"):
        evaluate_few_labels(runs, grades, drawn, metrics=["ndcg@10"])
    found = evaluate_few_labels(runs, grades, drawn)
    assert {estimate.metric for estimate in found.estimates} == {"precision@10"} and "nDCG is left out" in found.text()
    whole = {pair: z for pair, z in labels.items() if pair[0] in ("q03", "q07", "q11", "q19")}
    found = evaluate_few_labels(runs, grades, whole)
    assert {estimate.metric for estimate in found.estimates} == {"ndcg@10", "precision@10"}
    assert "left out" not in found.text()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_interval_covers_the_truth(stopped):
    covered, errors = [], []
    for seed in range(250):
        runs, grades, labels = population(25, 12, seed, rate=0.07)
        drawn, chances = some(labels, 40, seed + 1000), None
        if stopped:  # in the queries of the first half, rare grades are drawn three times as often
            chances = {pair: 0.9 if grades[pair] > 0.5 else 0.3 for pair in labels if pair[0] < "q12"}
            share = np.random.default_rng(seed + 1000).random(len(chances))
            drawn = {pair: labels[pair] for pair, one in zip(chances, share, strict=True) if one < chances[pair]}
        (estimate,) = evaluate_few_labels({"a": runs["a"]}, grades, drawn, chances, scaled=stopped).estimates
        if estimate.labels.low is not None:
            values = evaluate_run(qrels_of(labels), runs["a"], [estimate.metric], 0.5)[estimate.metric].values()
            truth = sum(values) / 25
            covered.append(estimate.labels.low <= truth <= estimate.labels.high)
            errors.append(estimate.labels.value - truth)
    assert len(covered) > 150 and 0.9 < np.mean(covered) < 0.995 and abs(np.mean(errors)) < 0.02


@pytest.mark.parametrize("constant", [0.0, 0.5, 1.0])
def test_a_constant_judge_is_worth_no_label(constant):
    runs, grades, labels = population(12, 8)
    drawn = some(labels, 25)
    found = evaluate_few_labels(runs, dict.fromkeys(grades, constant), drawn, metrics=["precision@3"])
    for estimate in found.estimates:
        assert estimate.labels == estimate.plain and estimate.labels_worth == 25


def test_all_labels_give_the_metric_itself():
    runs, grades, labels = population(45, 6, seed=3)
    found = evaluate_few_labels(runs, grades, labels, metrics=["ndcg@4", "precision@2"])
    a, b = (evaluate_run(qrels_of(labels), runs[name], ["ndcg@4", "precision@2"], 0.5) for name in "ab")
    for metric in a:
        alone, against = only(found, metric), only(found, metric, "b")
        differences = [a[metric][query] - b[metric][query] for query in a[metric]]
        assert alone.queries.value == pytest.approx(np.mean(list(a[metric].values())))
        judged = evaluate_run(qrels_of(grades), runs["a"], [metric], 0.5)[metric]
        assert alone.judge == pytest.approx(np.mean(list(judged.values())))
        assert against.queries.value == pytest.approx(np.mean(differences))
        assert (against.labels.low, against.labels.few) == (None, "exact")
        interval = stats.t.interval(0.95, 44, np.mean(differences), stats.sem(differences))
        assert (against.queries.low, against.queries.high) == pytest.approx(interval)


def test_few_queries_cannot_tell_and_equal_systems_do_not_differ():
    runs, grades, labels = population(25, 6, seed=3)
    against = only(evaluate_few_labels(runs, grades, labels, metrics=["ndcg@4"]), "ndcg@4", "b")
    assert (against.queries.verdict(), against.queries.few) == ("cannot tell", "25 queries; at least 40")
    runs, grades, labels = population(45, 6, seed=3)
    equal = evaluate_few_labels({"a": runs["a"], "b": runs["a"]}, grades, labels, metrics=["ndcg@4"])
    assert only(equal, "ndcg@4", "b").queries.verdict() == "no difference"


def test_over_all_samples_the_mean_is_exact_whatever_the_judge_says():
    runs, grades, labels = population(3, 3, seed=1)
    pairs = sorted(labels)
    probability = {pair: [0.3, 0.55, 1.0, 0.8, 0.45, 0.6, 0.35, 0.7, 0.5][i] for i, pair in enumerate(pairs)}
    worst = {pair: 1 - labels[pair] for pair in pairs}
    truth = evaluate_run(qrels_of(labels), runs["a"], PRECISION, 0.5)["precision@2"]
    for judge in (grades, worst):
        expected = 0.0
        for drawn in product((False, True), repeat=len(pairs)):
            chance = math.prod(probability[p] if d else 1 - probability[p] for p, d in zip(pairs, drawn, strict=True))
            if chance > 0:
                sample = {pair: labels[pair] for pair, d in zip(pairs, drawn, strict=True) if d}
                found = evaluate_few_labels(runs, judge, sample, probability, PRECISION)
                expected += chance * only(found, "precision@2").queries.value
        assert expected == pytest.approx(sum(truth.values()) / 3)


def test_precision_by_naive_loops():
    runs, grades, labels = population(8, 5, seed=2)
    drawn = some(labels, 22, seed=5)
    generator = np.random.default_rng(6)
    probability = {pair: float(generator.uniform(0.3, 0.9)) for pair in drawn}
    total = 0.0
    for query in sorted(qrels_of(labels)):
        top = sorted(runs["a"][query], key=runs["a"][query].get, reverse=True)[:2]
        others = [p for p in drawn if p[0] != query and p[1] in sorted(runs["a"][p[0]], key=runs["a"][p[0]].get)[-2:]]
        x, y = (np.array([side(p) for p in others]) for side in (grades.get, lambda p: labels[p] >= 0.5))
        weight = np.array([(1 - probability[p]) / probability[p] ** 2 for p in others])
        slope, intercept = np.polyfit(x, y, 1, w=np.sqrt(weight))
        middle, height = np.average(x, weights=weight), np.average(y, weights=weight)
        rest = np.average((y - intercept - slope * x) ** 2, weights=weight)
        explained = np.average((y - height) ** 2, weights=weight) - rest
        f = explained / rest * (weight.sum() ** 2 / (weight**2).sum() - 4)
        slope *= max(0.0, 1 - 1 / f) if f > 0 else 0.0
        for document in top:
            pair = (query, document)
            predicted = height + slope * (grades[pair] - middle)
            total += predicted / 2
            if pair in drawn:
                total += ((labels[pair] >= 0.5) - predicted) / probability[pair] / 2
    estimate = only(evaluate_few_labels(runs, grades, drawn, probability, PRECISION), "precision@2")
    assert estimate.queries.value == pytest.approx(total / 8)


def test_whole_queries_without_a_judge_are_a_plain_sample_of_them():
    runs, grades, labels = population(60, 5, seed=7)
    chosen = {f"q{q:02}" for q in (1, 4, 8, 9, 13, 17, *range(30, 44))}
    drawn = {pair: labels[pair] for pair in labels if pair[0] in chosen}
    found = evaluate_few_labels(runs, grades, drawn, metrics=["ndcg@3"])
    estimate = only(found, "ndcg@3")
    values = evaluate_run(qrels_of(drawn), runs["a"], ["ndcg@3"])["ndcg@3"]
    spread = stats.sem(list(values.values())) * math.sqrt(1 - 20 / 60)
    expected = stats.t.interval(0.95, 19, np.mean(list(values.values())), spread)
    assert (estimate.plain.low, estimate.plain.high) == pytest.approx(expected)
    assert (found.drawn, found.labelled_queries) == ("queries", 20)
