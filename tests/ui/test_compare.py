import json
import re
import shlex
import threading
from dataclasses import replace
from html import unescape

import pytest

from bixse.audit.labels import read_labels
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.pairs_files import load_pairs
from bixse.data.trec import write_run
from bixse.judging.judge import Answer
from bixse.judging.rubrics import PromptVariant, load_rubric
from bixse.relevance import GradeScale
from bixse.ui.pages import rubric
from bixse.ui.pages.compare import TwoSystems
from bixse.ui.pages.rubric import LONGEST_COMPARED, changed_words
from bixse.ui.searcher import open_searcher
from helpers.chat_server import planted
from helpers.command import call
from helpers.html_page import Page
from helpers.scripted_judge import ScriptedJudge, graded
from helpers.ui_server import Browser, by_number, events_of, graded_folder

HOSTILE = "<script>alert(1)</script>\x1b[31m <img src=x onerror=alert(1)>"
GRADE = {"event": "e1", "query_id": "q1", "document_id": "d2", "answer": "2", "p": "0.5", "top": "10"}


@pytest.fixture
def toy(tmp_path):
    """A collection of five documents, and two runs of its first query that move them; d5 is found by neither."""
    corpus = {f"d{n}": Document(f"title {n} {HOSTILE}", f"text {n} {HOSTILE}") for n in range(1, 6)}
    collection = Collection("toy", corpus, {"q1": "a query", "q2": "not judged"}, {"test": {"q1": {"d1": 3, "d3": 0}}})
    save_collection(collection, tmp_path / "toy")
    for name, ids in (("a", ["d1", "d2", "d3"]), ("b", ["d3", "d1", "d4"])):
        write_run(tmp_path / f"{name}.trec", {"q1": {d: 9.0 - rank for rank, d in enumerate(ids)}}, name)
    return tmp_path


@pytest.fixture
def compare_runs(compare, toy):
    runs = (str(toy / "a.trec"), str(toy / "b.trec"))
    return lambda *systems, **settings: compare(*(systems or runs), **{"collection": toy / "toy", **settings})


@pytest.mark.parametrize("broken", ["no collection", "no such split", "damaged run", "no such model"])
def test_systems_that_cannot_be_loaded_are_an_error_on_the_page(compare_runs, toy, broken):
    settings = {"no collection": {"collection": None}, "no such split": {"split": "dev"}}.get(broken, {})
    systems = ("bm25", "no/such/model") if broken == "no such model" else ()
    if broken == "damaged run":
        (toy / "a.trec").write_text("q1 Q0 d1\n")
    text = compare_runs(*systems, **settings).get("/compare", params={"text": "a query"}).text
    assert "got" in text and "fix:" in text and 'http-equiv="refresh"' not in text


def test_page_reloads_until_models_are_loaded(toy, tmp_path, open_server, monkeypatch):
    gate, really = threading.Event(), open_searcher
    monkeypatch.setattr("bixse.ui.searcher.open_searcher", lambda *words: gate.wait(60) and really(*words))
    (tmp_path / "empty").mkdir()
    server = open_server(tmp_path / "empty", systems=("bm25", "bm25"), collection=toy / "toy")
    page = Browser(server).get("/compare").text
    assert "Loading" in page and 'http-equiv="refresh"' in page
    gate.set()
    server.workspace.once(TwoSystems).job.wait()
    assert "Loading" not in Browser(server).get("/compare").text
    assert "<h2" not in Browser(server).get("/compare/results", params={"text": ""}).text  # there is no query yet


def test_run_has_no_hits_for_an_unknown_query_and_nonsense_in_the_address_is_a_page(compare_runs):
    browser = compare_runs()
    for query in ({"text": "something else"}, {"query": "q2"}):
        text = browser.get("/compare", params=query).text
        assert "does not answer" in text and 'class="hit' not in text
    for query in ({"p": "nan", "top": "-1"}, {"p": "1e999", "top": "x"}, {"p": "2", "query": "q9"}):
        assert browser.get("/compare", params={"text": "a query", **query}).status_code == 200


def test_moved_documents_have_their_ranks_and_lines(compare_runs):
    html = compare_runs().get("/compare", params={"text": " a query "}).text  # a query of the collection, typed
    moves = re.findall(r'class="move (\w+)">.*?</span>([^<]+)</span>', html)
    left = [("down", "1 → 2"), ("gone", "2 → –"), ("up", "3 → 1")]
    assert moves == [*left, ("up", "3 → 1"), ("down", "1 → 2"), ("new", "– → 3")]
    paths = dict(re.findall(r'<path class="(\w+)" d="([^"]+)"', html))
    assert paths == {"down": "M0 5C45 5 55 15 100 15", "gone": "M0 15H16", "up": "M0 25C45 25 55 5 100 5",
                     "new": "M84 25H100"}  # fmt: skip
    assert html.count("judged <strong>3<") == 2 and html.count("judged <strong>0<") == 2
    page = Page(html)
    page.check_served()
    assert "alert(1)" in page.text and "\x1b" not in html
    labelled = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
    fields = [a for tag, a in page.elements if tag in ("input", "select") and a.get("type") != "hidden"]
    assert fields and all(field["id"] in labelled for field in fields)


