"""Labelling by forms, as a browser without JavaScript does it: what is wrong first."""

import json
import re
from contextlib import ExitStack
from html import unescape

import numpy as np
import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.errors import ConfigError, InputError
from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from bixse.ui.label_plan import LabelPlan, inclusion_probabilities
from bixse.ui.serve import Server
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from helpers.command import call
from helpers.html_page import Page
from helpers.ui_server import ORIGIN, PORT, Browser, events_of, graded_folder

HOSTILE = (
    "<script>alert(1)</script>\x1b[31m\x00\u202e <img src=x onerror=alert(1)> {{ 7*7 }} \u0645\u0631\u062d\u0628\u0627"
)


def forms(html, action="/label/save"):
    """The hidden fields of each form of a page that leads there, of cards only the open ones."""
    cards = re.findall(r"<article (.*?)</article>", html, re.DOTALL)
    parts = [card for card in cards if "data-open" in card] if action != "/label/undo" else [html]
    parts = [
        found
        for part in parts
        for found in re.findall(rf'<form method="post" action="{action}".*?</form>', part, re.DOTALL)
    ]
    pattern = r'<input type="hidden" name="(\w+)" value="([^"]*)">'
    return [{name: unescape(value) for name, value in re.findall(pattern, part)} for part in parts]


def label(browser, answer, page=None, **more):
    """Answer the first form of the page, and follow."""
    html = page if page is not None else browser.get("/label").text
    return browser.submit("/label/save", {**forms(html)[0], "answer": answer, **more}).text


@pytest.mark.parametrize(
    "form",
    [{}, {"query_id": "q0", "document_id": "nothing", "answer": "1"}]
    + [{"query_id": "q0", "document_id": "d0-0", **answer} for answer in ({}, {"answer": "7"}, {"answer": "final"})],
)
def test_what_no_form_of_ours_says_is_refused_in_words(run, open_server, form):
    browser = Browser(open_server(run), "ann")
    answer = browser.submit("/label/save", form)
    assert answer.status_code == 400 and "fix:" in answer.text
    assert not events_of(run)


def test_a_name_is_asked_for_first(run, open_server):
    browser = Browser(open_server(run))
    assert "Who labels?" in browser.get("/label").text
    form = {"query_id": "q0", "document_id": "d0-0", "answer": "1", "event": "x"}
    for action in ("/label/save", "/label/undo", "/adjudicate/settle"):
        assert "Who labels?" in browser.submit(action, form).text
    assert not events_of(run)
    assert "Query" in browser.submit("/person", {"person": " ann ", "to": "label"}).text
    assert "overview" in str(browser.submit("/person", {"person": "", "to": "//evil.example"}).url)


def test_folders_that_cannot_be_labelled(tmp_path, run):
    (tmp_path / "empty").mkdir()
    for folder, text in ((tmp_path / "none", "no such folder"), (tmp_path / "empty", "no pairs")):
        with pytest.raises(InputError, match=text), open_workspace(UiSettings(run=folder)):
            pass
    (run / "pairs.parquet").unlink()
    with pytest.raises(InputError, match="no texts"), open_workspace(UiSettings(run=run)):
        pass
    (run / "run.json").write_text("[")
    with pytest.raises(InputError), open_workspace(UiSettings(run=run)):
        pass


def test_a_rubric_of_ones_own_has_to_be_named(run):
    path = run / "run.json"
    path.write_text(path.read_text().replace('"name": "trec-dl-0-3"', '"name": "product"'))
    with pytest.raises(InputError, match="product"), open_workspace(UiSettings(run=run)):
        pass
    with open_workspace(UiSettings(run=run, rubric="umbrela-0-3")) as workspace:
        assert workspace.rubric.name == "umbrela-0-3"
    with pytest.raises(ConfigError):
        UiSettings.load(None, {"run": str(run), "planned": 0, "overlap": 2})


def judge_in(html):
    """Grades of the judge on the page Label."""
    return re.findall(r"the judge (\d\.\d\d)", html)


