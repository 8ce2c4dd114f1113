from dataclasses import replace
from pathlib import Path

import krippendorff
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.metrics import brier_score_loss, cohen_kappa_score, confusion_matrix

from bixse.audit import agreement
from bixse.audit.agreement import counts_by_query
from bixse.audit.audit import audit, first_relevant, render_audit
from bixse.audit.calibrate_grades import GradeMap, fit_grade_map
from bixse.audit.labels import ImpossibleLabel, Labels, read_labels
from bixse.errors import InputError
from bixse.evaluation.intervals import jackknife_estimate
from bixse.relevance import GradeScale
from bixse.results import IntervalEstimate
from helpers.html_page import Page

SMALL = Path(__file__).parent / "audit_labels"
PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "llmjudge"
"""The 4,423 test pairs of LLMJudge with published judges, where somebody has put them."""
SCALE = GradeScale(0, 3)


def labels(name, grades, scale=SCALE, **more):
    return Labels(name, name, scale, grades, {pair: scale.to_relevance(g) for pair, g in grades.items()}, **more)


def pairs(grades, queries=2):
    return {(f"q{i % queries}", f"d{i}"): float(grade) for i, grade in enumerate(grades)}


@pytest.fixture(scope="module")
def human():
    return read_labels(SMALL / "human.qrels.txt", SCALE)


@pytest.fixture(scope="module")
def judges():
    return [read_labels(SMALL / f"{name}.txt", otherwise=SCALE) for name in ("careful", "careless")]


@pytest.fixture(scope="module")
def report(human, judges):
    return audit(judges, human)


def test_judges_that_cannot_be_compared_are_refused():
    judge, people = labels("j", pairs([0, 3])), labels("h", pairs([0, 3]))
    with pytest.raises(InputError, match="got no pair of the human labels"):
        audit([labels("j", {("x", "y"): 1.0})], people)
    with pytest.raises(InputError, match="different names"):
        audit([judge, judge], people)
    one_query = labels("j", pairs([0, 3, 2], queries=1))
    with pytest.raises(InputError, match="of 1 query; expected at least 2"):
        audit([one_query], one_query)
    values = pairs([i / 100 for i in range(100)])
    with pytest.raises(InputError, match="ordinal scale of at most 21"):
        audit([labels("j", values, GradeScale(0, 1))], labels("h", values, GradeScale(0, 1)))
    for grade in (0.0, 4.0, float("nan")):
        with pytest.raises(InputError, match="min-relevant-grade"):
            audit([judge], people, grade)


@pytest.mark.parametrize(("levels", "grade"), [([0, 1.0], 1), ([0, 1, 2.0], 1), ([1, 2, 3, 4, 5.0], 3)])
def test_the_upper_half_of_the_scale_is_relevant(levels, grade):
    assert first_relevant(np.array(levels), None) == grade


def test_measures_are_over_pairs_with_a_grade_on_both_sides():
    people = labels("h", pairs([0, 1, 2, 3, 0, 3]))
    grades = pairs([0, 1, 1, 3])
    judge = labels("j", {**grades, ("q9", "d9"): 3.0}, missing={("q0", "d4"): "refused", ("q8", "x"): "failed"})
    found = audit([judge], people).judges[0]
    assert (found.pairs, found.without_grade, found.human_only, found.judge_only) == (4, 1, 1, 1)
    assert found.statuses == {"graded": 5, "refused": 1, "failed": 1}
    assert found.measures["exact"].value == 0.75
    assert found.confusion == ((1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1))
    assert (found.by_grade[2].pairs, found.by_grade[2].relevant) == (0, None), "never given"


def test_figures_equal_scikit_learn(human, judges, report):
    found = report.judges[0]
    keys = list(human.grades)
    people, grades = (np.array([side.grades[key] for key in keys]) for side in (human, judges[0]))
    assert found.measures["kappa"].value == pytest.approx(cohen_kappa_score(people, grades))
    assert found.measures["binary_kappa"].value == pytest.approx(cohen_kappa_score(people >= 2, grades >= 2))
    assert found.measures["mean_difference"].value == pytest.approx((grades - people).mean())
    assert np.array_equal(found.confusion, confusion_matrix(people, grades))
    assert found.calibration.brier == pytest.approx(brier_score_loss(people >= 2, grades / 3))
    constant = np.full(len(people), (people >= 2).mean())
    expected = found.calibration.brier - brier_score_loss(people >= 2, constant)
    assert found.against_constant.value == pytest.approx(expected)
    for row in found.by_grade:
        assert row.relevant == pytest.approx((people >= 2)[grades == row.grade].mean())
        assert (row.low is None) == (row.pairs < 20)
        assert row.low is None or row.low < row.relevant < row.high or row.relevant in (0, 1)