def test_figures_of_the_slider_are_those_of_the_command(compare, calibrated, actions):
    model, result = calibrated
    (point,), (cut, *_) = result.points, [cut for cut in result.cuts if cut.precision is None]
    browser = compare("bm25", model, collection=actions, held_out=actions.parent / "pairs.jsonl")
    assert f'value="{point.threshold}" data-shows' in browser.get("/compare").text  # the slider begins there
    html = browser.get("/compare/results", params={"text": "copy a file", "p": point.threshold}).text
    for value, (low, high) in ((point.precision, point.interval), (point.recall, point.recall_interval)):
        assert f'{value:.3f} <span class="quiet">{low:.3f} to {high:.3f}' in html
    assert f"<dd>{point.pairs} graded pairs of" in html and "has no probabilities" in html
    html = browser.get("/compare", params={"text": "copy a file", "p": 0.25}).text
    assert f"<code>{cut.cosine:.4f}</code>" in html and "--export 0.25" in html and "--threshold 0.25" in html
    assert f"p={point.threshold}" in html  # the threshold that the command found is one click away
    assert html.count('class="bar"') == 10 and 'type="range"' in html


def test_too_few_held_out_queries_and_systems_without_a_head_have_hits_and_no_calibration(
    compare, calibrated, actions, tmp_path
):
    few = tmp_path / "few.jsonl"
    few.write_text("".join((actions.parent / "pairs.jsonl").read_text().splitlines(keepends=True)[:10]))
    browser = compare(calibrated[0], "bm25", collection=actions, held_out=few)
    html = browser.get("/compare", params={"text": "copy a file"}).text
    assert "expected at least 20" in html and html.count('class="hit"') + html.count('class="hit below"') > 10
    assert "expected at least 4" in browser.get("/calibration").text
    browser = compare("bm25", "bm25", run=tmp_path / "other", collection=actions, held_out=few)
    assert "without a relevance head" in browser.get("/calibration").text
    assert browser.get("/calibration/diagram.svg").status_code == 400


def test_name_that_is_given_keeps_query_and_threshold(compare_runs):
    browser = compare_runs(person="")
    html = browser.get("/compare", params={"query": "q1", "p": "0.25", "top": "5"}).text
    form = re.search(r'action="/person".*?</form>', html, re.DOTALL)[0]
    query = unescape(re.search(r'name="query" value="([^"]+)"', form)[1])
    answer = browser.submit("/person", {"person": "ann", "to": "compare", "query": query})
    assert dict(answer.url.params) == {"query": "q1", "p": "0.25", "top": "5"} and "labels as" in answer.text
    for hostile in ("//evil.example", "\r\nSet-Cookie: a=b", "x#y"):
        answer = browser.submit("/person", {"person": "ann", "to": "compare", "query": hostile}, follow_redirects=False)
        assert re.fullmatch(r"/compare\?[\w%+=.&-]*", answer.headers["location"])


def test_score_of_the_query_and_its_neighbours_are_shown(compare_runs):
    browser = compare_runs()
    html = browser.get("/compare", params={"query": "q1"}).text
    assert re.findall(r"nDCG@10 ([\d.]+)<", html) == ["1.000", "0.631"]
    assert "Next query" not in html and "Previous query" not in html  # the split has one query
    empty = browser.get("/compare", params={"text": ""}).text
    assert "query=q1" in re.search(r'href="([^"]+)" aria-label="Next query"', empty)[1]
    assert "nDCG" not in browser.get("/compare", params={"query": "q2"}).text  # it has no judgement