def test_a_label_is_on_the_disk_when_the_page_says_so(run, open_server):
    after = label(Browser(open_server(run), "ann"), "2", explanation="names the function")
    (event,) = events_of(run)
    assert event["grade"] == 2.0 and event["person"] == "ann" and event["explanation"] == "names the function"
    assert event["status"] == "graded" and 0 < event["probability"] <= 1 and event["seconds"] >= 0 and event["time"]
    assert "shows" not in event and f"Saved: 2 for {event['document_id']}." in after


def test_the_judge_shows_when_all_documents_of_a_query_are_labelled(run, open_server):
    browser = Browser(open_server(run, planned=40, overlap=0), "ann")
    page = browser.get("/label").text
    for turn in range(3):
        page = label(browser, str(turn), page)
        first = events_of(run)[0]["query_id"]
        assert not judge_in(page) and not judge_in(browser.get("/label", params={"done": first}).text)
        hidden = browser.get("/disagreements").text
        assert f"{turn + 1} more come when" in hidden and "No pair is like that" in hidden
    page = label(browser, "skip", page)
    assert not judge_in(page) and not judge_in(browser.get("/label", params={"query": first}).text)
    page = label(browser, "3", browser.get("/label", params={"query": first}).text)
    assert sorted(judge_in(page)) == ["0.10", "1.20", "2.00", "2.90"]  # beside the next query
    assert len(judge_in(browser.get("/label", params={"query": first}).text)) == 4
    assert "4 pairs have a grade of both" in browser.get("/disagreements").text
    assert [event.get("shows") for event in events_of(run)] == [None] * 4 + ["judge"]
    assert not any("seen" in event for event in events_of(run))


@pytest.mark.parametrize("restarted", [False, True])
def test_changes_after_the_judge_was_shown_stay_out_of_agreement(tmp_path, run, open_server, capsys, restarted):
    def audited():
        out = tmp_path / f"audit-{len(events_of(run))}"
        _, found = call(capsys, "grade", "audit", "--judge", run / "judgements.parquet", "--human",
                        run / "labels.jsonl", "--scale", 0, 3, "--out", out)  # fmt: skip
        (judge,) = json.loads((out / "audit.json").read_text())["judges"]
        return judge["pairs"], judge["measures"], found["warnings"]

    with ExitStack() as stack:
        server = stack.enter_context(open_workspace(UiSettings(run=run, planned=40, overlap=0)))
        browser = Browser(Server(server, PORT), "ann")
        for turn in range(10):  # two queries are complete, the third is not
            label(browser, str(turn % 4))
        before, kappas = audited(), server.agreement
        assert before[0] == 10 and not any("judge's grade was shown" in line for line in before[2])
        if restarted:
            stack.close()
            browser = Browser(open_server(run, planned=40, overlap=0), "ann")
        first, *_, last = events_of(run)
        again = browser.get("/label", params={"query": first["query_id"]}).text
        pair = {name: first[name] for name in ("query_id", "document_id")}
        assert first["document_id"] in again
        browser.submit("/label/save", {**pair, "event": "changed", "answer": "3"})
        browser.submit("/label/undo", {"event": "undone"})  # the change, then the label itself
        browser.submit("/label/save", {**pair, "event": "changed again", "answer": "2"})
        own = {name: last[name] for name in ("query_id", "document_id")}
        browser.submit("/label/save", {**own, "event": "not shown yet", "answer": "0"})
        marked = {event["event"]: event.get("seen") for event in events_of(run)[10:]}
        assert marked == {"changed": "judge", "undone": "judge", "changed again": "judge", "not shown yet": None}
        labels = browser.server.workspace.labels
        assert labels.grades()[tuple(pair.values())] == 2 and labels.grades(independent=True)[tuple(pair.values())] == 0
        assert labels.grades(independent=True)[tuple(own.values())] == 0
        # with the label that was changed before the judge was shown set back, nothing differs
        browser.submit("/label/save", {**own, "event": "set back", "answer": f"{last['grade']:g}"})
        assert browser.server.workspace.agreement == kappas
        after = audited()
        assert after[:2] == before[:2] and any("3 labels" in line for line in after[2])
        assert "3 labels came after" in browser.get("/label").text
    assert read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades[tuple(pair.values())] == 2