def test_a_judge_on_another_scale_is_mapped():
    people = pairs([0, 1, 2, 3] * 3, queries=4)
    five = labels("j", {pair: 1 + 4 / 3 * grade for pair, grade in people.items()}, GradeScale(1, 5))
    found = audit([five], labels("h", people)).judges[0]
    assert found.measures["exact"].value == found.measures["spearman"].value == 1.0
    near = labels("j", {pair: grade - 0.5 * (grade == 1) - 0.4 * (grade == 3) for pair, grade in people.items()})
    measures = audit([near], labels("h", people)).judges[0].measures
    assert measures["exact"].value == 1.0, "a grade counts as the nearest level"
    assert found.calibration.brier == pytest.approx(2 / 4 * (1 / 3) ** 2)  # grades 1 and 2 of 0 to 3: z = 1/3 and 2/3


def test_the_worst_pairs_come_first(report):
    found = report.judges[1]
    distances = [abs(pair.judge - pair.human) for pair in found.worst_pairs]
    assert distances == sorted(distances, reverse=True) and len(distances) == 20
    of_queries = [pair.query_id for pair in found.worst_pairs]
    assert max(map(of_queries.count, of_queries)) <= 2


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the LLMJudge files are not here")
def test_published_kappas_are_reproduced():
    people = read_labels(PUBLISHED / "human.qrels.txt", SCALE)
    found = [read_labels(path, otherwise=SCALE) for path in sorted((PUBLISHED / "judges").glob("*.txt"))]
    report = audit(found, people)
    kappas = {judge.name: round(judge.measures["kappa"].value, 4) for judge in report.judges}
    assert report.human_pairs == 4423
    assert kappas["willia-umbrela1"] == 0.2863 and kappas["Olz-gpt4o"] == 0.2625
    assert {(Path(bad.path).stem, bad.row, bad.value) for bad in report.impossible} == {
        ("RMITIR-llama70B", 2449, 5.0),
        ("RMITIR-llama70B", 3825, 5.0),
        ("h2oloo-zeroshot2", 3187, 10.0),
    }
    best = next(judge for judge in report.judges if judge.name == "willia-umbrela1")
    assert best.by_grade[3].relevant == pytest.approx(0.731, abs=5e-4)


EVIL = "<script>alert(1)</script>"


def page_of(report, warnings=(), **texts):
    return Page(render_audit(report, "2026-01-31T12:00:00+00:00", warnings, **texts))


def test_every_text_from_data_is_escaped(human, judges):
    bad = ImpossibleLabel(EVIL, 1, EVIL, EVIL, 10.0)
    evil = replace(judges[0], name=EVIL, path=EVIL, missing={("q0", "x"): EVIL}, impossible=(bad,))
    report = audit([evil], human)
    first = report.judges[0].worst_pairs[0]
    texts = {"queries": {first.query_id: EVIL}, "documents": {first.document_id: f"`{EVIL}`"}}
    page = page_of(report, [f"see `{EVIL}`"], **texts)
    page.check_harmless()
    assert page.text.count(EVIL) >= 10


def test_the_page_lists_impossible_labels_and_no_undefined_figure(human, judges, report):
    page = page_of(report, report.warnings()).text
    assert "Impossible labels" in page and "impossible labels off the scale: 2" in page
    assert "careless.txt 78 q5 d77 10" in page and "careless.txt 131 q8 d130 5" in page
    judge = report.judges[0]
    never = replace(judge.by_grade[3], pairs=0, relevant=None, low=None, high=None)
    measures = {**judge.measures, "kappa": IntervalEstimate(None)}
    page = page_of(replace(report, judges=(replace(judge, measures=measures, by_grade=(*judge.by_grade[:3], never)),)))
    assert "None" not in page.text and "Impossible labels" not in page.text


LEVELS = np.arange(4.0)


def some_grades(seed, pairs=200):
    """Human grades, a judge's that follow them loosely, and uneven queries."""
    generator = np.random.default_rng(seed)
    human = generator.integers(0, 4, pairs).astype(float)
    judged = np.clip(human + generator.integers(-2, 3, pairs), 0, 3)
    return human, judged, [f"q{i}" for i in (generator.random(pairs) ** 2 * 12).astype(int)]


def value(measure, human, judged, query_ids, levels=LEVELS):
    return float(measure(counts_by_query(np.array(human), np.array(judged), query_ids, levels).total))