def test_page_opens_with_the_query_that_differs_most(compare, tmp_path):
    corpus = {f"d{n}": Document("", f"text {n}") for n in range(1, 4)}
    queries = {"q1": "the same", "q2": "another order of", "q3": "not answered by"}
    qrels = {"test": {name: {"d1": 3, "d2": 1, "d3": 0} for name in queries}}
    save_collection(Collection("toy", corpus, queries, qrels), tmp_path / "toy")
    for name, order in (("a", ["d1", "d2", "d3"]), ("b", ["d3", "d2", "d1"])):
        run = {"q1": ["d1", "d2", "d3"], "q2": order} | ({"q3": ["d3"]} if name == "a" else {})
        scores = {query: {d: 9.0 - rank for rank, d in enumerate(ids)} for query, ids in run.items()}
        write_run(tmp_path / f"{name}.trec", scores, name)
    browser = compare(str(tmp_path / "a.trec"), str(tmp_path / "b.trec"), collection=tmp_path / "toy")
    text = Page(browser.get("/compare").text).text
    assert "The query that differs most among the first 3." in text
    assert 'value="another order of"' in browser.get("/compare").text
    for asked in ({"query": "q1"}, {"text": ""}, {"text": "the same"}):
        assert "differs most" not in browser.get("/compare", params=asked).text


def test_query_without_a_relevant_document_has_hits_and_no_score(compare_runs, toy):
    (toy / "toy" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\nq2\td1\t1\n")
    html = compare_runs().get("/compare", params={"query": "q1"}).text
    assert 'class="hit' in html and "nDCG" not in html


def test_without_a_name_and_by_a_form_that_no_page_of_ours_sends_nothing_is_graded(compare_runs, tmp_path):
    browser = compare_runs(person="")
    assert "give your name" in browser.get("/compare", params={"query": "q1"}).text
    assert "Nothing is saved" in browser.submit("/compare/grade", GRADE).text
    browser.submit("/person", {"person": "ann"})
    for form in ({"document_id": "d9"}, {"query_id": "q9"}, {"answer": "7"}, {"answer": ""}):
        assert browser.submit("/compare/grade", {**GRADE, **form}).status_code == 400
    assert not events_of(tmp_path / "empty")


def test_hit_is_graded_once_by_a_form_sent_twice(compare_runs, tmp_path):
    browser = compare_runs()
    for _ in range(2):
        html = browser.submit("/compare/grade", GRADE).text
    (event,) = events_of(tmp_path / "empty")
    assert event["grade"] == 2.0 and event["person"] == "ann" and "probability" not in event
    assert "data-key" not in html and "you <strong>2<" in html and "Saved: 2 for d2" not in html
    assert read_labels(tmp_path / "empty" / "labels.jsonl", GradeScale(0, 3)).grades == {("q1", "d2"): 2.0}


def test_pairs_that_a_person_chose_do_not_count_for_agreement(compare, run, tmp_path):
    corpus = {f"d{n}-0": Document("", f"document {n}") for n in range(4)}
    queries = {f"q{n}": f"query number {n}" for n in range(4)}
    save_collection(Collection("own", corpus, queries, {"test": {"q0": {"d0-0": 1}}}), tmp_path / "own")
    browser = compare("bm25", "bm25", run=run, collection=tmp_path / "own")
    for n in range(4):
        browser.submit("/compare/grade", {**GRADE, "event": f"e{n}", "query_id": f"q{n}", "document_id": f"d{n}-0"})
    workspace = browser.server.workspace
    assert len(workspace.labels.grades()) == 4 and workspace.agreement is None


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


def decisions(run):
    return [json.loads(line) for line in (run / "rubrics.jsonl").read_text().splitlines()]


def end_of_trial(browser):
    browser.server.workspace.trial[1].wait()
    text = browser.get("/rubric/progress").text
    assert "hx-trigger" not in text  # the page stops asking
    return text


def test_filters_of_the_address_select_pairs_and_those_that_mean_nothing_are_refused(labelled):
    for query in ("human=9", "judge=x", "gap=-1", "gap=nan", "gap=x", "page=0", "page=x", "page=1e300"):
        answer = labelled.get(f"/disagreements?{query}")
        assert answer.status_code == 400 and "fix:" in answer.text
    html = labelled.get("/disagreements").text
    links = re.findall(r'href="/disagreements\?(human=\d&amp;judge=\d)"[^>]*>(\d+)</a>', html)
    assert len(links) == 4
    for link, count in [*links, ("", 40), ("gap=1.5", 10), ("query=q3&human=2", 4), ("query=NUMBER%207", 4)]:
        text = labelled.get(f"/disagreements?{link.replace('&amp;', '&')}").text
        assert f">{count} pairs, the largest gap first" in text
    assert "No pair is like that" in labelled.get("/disagreements?human=1").text
    pages = [labelled.get(f"/disagreements?page={page}").text for page in (1, 2)]
    assert len({row for page in pages for row in re.findall(r'id="card-(\d+)"', page)}) == 40
    html = labelled.get("/disagreements?query=q3&judge=0").text  # one pair, with the answers of judge and people
    assert html.count('aria-label="90 percent"') == 1 and "why d3-0" in html
    assert "0.00 to 0.20" in html  # the bounds of the judge's 0.10


def test_grade_given_where_the_mistake_is_seen_stays_out_of_agreement(labelled, run):
    before = labelled.server.workspace.agreement
    html = labelled.get("/disagreements?human=2&judge=0").text
    form = re.findall(r'action="/disagreements/correct".*?</form>', html, re.DOTALL)[0]
    fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)">\n', form)}
    right = re.search(r'value="(\d)">The judge was right', form)[1]
    answer = labelled.submit("/disagreements/correct", {**fields, "answer": right})
    assert "data-key" not in html  # a key pressed on this page must not grade the first of twenty pairs
    assert right == "0" and dict(answer.url.params) == {"human": "2", "judge": "0"}
    event = events_of(run)[-1]
    assert event["seen"] == "judge" and event["grade"] == 0.0 and event["document_id"].endswith("-0")
    assert labelled.server.workspace.agreement == before
    assert ">9 pairs, the largest gap first" in answer.text
    assert labelled.submit("/disagreements/correct", {**fields, "event": "x", "answer": "7"}).status_code == 400


