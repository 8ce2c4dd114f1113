import json
import os
import re
from contextlib import ExitStack
from dataclasses import asdict
from html import unescape
from itertools import count

import numpy as np
import pytest

from bixse.audit.labels import read_labels
from bixse.cli.verbs.evaluate import read_ranking
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.errors import InputError, InvalidFileError, StorageError
from bixse.judging.rubrics import Rubric
from bixse.lab.few_labels import evaluate_few_labels
from bixse.relevance import GradeScale
from bixse.ui.label_log import LabelEvent, open_labels
from bixse.ui.label_plan import LabelPlan, inclusion_probabilities
from bixse.ui.pages.label import marked
from bixse.ui.pages.rubric import levels_of
from bixse.ui.serve import Server
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from helpers.command import call
from helpers.html_page import Page
from helpers.ui_server import ORIGIN, PORT, Browser, events_of, graded_folder

HOSTILE = (
    "<script>alert(1)</script>\x1b[31m\x00\u202e <img src=x onerror=alert(1)> {{ 7*7 }} \u0645\u0631\u062d\u0628\u0627"
    "\u200c"
)
SCALE = GradeScale(0, 3)
PAIR = {"query_id": "q0", "document_id": "d0-0"}


def forms(html, action="/label/save"):
    """The hidden fields of each form of a page that leads there, of cards only the open ones."""
    cards = re.findall(r"<article (.*?)</article>", html, re.DOTALL)
    parts = [card for card in cards if "data-open" in card] if action != "/label/undo" else [html]
    found = [form for part in parts for form in re.findall(rf'<form method="post" action="{action}".*?</form>',
             part, re.DOTALL)]  # fmt: skip
    pattern = r'<input type="hidden" name="(\w+)" value="([^"]*)">'
    return [{name: unescape(value) for name, value in re.findall(pattern, form)} for form in found]


def label(browser, answer, page=None, **more):
    html = page if page is not None else browser.get("/label").text
    return browser.submit("/label/save", {**forms(html)[0], "answer": answer, **more}).text


def pair_of(event):
    return {name: event[name] for name in PAIR}


@pytest.mark.parametrize(
    "form",
    [{}, {"query_id": "q0", "document_id": "nothing", "answer": "1"}, PAIR, {**PAIR, "answer": "7"},
     {**PAIR, "answer": "final"}],
)  # fmt: skip
def test_form_that_no_page_of_ours_sends_is_refused(run, browser, form):
    answer = browser.submit("/label/save", form)
    assert answer.status_code == 400 and "fix:" in answer.text
    assert not events_of(run)


def test_page_asks_for_a_name_first(run, open_server):
    browser = Browser(open_server(run))
    assert "Who labels?" in browser.get("/label").text
    for action in ("/label/save", "/label/undo", "/adjudicate/settle"):
        assert "Who labels?" in browser.submit(action, {**PAIR, "answer": "1", "event": "x"}).text
    assert not events_of(run)
    assert "Query" in browser.submit("/person", {"person": " ann ", "to": "label"}).text
    assert "overview" in str(browser.submit("/person", {"person": "", "to": "//evil.example"}).url)


@pytest.mark.parametrize(
    ("broken", "got"),
    [("no folder", "no such folder"), ("empty", "no pairs"), ("no texts", "no texts"), ("record", "damaged record"),
     ("rubric", "product")],
)  # fmt: skip
def test_folder_that_cannot_be_labelled_is_refused(tmp_path, run, broken, got):
    folder = {"no folder": tmp_path / "none", "empty": tmp_path / "empty"}.get(broken, run)
    (tmp_path / "empty").mkdir()
    if broken == "no texts":
        (run / "pairs.parquet").unlink()
    elif broken in ("record", "rubric"):
        text = (run / "run.json").read_text().replace('"name": "trec-dl-0-3"', '"name": "product"')
        (run / "run.json").write_text(text if broken == "rubric" else "[")
    with pytest.raises(InputError, match=got), open_workspace(UiSettings(run=folder)):
        pass
    if broken == "rubric":
        with open_workspace(UiSettings(run=run, rubric="umbrela-0-3")) as workspace:
            assert workspace.rubric.name == "umbrela-0-3"
            assert workspace.labels.add(LabelEvent("e", "ann", *PAIR.values(), "graded", 3.0))
        with pytest.raises(InputError, match="got the grade 3; "):
            open_workspace(UiSettings(run=run, rubric="binary-0-1")).__enter__()