@pytest.mark.parametrize("queries", [2, 6, 19])
def test_few_queries_or_labels_of_a_class_have_no_interval_and_no_verdict(queries):
    people = pairs([0, 3] * 60, queries=queries)
    grades = {pair: grade if number % 5 else 3 - grade for number, (pair, grade) in enumerate(people.items())}
    report = audit([labels("j", grades)], labels("h", people))
    found = report.judges[0]
    for name in ("kappa", "exact", "binary_kappa", "kendall"):
        assert found.measures[name].low is None and f"{queries} queries; at least 20" in found.measures[name].few
    assert f"{queries} queries" in found.verdict and "chance" not in found.verdict
    assert found.verdict in page_of(report, report.warnings()).text and found.verdict in report.text()
    rare = pairs([0] * 100 + [3] * 19, queries=40)
    kappa = audit([labels("j", rare)], labels("h", rare)).judges[0].measures["kappa"]
    assert kappa.few == "19 relevant pairs; at least 20"


def test_a_judge_that_agrees_in_all_pairs_has_no_interval():
    people = pairs([0, 1, 2, 3] * 30, queries=40)
    kappa = audit([labels("j", people)], labels("h", people)).judges[0].measures["kappa"]
    assert (kappa.value, kappa.low, kappa.verdict()) == (pytest.approx(1.0), None, "cannot tell")


def test_a_measure_without_a_value_is_undefined():
    counts = counts_by_query(np.ones(4), np.ones(4), ["a", "a", "b", "b"], LEVELS)
    assert counts.estimates({"kappa": agreement.cohen_kappa()}, "")["kappa"] == IntervalEstimate(None)