def test_a_form_sent_twice_is_one_label(run, open_server):
    browser = Browser(open_server(run), "ann")
    page = browser.get("/label").text
    for answer in ("1", "3"):
        label(browser, answer, page)
    assert [event["grade"] for event in events_of(run)] == [1.0]


def test_whatever_a_form_says_the_file_can_be_read_again(run, open_server):
    form = {"query_id": "q0", "document_id": "d0-0", "answer": "1"}
    odd = (" ", "\u2028\n", "x" * 999, "\ud7ff\x00\x1b", '"}\n{"')
    with ExitStack() as stack:
        browser = Browser(Server(stack.enter_context(open_workspace(UiSettings(run=run))), PORT), "ann")
        for text in odd:
            browser.submit("/label/save", {**form, "event": text, "explanation": text, "shown": text})
        browser.post("/label/save", content=b"event=%ff%fe&answer=1&query_id=q0&document_id=d0-0&explanation=%ed%a0%80",
                     headers={"origin": ORIGIN})  # fmt: skip
    with open_workspace(UiSettings(run=run)) as workspace:
        assert len(workspace.labels.events) == len(odd) + 1
    assert read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades == {("q0", "d0-0"): 1.0}


def test_what_is_no_grade_is_kept_and_is_no_label(run, open_server):
    browser = Browser(open_server(run), "ann")
    label(browser, "cannot-tell")
    label(browser, "skip")
    label(browser, "3")
    label(browser, "0")
    assert [event["status"] for event in events_of(run)] == ["cannot-tell", "skipped", "graded", "graded"]
    assert len(read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades) == 2


def test_undo_takes_back_one_thing_at_a_time(run, open_server):
    browser = Browser(open_server(run), "ann")
    for answer in ("1", "2"):
        label(browser, answer)
    for left in (1, 0):
        (form,) = forms(browser.get("/label").text, "/label/undo")
        browser.submit("/label/undo", form)
        browser.submit("/label/undo", form)  # sent twice
        assert len(browser.server.workspace.labels.grades()) == left
    assert "nothing to undo" in browser.submit("/label/undo", {"event": "x"}).text


def test_all_that_is_planned_is_labelled_and_what_was_skipped_comes_last(run, open_server):
    browser = Browser(open_server(run, planned=12), "ann")
    label(browser, "skip")
    (first,) = events_of(run)
    for _ in range(11):
        page = label(browser, "1")
    assert f'value="{first["document_id"]}"' in page  # nothing else is left
    assert "Everything is labelled" in label(browser, "2", page)
    graded = {(event["query_id"], event["document_id"]) for event in events_of(run) if event["status"] == "graded"}
    assert len(graded) == 12


def test_several_people_share_the_pairs_and_label_some_all(run, open_server):
    server = open_server(run, overlap=0.3)
    ann, bob = Browser(server, "ann"), Browser(server, "bob")
    pages = {ann: ann.get("/label").text, bob: bob.get("/label").text}  # both open before either has saved
    for turn in range(200):
        browser = (ann, bob)[turn % 2]
        if forms(pages[browser]):
            pages[browser] = label(browser, str(turn % 4), pages[browser])
    people = {}
    for event in events_of(run):
        people.setdefault(server.workspace.index.row_of[event["query_id"], event["document_id"]], []).append(
            event["person"]
        )
    assert sorted(people) == list(range(40))
    both = {row for row, names in people.items() if len(names) == 2}
    assert both == server.workspace.plan.for_all and 0 < len(both) < 30
    assert all(len(set(names)) == len(names) for names in people.values())


