"""The table of judge and people, and the rubric that is edited and tried beside it."""

import json
import re
import shlex
import time

import pytest

from bixse.errors import InputError
from bixse.judging.rubrics import load_rubric
from bixse.ui.pages import rubric
from bixse.ui.rubric_versions import save_version
from helpers.chat_server import chat_server, planted
from helpers.command import call
from helpers.ui_server import Browser, events_of, graded_folder


@pytest.fixture
def labelled(run, open_server):
    """Every pair labelled 2 with a reason; the judge gave d*-0 a 0.1, d*-1 a 1.2, d*-2 a 2 and d*-3 a 2.9."""
    browser = Browser(open_server(run, judge="http://127.0.0.1:9", planned=40), "ann")
    for row, (query_id, document_id) in enumerate(browser.server.workspace.index.row_of):
        form = {"query_id": query_id, "document_id": document_id, "event": f"e{row}", "answer": "2"}
        browser.submit("/label/save", {**form, "explanation": f"why {document_id}"}, follow_redirects=False)
    assert len(events_of(run)) == 40
    return browser


def found(html):
    return int(re.search(r">([\d,]+) pairs, the largest gap first", html)[1])


@pytest.mark.parametrize(
    "query", ["human=9", "judge=x", "gap=-1", "gap=nan", "gap=x", "page=0", "page=x", "page=1e300"]
)
def test_filters_that_mean_nothing_are_refused_in_words(labelled, query):
    answer = labelled.get(f"/disagreements?{query}")
    assert answer.status_code == 400 and "fix:" in answer.text


def test_without_labels_it_says_where_to_begin(run, open_server):
    assert "Label some" in Browser(open_server(run), "ann").get("/disagreements").text


def test_every_count_leads_to_its_pairs(labelled):
    html = labelled.get("/disagreements").text
    links = re.findall(r'href="(/disagreements\?human=\d&amp;judge=\d)"[^>]*>(\d+)</a>', html)
    assert len(links) == 4 and {int(count) for _, count in links} == {10}
    for link, count in links:
        assert found(labelled.get(link.replace("&amp;", "&")).text) == int(count)


def test_filters_work_by_the_address_alone(labelled):
    assert found(labelled.get("/disagreements").text) == 40
    assert found(labelled.get("/disagreements?gap=1.5").text) == 10
    assert found(labelled.get("/disagreements?query=q3&human=2").text) == 4
    assert found(labelled.get("/disagreements?query=NUMBER%207").text) == 4
    assert "No pair is like that" in labelled.get("/disagreements?human=1").text
    first, second = (labelled.get(f"/disagreements?page={page}").text for page in (1, 2))
    ids = [re.findall(r'id="card-(\d+)"', html) for html in (first, second)]
    assert len(set(ids[0]) | set(ids[1])) == 40


def test_a_pair_shows_what_both_sides_said(labelled):
    html = labelled.get("/disagreements?query=q3&judge=0").text
    assert html.count('aria-label="90 percent"') == 1 and "why d3-0" in html
    assert "0.00 to 0.20" in html  # the bounds of the judge's 0.10


@pytest.mark.parametrize("user", ["no fields", "{query} alone", "{query} {query} {document}"])
def test_a_prompt_without_its_fields_is_not_saved(labelled, run, user):
    answer = labelled.submit("/rubric/save", {"system-0": "Judge.", "user-0": user})
    assert answer.status_code == 400 and not list(run.glob("rubric-*")) and not list(run.glob(".rubric*"))


def test_versions_are_never_overwritten(labelled, run):
    texts = {"system-0": 'Judge "well".\r\n\\0 \x07 - nothing\r\n"""', "user-0": "{query}\n{document}"}
    for _ in range(2):
        assert "Saved as rubric-" in labelled.submit("/rubric/save", texts).text
    second = load_rubric(run / "rubric-2.toml")
    assert second.variants[0].system == texts["system-0"].replace("\r\n", "\n")
    assert (
        second.labels == ("0", "1", "2", "3") and second.content_hash == load_rubric(run / "rubric-3.toml").content_hash
    )
    assert labelled.submit("/rubric/try", {"version": "9"}).status_code == 400
    assert labelled.submit("/rubric/decide", {"version": "2", "decision": "perhaps"}).status_code == 400