def judge_in(html):
    return re.findall(r"the judge (\d\.\d\d)", html)


def test_label_is_on_the_disk_once_when_the_page_reports_it(run, browser):
    page = browser.get("/label").text
    after = label(browser, "2", page, explanation="names the function")
    again = label(browser, "3", page)  # the same form
    (event,) = events_of(run)
    assert event["grade"] == 2.0 and event["person"] == "ann" and event["explanation"] == "names the function"
    assert event["status"] == "graded" and 0 < event["probability"] <= 1 and event["seconds"] >= 0 and event["time"]
    assert "shows" not in event and f"Saved: 2 for {event['document_id']}." in after
    assert "Saved: 3" not in again and f"sent before; {event['document_id']} has 2." in again


def test_rubric_for_people_is_a_list_of_levels_without_the_words_for_a_model(run, browser):
    shown = Page(browser.get("/label").text).text
    assert "3 Perfectly relevant, exact answer" in shown
    assert "Answer with" not in shown and "Your task" not in shown
    for text, first in (
        ("0: nothing\n1: little\n2: some\n3: all of <b>\nAnswer.", "nothing"),
        ("Strictly.", "irrelevant"),
    ):
        browser.submit("/rubric/save", {"system-0": text, "user-0": "{query} {document}"})
        version = max(int(path.stem.partition("-")[2]) for path in run.glob("rubric-*.toml"))
        browser.submit("/rubric/decide", {"version": version, "decision": "keep"})
        shown = Page(browser.get("/label").text).text
        assert f"0 {first} 1" in shown and "Answer." not in shown and "Strictly" not in shown


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("Use 1-5, with 1 meaning bad, 2 meaning good. Answer.", ["bad", "good"]),
        ("1 = bad; and 2 = good", ["bad", "good"]),
        ("From 1 to 2.", ["low", "high"]),
        ("2: good 1: bad", ["low", "high"]),
    ],
)
def test_levels_are_read_from_the_text_or_are_the_meanings(text, levels):
    variant = {"name": "one", "system": text, "user": "{query} {document}"}
    rubric = Rubric(name="r", labels=("1", "2"), meanings=("low", "high"), variants=(variant,))
    assert levels_of(rubric) == list(zip(("1", "2"), levels, strict=True))
    assert levels_of(rubric.model_copy(update={"meanings": ()})) in ([], list(zip(("1", "2"), levels, strict=True)))


def test_title_is_apart_from_the_text_where_a_collection_has_it(run, tmp_path, open_server):
    ids = [f"d{q}-{d}" for q in range(10) for d in range(4)]
    titles = {name: "document <b>" if name.endswith("0") else f"document {name[-1]} of" for name in ids}
    corpus = {name: Document(title, "text") for name, title in titles.items()}
    save_collection(Collection("toy", corpus, {"q": "query"}, {"test": {"q": {"d0-0": 1}}}), tmp_path / "toy")
    html = Browser(open_server(run, collection=tmp_path / "toy"), "ann").get("/label").text
    shown = re.findall(r'<p class="title" dir="auto">(.*?)</p>', html)
    assert sorted(shown) == [f"document {n} of" for n in (1, 2, 3)], (
        "a title that the text does not begin with is left out"
    )
    assert "Text of d" in html and "document 0 of query" in Page(html).text


def test_judge_is_shown_after_all_documents_of_a_query_are_labelled(run, open_server):
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
    assert sorted(judge_in(page)) == ["0.10", "1.20", "2.00", "2.90"]  # next to the next query
    assert len(judge_in(browser.get("/label", params={"query": first}).text)) == 4
    assert "4 pairs have a grade of both" in browser.get("/disagreements").text
    assert [event.get("shows") for event in events_of(run)] == [None] * 4 + ["judge"]
    assert not any("seen" in event for event in events_of(run))