def test_people_who_differ_are_settled(run, open_server):
    server = open_server(run, overlap=1.0, planned=4)
    for person, answer in (("ann", "0"), ("bob", "3")):
        browser = Browser(server, person)
        for _ in range(4):
            label(browser, answer, explanation=f"{person} thinks so")
    page = browser.get("/adjudicate").text
    assert page.count("ann thinks so") == 4 and "alpha is -0." in page
    first = forms(page, "/adjudicate/settle")[0]
    assert browser.submit("/adjudicate/settle", {**first, "answer": "skip"}).status_code == 400
    page = browser.submit("/adjudicate/settle", {**first, "answer": "2"}).text
    assert len(forms(page, "/adjudicate/settle")) == 3 and "Settled: 2" in page
    grades = read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades
    assert sorted(grades.values()) == [0, 0, 0, 2] and grades[first["query_id"], first["document_id"]] == 2


def test_hostile_texts_leave_the_page_whole(tmp_path, open_server):
    folder = graded_folder(tmp_path / "run", queries=2, documents=2)
    rows = [
        {"query_id": pair.query_id, "query": f"{pair.query_id} {HOSTILE}", "document_id": pair.document_id,
         "document": f"{pair.document_id} {HOSTILE}" + "long " * 200_000, "relevance": 0.0}
        for pair in load_pairs(folder / "pairs.parquet")
    ]  # fmt: skip
    save_graded_pairs(GradedPairs.from_rows(rows), tmp_path / "hostile.parquet")
    browser = Browser(open_server(folder, pairs=tmp_path / "hostile.parquet"), HOSTILE)
    html = browser.get("/label").text
    page = Page(html.replace("<!DOCTYPE html>", ""))
    assert not page.open and "alert(1)" in page.text and "{{ 7*7 }}" in page.text
    assert not {tag for tag, _ in page.elements} & {"img", "b", "i"}
    assert not [attributes for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not {"\x1b", "\x00", "\u202e"} & set(html) and len(html) < 50_000
    row = re.search(r"all=(\d+)", html)[1]
    whole = browser.get("/label", params={"query": forms(html)[0]["query_id"], "all": row}).text
    assert whole.count("long ") >= 200_000
    label(browser, "1", html, explanation=HOSTILE)
    assert "alert" in events_of(folder)[0]["explanation"]
    assert "<script>alert" not in browser.get("/label").text


class TestDrawing:
    def test_probabilities_are_in_proportion_and_sum_to_the_size(self):
        weights = np.random.default_rng(0).lognormal(size=500)
        for size in (1, 50, 300, 499):
            found = inclusion_probabilities(weights, size)
            assert found.sum() == pytest.approx(size) and (found <= 1).all()
            free = found < 1
            assert np.ptp(found[free] / weights[free]) < 1e-9
        assert inclusion_probabilities(weights, 500).tolist() == [1.0] * 500

    def test_pairs_are_drawn_as_often_as_their_probability_says(self, run):
        with open_workspace(UiSettings(run=run)) as workspace:
            index, rubric = workspace.index, workspace.rubric
        drawn, draws = np.zeros(len(index)), 400
        for seed in range(draws):
            plan = LabelPlan(index, rubric, UiSettings(run=run, planned=12), seed)
            assert len(plan.rows) == 12
            drawn[plan.rows] += 1
        expected = plan.probabilities
        assert expected.min() < expected.max()
        sigma = np.sqrt(expected * (1 - expected) / draws)
        assert (np.abs(drawn / draws - expected) < 4.5 * sigma + 0.02).all()  # Pareto sampling is near, not exact


def test_agreement_counts_labels_by_how_they_were_drawn(run, open_server):
    server = open_server(run, planned=24)
    browser = Browser(server, "ann")
    for _ in range(24):
        page = browser.get("/label").text
        number = int(forms(page)[0]["document_id"][-1])
        label(browser, str(number if number else 3), page)  # the judge gives 0 where people say 3
    found = server.workspace.agreement
    index, plan = server.workspace.index, server.workspace.plan
    weights = np.array([1 / plan.probabilities[row] for row in plan.rows])
    wrong = np.array([index.document_ids[row].endswith("-0") for row in plan.rows])
    assert found.labels == 24 and found.within_one.value == pytest.approx(1 - weights[wrong].sum() / weights.sum())
    assert found.within_one.low < found.within_one.value < found.within_one.high
    assert found.left(0.01) > found.left(0.1) >= 0
