"""The page of an audit: whole, escaped, and honest where something is missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from bixse.data.trec import read_run
from bixse.judging.audit.audit import audit, render_audit
from bixse.judging.audit.labels import ImpossibleLabel, read_labels
from bixse.relevance import GradeScale
from bixse.results import IntervalEstimate
from helpers.html_page import Page

SMALL = Path(__file__).parent / "audit_labels"
CREATED = "2026-01-31T12:00:00+00:00"
EVIL = "<script>alert(1)</script>"


def report_of(*judges, runs=False):
    human = read_labels(SMALL / "human.qrels.txt", GradeScale(0, 3))
    loaded = {path.stem: read_run(path) for path in sorted(SMALL.glob("*.run"))} if runs else None
    return audit(judges, human, runs=loaded, samples=20)


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
    twice = replace(careful, again=dict(list(careful.grades.items())[:40]))
    with_all = page_of(report_of(twice, careless, runs=True))
    without = page_of(report_of(careful)).text
    with_all.check_harmless()
    assert "careless.txt 78 q5 d77 10" in with_all.text and "careless.txt 131 q8 d130 5" in with_all.text
    for heading in ("Asked twice", "Systems under both labels", "Do the judges differ?", "Impossible labels"):
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