@pytest.mark.parametrize("restarted", [False, True])
def test_changes_after_the_judge_was_shown_stay_out_of_agreement(tmp_path, run, open_server, capsys, restarted):
    def audited():
        out = tmp_path / f"audit-{len(events_of(run))}"
        _, envelope = call(capsys, "grade", "audit", "--judge", run / "judgements.parquet", "--human",
                           run / "labels.jsonl", "--scale", 0, 3, "--out", out)  # fmt: skip
        (judge,) = json.loads((out / "audit.json").read_text())["judges"]
        return judge["pairs"], judge["measures"], envelope["warnings"]

    with ExitStack() as stack:
        workspace = stack.enter_context(open_workspace(UiSettings(run=run, planned=40, overlap=0)))
        browser = Browser(Server(workspace, PORT), "ann")
        for turn in range(10):  # two queries are complete, the third is not
            label(browser, str(turn % 4))
        before, agreement = audited(), workspace.agreement
        assert before[0] == 10 and not any("judge's grade was shown" in line for line in before[2])
        if restarted:
            stack.close()
            browser = Browser(open_server(run, planned=40, overlap=0), "ann")
        first, *_, last = events_of(run)
        assert first["document_id"] in browser.get("/label", params={"query": first["query_id"]}).text
        for name, event, answer in (("changed", first, "3"), ("changed again", first, "2"), ("not shown", last, "0")):
            browser.submit("/label/save", {**pair_of(event), "event": name, "answer": answer})
            if name == "changed":
                browser.submit("/label/undo", {"event": "undone"})
        marked = {event["event"]: event.get("seen") for event in events_of(run)[10:]}
        assert marked == {"changed": "judge", "undone": "judge", "changed again": "judge", "not shown": None}
        labels = browser.server.workspace.labels
        shown, not_shown = (tuple(pair_of(event).values()) for event in (first, last))
        assert labels.grades()[shown] == 2 and labels.grades(independent=True)[shown] == 0
        assert labels.grades(independent=True)[not_shown] == 0
        # with the label that was changed before the judge was shown set back, nothing differs
        browser.submit("/label/save", {**pair_of(last), "event": "set back", "answer": f"{last['grade']:g}"})
        assert browser.server.workspace.agreement == agreement
        after = audited()
        assert after[:2] == before[:2] and any("3 labels" in line for line in after[2])
        assert "3 labels came after" in browser.get("/label").text
    assert read_labels(run / "labels.jsonl", SCALE).grades[shown] == 2


@pytest.mark.parametrize(
    ("query", "text", "words"),
    [("", "a text", []), ("the of", "the text of", []), ("(.* [a", "a (.* text", []),
     ("Copies files", "copies; a FILE, filed, profile", ["copies", "FILE", "filed"]),
     ("<b>bold", "<b>bold</b>", ["bold"])],
)  # fmt: skip
def test_words_of_the_query_are_marked_and_the_text_stays_as_it_is(query, text, words):
    pieces = marked(query, text)
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_marked in pieces if is_marked] == words


def test_button_says_its_meaning_and_the_given_grade_is_marked(browser):
    html = browser.get("/label").text
    assert "exact answer" in html and "<mark>query</mark>" in html and "aria-pressed" not in html
    label(browser, "2", html)
    given = browser.get("/label", params={"query": events_of(browser.server.workspace.run)[0]["query_id"]}).text
    assert re.findall(r'value="(\w+)"[^>]* aria-pressed="true"', given) == ["2"]


def test_file_can_be_read_again_whatever_a_form_holds(run, open_server):
    odd = (" ", "\u2028\n", "x" * 999, "\ud7ff\x00\x1b", '"}\n{"')
    with open_workspace(UiSettings(run=run)) as workspace:
        browser = Browser(Server(workspace, PORT), "ann")
        for text in odd:
            form = {**PAIR, "answer": "1", "event": text, "explanation": text, "shown": text}
            browser.submit("/label/save", form)
        browser.post("/label/save", content=b"event=%ff%fe&answer=1&query_id=q0&document_id=d0-0&explanation=%ed%a0%80",
                     headers={"origin": ORIGIN})  # fmt: skip
    with open_workspace(UiSettings(run=run)) as workspace:
        assert len(workspace.labels.events) == len(odd) + 1
        assert not workspace.labels.add(workspace.labels.events[0])  # a form that is sent again to the next server
    assert read_labels(run / "labels.jsonl", SCALE).grades == {("q0", "d0-0"): 1.0}


