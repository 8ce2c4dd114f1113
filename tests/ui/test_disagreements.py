"""The table of judge and people, and the rubric that is edited and tried next to it."""

import json
import re
import shlex
import time

import pytest

from bixse.judging.rubrics import load_rubric
from bixse.ui.pages import rubric
from helpers.chat_server import chat_server, planted
from helpers.command import call
from helpers.ui_server import Browser, events_of, graded_folder

EDIT = {"system-0": "Judge.", "user-0": "{query} {document}"}
NO_SERVER = "http://127.0.0.1:9"


def label_all(browser, grade_of):
    """Label every pair of the folder, and give a reason."""
    for row, (query_id, document_id) in enumerate(browser.server.workspace.index.row_of):
        form = {"query_id": query_id, "document_id": document_id, "event": f"e{row}"}
        form |= {"answer": str(grade_of(query_id, document_id)), "explanation": f"why {document_id}"}
        browser.submit("/label/save", form, follow_redirects=False)


@pytest.fixture
def labelled(run, open_server):
    """Every pair labelled 2; the judge gave d*-0 a 0.1, d*-1 a 1.2, d*-2 a 2 and d*-3 a 2.9."""
    browser = Browser(open_server(run, judge=NO_SERVER, planned=40), "ann")
    label_all(browser, lambda query_id, document_id: 2)
    assert len(events_of(run)) == 40
    return browser


def pairs_of(browser, query=""):
    """The number of pairs that the page finds."""
    text = browser.get(f"/disagreements?{query}").text
    return int(re.search(r">([\d,]+) pairs, the largest gap first", text)[1])


def decisions(run):
    return [json.loads(line) for line in (run / "rubrics.jsonl").read_text().splitlines()]


def wait(browser):
    for _ in range(300):
        text = browser.get("/rubric/progress").text
        if "hx-trigger" not in text:
            return text
        time.sleep(0.1)
    raise AssertionError(text)


@pytest.mark.parametrize(
    "query", ["human=9", "judge=x", "gap=-1", "gap=nan", "gap=x", "page=0", "page=x", "page=1e300"]
)
def test_filters_that_mean_nothing_are_refused(labelled, query):
    answer = labelled.get(f"/disagreements?{query}")
    assert answer.status_code == 400 and "fix:" in answer.text


def test_filters_of_the_address_select_pairs(labelled):
    html = labelled.get("/disagreements").text
    links = re.findall(r'href="/disagreements\?(human=\d&amp;judge=\d)"[^>]*>(\d+)</a>', html)
    assert len(links) == 4
    for link, count in [*links, ("", 40), ("gap=1.5", 10), ("query=q3&human=2", 4), ("query=NUMBER%207", 4)]:
        assert pairs_of(labelled, link.replace("&amp;", "&")) == int(count)
    assert "No pair is like that" in labelled.get("/disagreements?human=1").text
    pages = [labelled.get(f"/disagreements?page={page}").text for page in (1, 2)]
    assert len({row for page in pages for row in re.findall(r'id="card-(\d+)"', page)}) == 40


def test_pair_shows_the_answers_of_judge_and_people(labelled):
    html = labelled.get("/disagreements?query=q3&judge=0").text
    assert html.count('aria-label="90 percent"') == 1 and "why d3-0" in html
    assert "0.00 to 0.20" in html  # the bounds of the judge's 0.10


@pytest.mark.parametrize("user", [None, "no fields", "{query} alone", "{query} {query} {document}"])
def test_prompt_without_its_fields_is_not_saved(labelled, run, user):
    answer = labelled.submit("/rubric/save", {"system-0": "Judge."} | ({"user-0": user} if user else {}))
    assert answer.status_code == 400 and not list(run.glob("rubric-*")) and not list(run.glob(".rubric*"))


def test_versions_are_never_overwritten(labelled, run):
    texts = {"system-0": 'Judge "well".\r\n\\0 \x07 - nothing\r\n"""', "user-0": "{query}\n{document}"}
    for _ in range(2):
        assert "Saved as rubric-" in labelled.submit("/rubric/save", texts).text
    second, third = (load_rubric(run / f"rubric-{number}.toml") for number in (2, 3))
    assert second.variants[0].system == texts["system-0"].replace("\r\n", "\n")
    assert second.labels == ("0", "1", "2", "3") and second.content_hash == third.content_hash
    assert labelled.submit("/rubric/try", {"version": "9"}).status_code == 400
    assert labelled.submit("/rubric/decide", {"version": "2", "decision": "perhaps"}).status_code == 400


