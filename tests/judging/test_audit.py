"""The audit against hand-made cases, a small synthetic set, and published kappas where their data are at hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, cohen_kappa_score, confusion_matrix

from bixse.errors import InputError
from bixse.judging.audit.audit import audit, first_relevant, render_audit
from bixse.judging.audit.labels import ImpossibleLabel, Labels, read_labels
from bixse.relevance import GradeScale
from bixse.results import IntervalEstimate
from helpers.html_page import Page

SMALL = Path(__file__).parent / "audit_labels"
"""180 made-up pairs of 12 queries: human labels, a careful judge, a careless one with the labels 10 and 5, 3 runs."""
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
    return [read_labels(SMALL / f"{name}.txt", SCALE) for name in ("careful", "careless")]


@pytest.fixture(scope="module")
def report(human, judges):
    return audit(judges, human, samples=300)


def test_judges_that_cannot_be_compared_are_refused():
    judge, people = labels("j", pairs([0, 3])), labels("h", pairs([0, 3]))
    with pytest.raises(InputError, match="got no pair of the human labels"):
        audit([labels("j", {("x", "y"): 1.0})], people)
    with pytest.raises(InputError, match="names of their own"):
        audit([judge, judge], people)
    one_query = labels("j", pairs([0, 3, 2], queries=1))
    with pytest.raises(InputError, match="of 1 query; expected at least 2"):
        audit([one_query], one_query)
    values = pairs([i / 100 for i in range(100)])
    with pytest.raises(InputError, match="ordinal scale of at most 21"):
        audit([labels("j", values, GradeScale(0, 1))], labels("h", values, GradeScale(0, 1)))


def test_min_relevant_grade_splits_the_scale():
    scales = ([0, 1.0], [0, 1, 2.0], [1, 2, 3, 4, 5.0])
    assert [first_relevant(np.array(levels), None) for levels in scales] == [1, 1, 3]
    for grade in (0.0, 4.0, float("nan")):
        with pytest.raises(InputError, match="min-relevant-grade"):
            first_relevant(np.arange(4.0), grade)


def test_measures_are_over_pairs_with_a_grade_on_both_sides():
    people = labels("h", pairs([0, 1, 2, 3, 0, 3]))
    grades = pairs([0, 1, 1, 3])
    judge = labels("j", {**grades, ("q9", "d9"): 3.0}, missing={("q0", "d4"): "refused", ("q8", "x"): "failed"})
    found = audit([judge], people, samples=20).judges[0]
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
        assert row.low < row.relevant < row.high or row.relevant in (0, 1)


def test_impossible_labels_are_reported_and_left_out(report):
    assert [(bad.row, bad.value) for bad in report.impossible] == [(78, 10.0), (131, 5.0)]
    assert (report.judges[1].pairs, report.judges[1].without_grade) == (178, 2)
    assert sum(map(sum, report.judges[1].confusion)) == 178
    assert "impossible labels off the scale: 2" in report.warnings()[0]


def test_a_judge_on_another_scale_is_read_by_its_place():
    people = pairs([0, 1, 2, 3] * 3, queries=4)
    five = labels("j", {pair: 1 + 4 / 3 * grade for pair, grade in people.items()}, GradeScale(1, 5))
    found = audit([five], labels("h", people), samples=20).judges[0]
    assert found.measures["exact"].value == 1.0
    assert found.calibration.brier == pytest.approx(2 / 4 * (1 / 3) ** 2)  # grades 1 and 2 of 0 to 3: z = 1/3 and 2/3


def test_expected_grades_count_as_the_nearest_but_keep_their_order():
    people, judged = pairs([0, 1, 2, 3, 3, 0]), pairs([0.4, 1.2, 1.6, 2.6, 2.9, 0.1])
    measures = audit([labels("j", judged)], labels("h", people), samples=20).judges[0].measures
    assert measures["exact"].value == 1.0
    assert measures["spearman"].value < 1.0  # the fractions order pairs that people hold equal


def test_the_worst_pairs_come_first(report):
    found = report.judges[1]
    distances = [abs(pair.judge - pair.human) for pair in found.worst_pairs]
    assert distances == sorted(distances, reverse=True) and len(distances) == 20
    of_queries = [pair.query_id for pair in found.worst_pairs]
    assert max(map(of_queries.count, of_queries)) <= 2


def test_brier_against_the_constant(human):
    blind = labels("blind", {pair: 3.0 * (i % 2) for i, pair in enumerate(sorted(human.grades))})
    report = audit([replace(human, name="copy"), blind], human, samples=200)
    assert [judge.against_constant.side for judge in report.judges] == ["below", "above"]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the LLMJudge files are not here")
def test_published_kappas_are_reproduced():
    people = read_labels(PUBLISHED / "human.qrels.txt", SCALE)
    found = [read_labels(path, SCALE) for path in sorted((PUBLISHED / "judges").glob("*.txt"))]
    report = audit(found, people, samples=50)
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


CREATED = "2026-01-31T12:00:00+00:00"
EVIL = "<script>alert(1)</script>"


def report_of(*judges):
    return audit(judges, read_labels(SMALL / "human.qrels.txt", GradeScale(0, 3)), samples=20)


def page_of(report, warnings=(), **texts):
    return Page(render_audit(report, CREATED, warnings, **texts))


@pytest.fixture(scope="module")
def careful():
    return read_labels(SMALL / "careful.txt", GradeScale(0, 3))


@pytest.fixture(scope="module")
def careless():
    return read_labels(SMALL / "careless.txt", GradeScale(0, 3))


def test_every_text_from_data_is_escaped(careful):
    bad = ImpossibleLabel(EVIL, 1, EVIL, EVIL, 10.0)
    report = report_of(replace(careful, name=EVIL, path=EVIL, missing={("q0", "x"): EVIL}, impossible=(bad,)))
    first = report.judges[0].worst_pairs[0]
    texts = {"queries": {first.query_id: EVIL}, "documents": {first.document_id: f"`{EVIL}`"}}
    page = page_of(report, [f"see `{EVIL}`"], **texts)
    page.check_harmless()
    assert page.text.count(EVIL) >= 10


def test_sections_appear_with_their_data(careful, careless):
    with_all = page_of(report_of(careful, careless))
    without = page_of(report_of(careful)).text
    with_all.check_harmless()
    assert "careless.txt 78 q5 d77 10" in with_all.text and "careless.txt 131 q8 d130 5" in with_all.text
    for heading in ("Impossible labels",):
        assert heading in with_all.text and heading not in without


def test_what_is_not_defined_is_a_dash(careful):
    report = report_of(careful)
    judge = report.judges[0]
    never = replace(judge.by_grade[3], pairs=0, relevant=None, low=None, high=None)
    unknown = replace(
        judge,
        measures={**judge.measures, "kappa": IntervalEstimate(None)},
        by_grade=(*judge.by_grade[:3], never),
    )
    assert "None" not in page_of(replace(report, judges=(unknown,))).text