def test_prompt_without_its_fields_is_not_saved_and_versions_are_never_overwritten(labelled, run):
    for user in (None, "no fields", "{query} alone", "{query} {query} {document}"):
        answer = labelled.submit("/rubric/save", {"system-0": "Judge me."} | ({"user-0": user} if user else {}))
        assert answer.status_code == 400 and not list(run.glob("rubric-*")) and not list(run.glob(".rubric*"))
        assert "Judge me." in answer.text and (user or "") in answer.text and 'action="/rubric/save"' in answer.text
    texts = {"system-0": 'Judge "well".\r\n\\0 \x07 - nothing\r\n"""', "user-0": "{query}\n{document}"}
    for system in (texts["system-0"], "Judge."):
        assert "Saved as rubric-" in labelled.submit("/rubric/save", {**texts, "system-0": system}).text
    second, third = (load_rubric(run / f"rubric-{number}.toml") for number in (2, 3))
    assert second.variants[0].system == texts["system-0"].replace("\r\n", "\n")
    assert second.labels == ("0", "1", "2", "3") and third.variants[0].system == "Judge."
    assert labelled.submit("/rubric/save", {**texts, "system-0": "Judge."}).status_code == 400  # nothing was changed
    assert not (run / "rubric-4.toml").exists() and "Judge.</textarea>" in labelled.get("/rubric").text
    assert labelled.submit("/rubric/try", {"version": "9"}).status_code == 400
    assert labelled.submit("/rubric/decide", {"version": "2", "decision": "perhaps"}).status_code == 400


@pytest.mark.parametrize(
    ("system", "pieces"),
    [("", [("del", "Judge the text.\n\n"), ("", "{query} {document}")]),
     ("Judge the text.", [("", "Judge the text.\n\n{query} {document}")]),
     ("Judge the whole text.", [("", "Judge the "), ("ins", "whole "), ("", "text.\n\n{query} {document}")]),
     ("x " * LONGEST_COMPARED, [("del", "Judge the text.\n\n{query} {document}"),
                                ("ins", "x " * LONGEST_COMPARED + "\n\n{query} {document}")])],
    ids=["no message", "the same", "one word more", "too long to compare"],
)  # fmt: skip
def test_edit_is_shown_by_its_words(system, pieces):
    rubric = load_rubric("trec-dl-0-3")
    before, after = (
        rubric.model_copy(update={"variants": (PromptVariant(name="a", system=text, user="{query} {document}"),)})
        for text in ("Judge the text.", system)
    )
    assert changed_words(before, after) == pieces


def test_edit_and_changed_grades_are_shown_as_text(tmp_path, open_server):
    run = graded_folder(tmp_path / "run", queries=2, texts=lambda q, d: f"text {q}-{d} {HOSTILE} {'long ' * 999}")
    browser = Browser(open_server(run, planned=8), "ann")
    label_all(browser, lambda query_id, document_id: 2)
    browser.submit("/rubric/save", {**EDIT, "system-0": HOSTILE})

    def rule(question):
        """The same grades, but for a refusal, a grade that stays the nearest one, and a much higher grade."""
        answer, number = by_number(question), {"d0-0": 3.0, "d0-1": 1.4}.get(question.document_id)
        if question.document_id == "d1-1":
            return Answer("refused", "token-ids", judge="scripted")
        return answer if number is None else replace(answer, grade=number, low=number, high=number)

    graded(load_pairs(run / "pairs.parquet"), ScriptedJudge(rule=rule), run / "rubric-2", rubric="trec-dl-0-3")
    html = browser.get("/rubric").text
    Page(html).check_served()
    (card,) = re.findall(r"<article.*?</article>", html, re.DOTALL)
    assert "<ins>&lt;script&gt;alert(1)&lt;/script&gt;" in card and "\x1b" not in card and len(card) < 10_000
    items = re.findall(r"<li>(.*?)</li>", card)
    figures = [re.findall(r"<strong>(.*?)</strong>", item) for item in items]
    assert [re.search(r"text (\d-\d) &lt;", item)[1] for item in items] == ["0-0", "1-1"] and figures == [
        ["0.10", "3.00", "2"],
        ["1.20", "–", "2"],
    ]


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
    text = end_of_trial(labelled)
    assert "127.0.0.1:9" in text and "fix:" in text