@pytest.mark.parametrize("seed", range(3))
def test_measures_equal_scikit_learn_scipy_and_krippendorff(seed):
    human, judged, ids = some_grades(seed)
    human[human == 2] = 1  # a level that one side never uses
    apart = np.abs(human - judged)
    for steps, pairs in ((0, apart == 0), (1, apart == 1), (-1, apart > 1)):
        assert value(agreement.agreement_within(steps), human, judged, ids) == pytest.approx(pairs.mean())
    for power, weights in enumerate((None, "linear", "quadratic")):
        oracle = cohen_kappa_score(human, judged, labels=LEVELS, weights=weights)
        assert value(agreement.cohen_kappa(power), human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    oracle = cohen_kappa_score(human >= seed + 1, judged >= seed + 1)
    assert value(agreement.cohen_kappa(first=seed + 1), human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    oracle = krippendorff.alpha([human, judged], level_of_measurement="ordinal", value_domain=list(LEVELS))
    assert value(agreement.krippendorff_alpha, human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    judged = judged + np.random.default_rng(seed).choice([0.0, 0.25, 0.3], len(judged))
    rho = value(agreement.spearman, human, judged, ids, None)
    tau = value(agreement.kendall_tau_b, human, judged, ids, None)
    assert rho == pytest.approx(scipy.stats.spearmanr(human, judged).statistic, abs=1e-12)
    assert tau == pytest.approx(scipy.stats.kendalltau(human, judged).statistic, abs=1e-12)


def test_intervals_are_those_of_leaving_out_whole_queries(monkeypatch):
    monkeypatch.setattr(agreement, "_BLOCK_SIZE", 50)  # three tables at once
    human, judged, ids = some_grades(3, pairs=200)
    found = counts_by_query(human, judged, ids, LEVELS).estimates({"k": agreement.cohen_kappa()}, "")["k"]
    rows = [np.array(ids) != name for name in sorted(set(ids))]
    left_out = [cohen_kappa_score(human[kept], judged[kept], labels=LEVELS) for kept in rows]
    oracle = jackknife_estimate(cohen_kappa_score(human, judged, labels=LEVELS), np.array(left_out))
    assert (found.value, found.low, found.high) == pytest.approx((oracle.value, oracle.low, oracle.high))


@pytest.mark.parametrize("pairs_per_query", [5, 10])
def test_the_stated_interval_of_kappa_covers_92_to_98_percent(pairs_per_query):
    """20 queries whose pairs are alike, and at least 20 labels per class."""
    generator, kappa = np.random.default_rng(0), {"k": agreement.cohen_kappa(2)}

    def graded(queries):
        query = np.repeat(np.arange(queries), pairs_per_query)
        latent = generator.normal(1.5, 1.2, len(query)) + generator.normal(0, 0.8, queries)[query]
        noise = generator.normal(0, 0.7, len(query)) * np.exp(generator.normal(0, 0.5, queries))[query]
        human, judge = (np.clip(np.round(side), 0, 3) for side in (latent, latent + noise))
        return counts_by_query(human, judge, [f"q{number}" for number in query], LEVELS)

    truth, runs = graded(20_000).values(kappa)["k"], 400
    found = [graded(20).estimates(kappa, "")["k"] for _ in range(runs)]
    assert 0.90 < sum(each.low <= truth <= each.high for each in found) / runs < 0.99


def overconfident(seed, pairs=600, queries=60):
    """A judge whose z claims too much: people find a share z^2 * 0.8 relevant."""
    generator = np.random.default_rng(seed)
    z = generator.integers(0, 4, pairs) / 3
    relevant = (generator.random(pairs) < 0.8 * z**2).astype(float)
    return z, relevant, [f"q{i % queries}" for i in range(pairs)]


def test_a_judge_that_is_calibrated_knows_nothing_or_grades_the_wrong_way_gets_no_map():
    generator = np.random.default_rng(5)
    z = generator.random(4000)
    relevant = (generator.random(4000) < z).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 20}" for i in range(4000)])
    assert fitted.held_out.brier_after > fitted.held_out.brier_before and fitted.helps is False
    generator = np.random.default_rng(3)
    z, relevant = generator.integers(0, 4, 400) / 3, (generator.random(400) < 0.3).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 40}" for i in range(400)], seed=1)
    found = fitted.held_out
    assert found.brier_after < found.brier_before, "it is better than the grades, by forgetting them"
    assert fitted.helps is False
    z, relevant, ids = overconfident(0)
    fitted = fit_grade_map(1 - z, relevant, ids)
    assert fitted.slope == 0 and fitted.helps is False


def test_few_labels_cannot_tell_whether_a_map_helps():
    z, relevant, _ = overconfident(1, pairs=600)
    fitted = fit_grade_map(z, relevant, [f"q{i % 12}" for i in range(600)])
    assert (fitted.helps, fitted.few) == (False, "12 queries; at least 20")
    assert fitted.held_out.brier_after < fitted.held_out.brier_before


def test_a_judge_that_claims_too_much_is_helped():
    z, relevant, ids = overconfident(0)
    fitted = fit_grade_map(z, relevant, ids)
    found = fitted.held_out
    assert fitted.helps and found.change_high < 0
    assert found.brier_after < found.brier_before and found.ece_after < found.ece_before
    assert fitted.apply([0.0, 1 / 3, 2 / 3, 1.0]) == pytest.approx([0.0, 0.09, 0.36, 0.8], abs=0.1)


def test_held_out_queries_are_never_fitted_on():
    """Only the last query is relevant, at a z of its own: a fit that saw it maps it towards 1, another to 0."""
    ids = [f"q{i // 10}" for i in range(100)]
    z = np.arange(100) // 10 / 9
    fitted = fit_grade_map(z, (z == 1).astype(float), ids)
    fitted_on = np.mean((fitted.apply(z) - (z == 1)) ** 2)
    assert fitted.apply(1.0) > 0.6 and fitted.held_out.brier_after > 3 * fitted_on


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="of 3 queries; expected at least 4"):
        fit_grade_map([0, 1, 0.5], [0, 1, 1], ["a", "b", "c"])
    with pytest.raises(InputError, match="expected 0 to 1"):
        fit_grade_map([0, 3, 1, 0], [0, 1, 1, 0], ["a", "b", "c", "d"])
    for wrong in (1.5, float("nan")):
        with pytest.raises(InputError, match=f"got {wrong}; expected 0 to 1"):
            GradeMap(slope=1.0, intercept=0.0).apply([0.5, wrong])


@pytest.mark.parametrize("change", [{}, {"kind": "isotonic"}, {"slope": -1.0}, {"slope": float("nan")}])
def test_maps_that_may_fall_or_are_incomplete_are_refused(change):
    with pytest.raises(ValidationError):
        GradeMap.model_validate({"slope": 1.0, **({"intercept": 0.0} if change else {}), **change})


def test_a_logistic_map_of_an_earlier_version_is_read():
    earlier = {"kind": "platt", "knots": [], "slope": 2.0, "intercept": -1.0, "judge": "j", "labels": 9}
    assert GradeMap.model_validate(earlier) == GradeMap(slope=2.0, intercept=-1.0, judge="j", labels=9)


@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_map_never_falls_nor_leaves_the_range(slope, intercept, points):
    mapped = GradeMap(slope=slope, intercept=intercept).apply(sorted(points))
    assert (np.diff(mapped) >= 0).all() and mapped.min() >= 0 and mapped.max() <= 1