def test_undo_reverts_one_event_at_a_time(browser):
    for answer in ("1", "2"):
        label(browser, answer)
    for left in (1, 0):
        (form,) = forms(browser.get("/label").text, "/label/undo")
        for _ in range(2):  # sent twice
            browser.submit("/label/undo", form)
        assert len(browser.server.workspace.labels.grades()) == left
    assert "nothing to undo" in browser.submit("/label/undo", {"event": "x"}).text


def test_all_planned_pairs_are_labelled_and_skipped_ones_come_last(run, open_server):
    browser = Browser(open_server(run, planned=12), "ann")
    label(browser, "skip")
    (first,) = events_of(run)
    label(browser, "cannot-tell")
    for _ in range(10):
        page = label(browser, "1")
    assert read_labels(run / "labels.jsonl", SCALE).statuses == {"skipped": 1, "cannot-tell": 1, "graded": 10}
    assert f'value="{first["document_id"]}"' in page  # nothing else is left
    assert "Everything is labelled" in label(browser, "2", page)
    assert [event["status"] for event in events_of(run)[:3]] == ["skipped", "cannot-tell", "graded"]
    assert len(read_labels(run / "labels.jsonl", SCALE).grades) == 11


def test_people_share_the_pairs_and_all_label_the_overlap(run, open_server):
    server = open_server(run, overlap=0.3)
    ann, bob = Browser(server, "ann"), Browser(server, "bob")
    pages = {ann: ann.get("/label").text, bob: bob.get("/label").text}  # both open before either has saved
    for turn in range(200):
        browser = (ann, bob)[turn % 2]
        if forms(pages[browser]):
            pages[browser] = label(browser, str(turn % 4), pages[browser])
    people = {}
    for event in events_of(run):
        row = server.workspace.index.row_of[event["query_id"], event["document_id"]]
        people.setdefault(row, []).append(event["person"])
    assert sorted(people) == list(range(40))
    both = {row for row, names in people.items() if len(names) == 2}
    assert both == server.workspace.plan.for_all and 0 < len(both) < 30
    assert all(len(set(names)) == len(names) for names in people.values())


def test_pairs_on_which_people_differ_are_settled(run, open_server):
    server = open_server(run, overlap=1.0, planned=4)
    for person, answer in (("ann", "0"), ("bob", "3")):
        browser = Browser(server, person)
        for _ in range(4):
            label(browser, answer, explanation=f"{person} thinks so")
    other = Browser(server, "eve").get("/adjudicate").text  # she still has to label these pairs herself
    assert "thinks so" not in other and "4 more come when" in other and "Nothing is left" not in other
    page = browser.get("/adjudicate").text
    assert page.count("ann thinks so") == 4 and "alpha is -0." in page and "more come" not in page
    first = forms(page, "/adjudicate/settle")[0]
    assert browser.submit("/adjudicate/settle", {**first, "answer": "skip"}).status_code == 400
    page = browser.submit("/adjudicate/settle", {**first, "answer": "2"}).text
    assert len(forms(page, "/adjudicate/settle")) == 3 and "Settled: 2" in page
    grades = read_labels(run / "labels.jsonl", SCALE).grades
    assert sorted(grades.values()) == [0, 0, 0, 2] and grades[first["query_id"], first["document_id"]] == 2