@pytest.mark.parametrize("judge", [None, NO_SERVER])
def test_trial_needs_a_judge_and_labels(run, open_server, judge):
    browser = Browser(open_server(run, judge=judge), "ann")
    assert "Label some" in browser.get("/disagreements").text
    browser.submit("/rubric/save", EDIT)
    text = browser.get("/rubric").text
    assert "bixse grade --pairs" not in text and ('action="/rubric/try"' in text) == bool(judge)
    answer = browser.submit("/rubric/try", {"version": "2"})
    assert answer.status_code == 400 and ("label first" if judge else "--judge") in answer.text
    for query in ("q0", "q1"):
        form = {"query_id": query, "document_id": f"d{query[1]}-0", "event": query, "answer": "1"}
        browser.submit("/label/save", form)
    for count in (2, 40, 40):  # the file of pairs follows the labels until a trial begins
        browser.submit("/rubric/save", {**EDIT, "system-0": f"Judge {len(list(run.glob('rubric-*.toml')))}."})
        assert "bixse grade --pairs" in browser.get("/rubric").text
        assert len(load_pairs(run / "rubric-pairs.parquet")) == count
        label_all(browser, lambda query_id, document_id: 2)
        if count == 40:
            (run / "rubric-3").mkdir(exist_ok=True)
            browser.submit("/label/undo", {"event": "undo"})


@pytest.mark.parametrize("named", ["by its address", "by a file"])
def test_trial_and_its_commands_give_the_same_figures(tmp_path, server, open_server, capsys, monkeypatch, named):
    monkeypatch.setattr(rubric, "TRIED", 60)
    shares = [[0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0], [0, 0.1, 0.8, 0.1], [0, 0, 0.1, 0.9]]
    run = graded_folder(tmp_path / "run", queries=24, texts=lambda q, d: planted(f"{q}-{d}", shares[(d + q) % 4]))
    judge = server.scenario()
    if named == "by a file":
        (tmp_path / "judge.yaml").write_text(f"judge: {{name: {judge}}}\n")
        judge = str(tmp_path / "judge.yaml")
    browser = Browser(open_server(run, judge=judge), "ann")
    label_all(browser, lambda query_id, document_id: (int(document_id[-1]) + int(query_id[1:])) % 4)
    browser.submit("/rubric/save", EDIT)
    assert "60 pairs, 60 questions" in browser.submit("/rubric/price", {"version": "2"}).text
    browser.submit("/rubric/try", {"version": "2"})
    result = end_of_trial(browser)
    assert "was tried" in result and "Better: the whole interval" in result and "before, on 60 pairs" in result
    drawn = load_pairs(run / "rubric-pairs.parquet")
    moved = sum(int(pair.query_id[1:]) % 4 != 0 for pair in drawn)
    assert len(drawn) == 60 and result.count("<li>") == moved > 0
    text = browser.get("/rubric").text
    assert "<del>" in text and "<ins>" in text
    browser.submit("/rubric/decide", {"version": "2", "decision": "keep"})
    lines = re.search(r"<code>(bixse grade.*?)</code>", text, re.DOTALL)[1].split("\n\n")
    price, again, audit = map(shlex.split, lines)
    code, envelope = call(capsys, *again[1:])
    assert code == 0 and envelope["metrics"]["asked"] == 0 and envelope["metrics"]["reused"] == 60
    code, envelope = call(capsys, *price[1:])
    assert code == 0 and envelope["metrics"]["answered"] == 60
    call(capsys, *audit[1:], "--out", tmp_path / "audit")
    audited = json.loads((tmp_path / "audit" / "audit.json").read_text())["judges"]
    _, after = (judge["measures"]["quadratic_kappa"]["value"] for judge in audited)  # the first graded more pairs
    assert after == pytest.approx(decisions(run)[0]["after"]["value"])