def test_last_decision_about_a_version_counts(labelled, run):
    for text in ("Judge kindly.", "Judge sternly."):
        labelled.submit("/rubric/save", {**EDIT, "system-0": text})
    assert "Judge kindly" not in labelled.get("/disagreements").text
    for decision in ("keep", "drop"):
        labelled.submit("/rubric/decide", {"version": "2", "decision": decision})
        assert ("Judge kindly." in labelled.get("/disagreements").text) == (decision == "keep")
    rows = [(row["version"], row["decision"], row["person"]) for row in decisions(run)]
    assert rows == [(2, "keep", "ann"), (2, "drop", "ann")]


def test_judge_that_cannot_be_reached_is_an_error_on_the_page(labelled):
    labelled.submit("/rubric/save", EDIT)
    assert labelled.submit("/rubric/price", {"version": "2"}).status_code == 400
    labelled.submit("/rubric/try", {"version": "2"})
    text = wait(labelled)
    assert "127.0.0.1:9" in text and "fix:" in text


@pytest.mark.parametrize("judge", [None, NO_SERVER])
def test_trial_needs_a_judge_and_labels(run, open_server, judge):
    browser = Browser(open_server(run, judge=judge), "ann")
    assert "Label some" in browser.get("/disagreements").text
    browser.submit("/rubric/save", EDIT)
    text = browser.get("/rubric").text
    assert "bixse grade --pairs" in text and ('action="/rubric/try"' in text) == bool(judge)
    answer = browser.submit("/rubric/try", {"version": "2"})
    assert answer.status_code == 400 and ("label first" if judge else "--judge") in answer.text


@pytest.mark.parametrize("named", ["by its address", "by a file"])
def test_trial_grades_the_same_pairs_and_its_commands_give_the_same_figures(
    tmp_path, open_server, capsys, monkeypatch, named
):
    monkeypatch.setattr(rubric, "TRIED", 12)
    shares = [[0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0], [0, 0.1, 0.8, 0.1], [0, 0, 0.1, 0.9]]
    run = graded_folder(tmp_path / "run", queries=8, texts=lambda q, d: planted(f"{q}-{d}", shares[(d + q) % 4]))
    with chat_server() as server:
        judge = server.scenario()
        if named == "by a file":
            (tmp_path / "judge.yaml").write_text(f"judge: {{name: {judge}}}\n")
            judge = str(tmp_path / "judge.yaml")
        browser = Browser(open_server(run, judge=judge), "ann")
        label_all(browser, lambda query_id, document_id: (int(document_id[-1]) + int(query_id[1:])) % 4)
        browser.submit("/rubric/save", EDIT)
        assert "12 pairs, 12 questions" in browser.submit("/rubric/price", {"version": "2"}).text
        browser.submit("/rubric/try", {"version": "2"})
        assert "was tried" in wait(browser)
        text = browser.get("/rubric").text
        assert "Better: the whole interval" in text and "before, on 12 pairs" in text
        browser.submit("/rubric/decide", {"version": "2", "decision": "keep"})
        lines = re.search(r"<code>(bixse grade.*?)</code>", text, re.DOTALL)[1].split("\n\n")
        price, again, audit = map(shlex.split, lines)
        code, envelope = call(capsys, *again[1:])
        assert code == 0 and envelope["metrics"]["asked"] == 0 and envelope["metrics"]["reused"] == 12
        code, envelope = call(capsys, *price[1:])
        assert code == 0 and envelope["metrics"]["answered"] == 12
        call(capsys, *audit[1:], "--out", tmp_path / "audit")
    audited = json.loads((tmp_path / "audit" / "audit.json").read_text())["judges"]
    _, after = (judge["measures"]["quadratic_kappa"]["value"] for judge in audited)  # the first graded more pairs
    assert after == pytest.approx(decisions(run)[0]["after"]["value"])