def test_hostile_texts_are_shown_as_text(tmp_path, open_server):
    folder = graded_folder(tmp_path / "run", queries=2, documents=2)
    rows = [
        {"query_id": pair.query_id, "query": f"{pair.query_id} {HOSTILE}", "document_id": pair.document_id,
         "document": f"{pair.document_id} {HOSTILE}" + "long " * 200_000, "relevance": 0.0}
        for pair in load_pairs(folder / "pairs.parquet")
    ]  # fmt: skip
    save_graded_pairs(Pairs.from_rows(rows), tmp_path / "hostile.parquet")
    browser = Browser(open_server(folder, pairs=tmp_path / "hostile.parquet"), HOSTILE + "x" * 99)
    html = browser.get("/label").text
    page = Page(html)
    page.check_served()
    assert "alert(1)" in page.text and "{{ 7*7 }}" in page.text
    assert "\u0627\u200c" in page.text  # Persian and emoji need the joiners
    assert not {"\x1b", "\x00", "\u202e"} & set(html) and len(html) < 50_000 and "x" * 41 not in html
    row = re.search(r"all=(\d+)", html)[1]
    complete = browser.get("/label", params={"query": forms(html)[0]["query_id"], "all": row}).text
    assert complete.count("long ") >= 200_000
    label(browser, "1", html, explanation=HOSTILE)
    assert "alert" in events_of(folder)[0]["explanation"]
    assert "<script>alert" not in browser.get("/label").text


@pytest.mark.parametrize("size", [1, 50, 300, 499, 500])
def test_inclusion_probabilities_are_in_proportion_and_sum_to_the_size(size):
    weights = np.random.default_rng(0).lognormal(size=500)
    probabilities = inclusion_probabilities(weights, size)
    assert probabilities.sum() == pytest.approx(size) and (probabilities <= 1).all()
    ratios = (probabilities / weights)[probabilities < 1]
    assert np.allclose(ratios, ratios[:1], rtol=1e-9) and (len(ratios) > 0) == (size < 500)


def test_pairs_are_drawn_with_their_probabilities(run):
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


def test_agreement_counts_labels_by_how_they_were_drawn(tmp_path, open_server):
    server = open_server(graded_folder(tmp_path / "run", queries=30), planned=100)
    browser = Browser(server, "ann")
    for done in range(100):
        if done == 24:
            few = server.workspace.agreement
            assert few.kappa.low is None and "at least 20" in few.verdict and "chance" not in few.verdict
            text = browser.get("/label").text
            assert few.verdict in text and few.left(0.1) is None
            assert text.count(few.kappa.few) == 3, "the verdict, and in place of two intervals"
        page = browser.get("/label").text
        number = int(forms(page)[0]["document_id"][-1])
        label(browser, str(number if number else 3), page)  # the judge gives 0 where people say 3
    agreement, index, plan = server.workspace.agreement, server.workspace.index, server.workspace.plan
    weights = np.array([1 / plan.probabilities[row] for row in plan.rows])
    wrong = np.array([index.document_ids[row].endswith("-0") for row in plan.rows])
    within = agreement.within_one
    assert agreement.labels == 100 and within.value == pytest.approx(1 - weights[wrong].sum() / weights.sum())
    assert within.low < within.value < within.high
    assert agreement.left(0.01) > agreement.left(0.1) >= 0
    assert agreement.width(400) == pytest.approx((agreement.kappa.high - agreement.kappa.low) / 2)
    assert agreement.verdict in browser.get("/label").text and agreement.verdict in browser.get("/disagreements").text


def test_labels_of_a_plan_that_was_stopped_early_stand_for_all_pairs(tmp_path, run, open_server, capsys):
    system = tmp_path / "system.trec"
    lines = (f"q{q} Q0 d{q}-{d} {d + 1} {-d} a" for q in range(10) for d in range(4))
    system.write_text("\n".join(lines) + "\n")
    words = ("evaluate", system, "--grades", run / "judgements.parquet", "--human", run / "labels.jsonl")
    for planned, plans in ((30, 1), (36, 2)):
        with ExitStack() as stack:
            workspace = stack.enter_context(open_workspace(UiSettings(run=run, planned=planned, overlap=0)))
            for turn in range(7):
                label(Browser(Server(workspace, PORT), "ann"), str(turn % 4))
        code, envelope = call(capsys, *words, "--scale", 0, 3)
        assert code == 0 and any("labels of 2 plans" in line for line in envelope["warnings"]) == (plans == 2)
        if plans == 1:
            labels = read_labels(run / "labels.jsonl", SCALE)
            share = sum(1 / chance for chance in labels.probability.values()) / 40
            chances = {pair: min(1, share * chance) for pair, chance in labels.probability.items()}
            grades, ranking = read_labels(run / "judgements.parquet").relevance, read_ranking(str(system))
            right = evaluate_few_labels({str(system): ranking}, grades, labels.relevance, chances, positive_from=1 / 3)
            assert share < 0.4 and envelope["metrics"]["estimates"][0]["labels"] == asdict(right.estimates[0].labels)