def test_what_is_kept_is_what_people_read_from_then_on(labelled, run):
    for text in ("Judge kindly.", "Judge sternly."):
        labelled.submit("/rubric/save", {"system-0": text, "user-0": "{query} {document}"})
    assert "Judge kindly" not in labelled.get("/disagreements").text
    labelled.submit("/rubric/decide", {"version": "2", "decision": "keep"})
    assert "Judge kindly." in labelled.get("/disagreements").text
    labelled.submit("/rubric/decide", {"version": "2", "decision": "drop"})
    assert "Judge kindly." not in labelled.get("/disagreements").text
    rows = [json.loads(line) for line in (run / "rubrics.jsonl").read_text().splitlines()]
    assert [(row["version"], row["decision"], row["person"]) for row in rows] == [
        (2, "keep", "ann"),
        (2, "drop", "ann"),
    ]


def test_a_judge_that_cannot_be_reached_is_said(labelled):
    labelled.submit("/rubric/save", {"system-0": "Judge.", "user-0": "{query} {document}"})
    assert labelled.submit("/rubric/price", {"version": "2"}).status_code == 400
    labelled.submit("/rubric/try", {"version": "2"})
    text = wait(labelled)
    assert "127.0.0.1:9" in text and "fix:" in text


def test_without_a_judge_there_is_the_command(run, open_server):
    browser = Browser(open_server(run), "ann")
    browser.submit("/rubric/save", {"system-0": "Judge.", "user-0": "{query} {document}"})
    text = browser.get("/rubric").text
    assert "bixse grade --pairs" in text and 'action="/rubric/try"' not in text
    assert browser.submit("/rubric/try", {"version": "2"}).status_code == 400


def wait(browser):
    for _ in range(300):
        text = browser.get("/rubric/progress").text
        if "hx-trigger" not in text:
            return text
        time.sleep(0.1)
    raise AssertionError(text)


@pytest.mark.parametrize("named", ["by its address", "by a file"])
def test_a_trial_grades_the_same_pairs_and_its_commands_give_the_same_figures(
    tmp_path, open_server, capsys, monkeypatch, named
):
    monkeypatch.setattr(rubric, "TRIED", 12)
    shares = [[0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0], [0, 0.1, 0.8, 0.1], [0, 0, 0.1, 0.9]]
    run = graded_folder(tmp_path / "run", queries=8, texts=lambda q, d: planted(f"{q}-{d}", shares[(d + q) % 4]))
    with chat_server() as server:
        judge = server.scenario()
        if named == "by a file":
            (tmp_path / "judge.yaml").write_text(f"judge: {{names: {judge}}}\n")
            judge = str(tmp_path / "judge.yaml")
        browser = Browser(open_server(run, judge=judge), "ann")
        for row, (query_id, document_id) in enumerate(browser.server.workspace.index.row_of):
            grade = str((int(document_id[-1]) + int(query_id[1:])) % 4)
            form = {"query_id": query_id, "document_id": document_id, "event": f"e{row}", "answer": grade}
            browser.submit("/label/save", form, follow_redirects=False)
        browser.submit("/rubric/save", {"system-0": "Judge well.", "user-0": "{query} {document}"})
        assert "12 pairs, 12 questions" in browser.submit("/rubric/price", {"version": "2"}).text
        browser.submit("/rubric/try", {"version": "2"})
        assert "was tried" in wait(browser)
        text = browser.get("/rubric").text
        assert "Better: the whole interval" in text and "before, on 12 pairs" in text
        browser.submit("/rubric/decide", {"version": "2", "decision": "keep"})
        (decided,) = [json.loads(line) for line in (run / "rubrics.jsonl").read_text().splitlines()]
        price, again, compare = map(
            shlex.split, re.search(r"<code>(bixse grade.*?)</code>", text, re.DOTALL)[1].split("\n\n")
        )
        code, envelope = call(capsys, *again[1:])
        assert code == 0 and envelope["metrics"]["asked"] == 0 and envelope["metrics"]["reused"] == 12
        code, envelope = call(capsys, *price[1:])
        assert code == 0 and envelope["metrics"]["answered"] == 12
        code, envelope = call(capsys, *compare[1:], "--out", tmp_path / "audit")
    audited = json.loads((tmp_path / "audit" / "audit.json").read_text())["judges"]
    _, after = (judge["measures"]["quadratic_kappa"]["value"] for judge in audited)  # the first graded more pairs
    assert after == pytest.approx(decided["after"]["value"])


def test_a_trial_needs_labels(run, open_server):
    browser = Browser(open_server(run, judge="http://127.0.0.1:9"), "ann")
    version = save_version(browser.server.workspace, {"system-0": "x", "user-0": "{query}{document}"})
    assert version.number == 2
    assert "label first" in browser.submit("/rubric/try", {"version": "2"}).text
    with pytest.raises(InputError):
        save_version(browser.server.workspace, {})
