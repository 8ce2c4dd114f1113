"""The page of an audit: whole, escaped, and honest where something is missing."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from bixse.data.trec import read_run
from bixse.grading.audit.audit import audit
from bixse.grading.audit.audit_words import describe
from bixse.grading.audit.labels import Labels, read_labels
from bixse.relevance import GradeScale
from bixse.report.audit_page import EXCERPT_LENGTH, excerpt, interval_strip, render_audit, write_audit

SMALL = Path(__file__).parents[1] / "grading" / "audit_labels"
EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Tags in order; open elements must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def content_of(*judges: Labels, runs: bool = False, **more: Any) -> dict[str, Any]:
    human = read_labels(SMALL / "human.qrels.txt", GradeScale(0, 3))
    loaded = {path.stem: read_run(path) for path in sorted(SMALL.glob("*.run"))} if runs else None
    report = audit(judges, human, runs=loaded, samples=20)
    content = {
        "title": "Audit",
        "created": "2026-01-31T12:00:00+00:00",
        "texts": {"queries": {}, "documents": {}},
        **report.to_plain(),
        **describe(report),
        **more,
    }
    return json.loads(json.dumps(content))


@pytest.fixture(scope="module")
def careful() -> Labels:
    return read_labels(SMALL / "careful.txt", GradeScale(0, 3))


@pytest.fixture(scope="module")
def careless() -> Labels:
    return read_labels(SMALL / "careless.txt", GradeScale(0, 3))


def test_a_missing_part_is_an_error(careful):
    content = content_of(careful)
    del content["judges"][0]["confusion"]
    with pytest.raises(UndefinedError):
        render_audit(content)


def test_every_text_from_data_is_escaped(careful):
    evil = Labels(**{**vars(careful), "name": EVIL, "path": EVIL, "missing": {("q0", "x"): EVIL}})
    content = content_of(evil, title=EVIL, warnings=[EVIL])
    first = content["judges"][0]["worst_pairs"][0]
    content["texts"] = {"queries": {first["query_id"]: EVIL}, "documents": {first["document_id"]: f"`{EVIL}`"}}
    content["findings"] = {EVIL: [f"see `{EVIL}`"]}
    content["judges"][0]["impossible"] = [
        {"path": EVIL, "row": 1, "query_id": EVIL, "document_id": EVIL, "value": 10.0}
    ]
    page = Page(render_audit(content))
    assert not page.open
    assert not [tag for tag, _ in page.tags if tag in ("script", "b", "i", "iframe")]
    assert page.text.count(EVIL) >= 10


def test_the_page_needs_nothing_from_outside(careful, careless):
    page = Page(render_audit(content_of(careful, careless, runs=True)))
    assert not page.open
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "form")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_impossible_labels_stand_with_file_line_and_value(careless):
    text = " ".join(Page(render_audit(content_of(careless))).text.split())
    assert "2 impossible labels" in text
    assert "careless.txt 78 q5 d77 10" in text and "careless.txt 131 q8 d130 5" in text


def test_one_judge_is_open_and_several_are_closed(careful, careless):
    details = [attributes for tag, attributes in Page(render_audit(content_of(careful))).tags if tag == "details"]
    assert "open" in details[0]
    page = Page(render_audit(content_of(careful, careless)))
    assert "Do the judges differ?" in page.text and "Judge by judge" in page.text
    assert [("open" in attributes) for tag, attributes in page.tags if tag == "details"].count(True) == 1


def test_sections_appear_with_their_data(careful):
    judge = Labels(**{**vars(careful), "again": dict(list(careful.grades.items())[:40])})
    with_all = Page(render_audit(content_of(judge, runs=True))).text
    without = Page(render_audit(content_of(careful))).text
    for heading in ("Asked twice", "Systems under both labels"):
        assert heading in with_all and heading not in without
    assert "Impossible labels" not in without


def test_what_is_not_defined_is_a_dash(careful):
    content = content_of(careful)
    content["judges"][0]["measures"]["kappa"] = {"value": None, "low": None, "high": None}
    content["judges"][0]["by_grade"][3] = {"grade": 3.0, "pairs": 0, "relevant": None, "low": None, "high": None}
    assert "None" not in Page(render_audit(content)).text


def test_the_same_content_gives_the_same_file(tmp_path, careful):
    content = content_of(careful)
    write_audit(content, tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text(encoding="utf-8") == render_audit(content)


def test_a_strip_stays_inside_its_picture():
    strip = interval_strip(0.9, -0.4, 1.7)
    assert 'd="M0.0 7H120.0"' in strip and 'cx="108.0"' in strip


def test_a_long_document_is_cut():
    assert len(excerpt("x" * 10_000)) <= EXCERPT_LENGTH + 1