NUMBERS = count()


def event(person, document, grade=None, status=None, name=None, **more):
    status = status or ("graded" if grade is not None else "cannot-tell")
    return LabelEvent(name or f"e{next(NUMBERS)}", person, "q", document, status, grade, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "labels.jsonl"


def write(path, *events):
    with open_labels(path) as labels:
        assert all(labels.add(event) for event in events)


@pytest.mark.parametrize("torn", ["", '{"event": "x", "pers'])
def test_torn_last_line_is_moved_and_a_complete_line_without_newline_counts(path, torn):
    write(path, event("ann", "a", 2.0))
    text = path.read_text()
    path.write_text(text + torn if torn else text.rstrip("\n"))
    write(path, event("ann", "b", 1.0))
    assert read_labels(path, SCALE).grades == {("q", "a"): 2.0, ("q", "b"): 1.0}
    moved = path.with_name("labels.jsonl.torn")
    assert moved.read_text() == f"{torn}\n" if torn else not moved.exists()


def test_damaged_line_in_the_middle_is_refused_and_nothing_is_changed(path):
    write(path, event("ann", "a", 2.0), event("ann", "b", 2.0))
    first, last = path.read_text().splitlines()
    for damaged in (first[:30], first.replace('"grade": 2.0, ', ""), first.replace('"time": "', '"time": "x'), "[]"):
        path.write_text(f"{damaged}\n{last}\n")
        before = path.read_bytes()
        with pytest.raises(InvalidFileError), open_labels(path):
            pass
        assert path.read_bytes() == before


def test_event_that_could_not_be_written_does_not_count(path, monkeypatch):
    with open_labels(path) as labels:
        labels.add(event("ann", "a", 2.0))

        def full(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError):
            labels.add(lost := event("ann", "b", 1.0))
        monkeypatch.undo()
        assert list(labels.words) == [("q", "a")] and len(path.read_text().splitlines()) == 1
        assert labels.add(lost)
    assert len(read_labels(path, SCALE).grades) == 2


CASES = {
    "an edit replaces": ([("ann", 1.0), ("ann", 3.0)], 3.0),
    "the lower of two": ([("ann", 1.0), ("bob", 3.0)], 1.0),
    "the middle of three": ([("ann", 0.0), ("bob", 3.0), ("eve", 1.0)], 1.0),
    "who cannot tell says nothing": ([("ann", 2.0), ("bob", "cannot-tell"), ("eve", "skipped")], 2.0),
    "a later cannot tell takes the grade back": ([("ann", 2.0), ("ann", "cannot-tell")], None),
    "a settled grade wins, whenever": ([("ann", 0.0), ("eve", "final 3"), ("bob", 1.0), ("eve", 1.0)], 3.0),
    "undone": ([("ann", 2.0), ("ann", "undo 0")], None),
    "an undone edit": ([("ann", 1.0), ("ann", 3.0), ("ann", "undo 1")], 1.0),
    "an undone settlement": ([("ann", 1.0), ("ann", "final 3"), ("ann", "undo 1")], 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_page_and_audit_read_the_same_grade(path, case):
    steps, expected = CASES[case]
    events = []
    for person, word in steps:
        kind, _, value = word.partition(" ") if isinstance(word, str) else ("", "", "")
        if kind == "undo":
            events.append(event(person, "a", status="undone", undoes=events[int(value)].event))
        elif kind == "final":
            events.append(event(person, "a", float(value), "final"))
        else:
            events.append(event(person, "a", status=kind) if kind else event(person, "a", word))
    write(path, event("ann", "other", 0.0), event("ann", "another", 3.0), *events)
    grades = read_labels(path, SCALE).grades
    assert grades.get(("q", "a")) == expected
    with open_labels(path) as labels:
        assert labels.grades() == grades
