"""Two systems side by side: what cannot be compared first, then moves, the slider and grades of hits."""

import json
import re
import threading

import pytest

from bixse.calibration.calibrate import calibrate
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.trec import write_run
from bixse.errors import ConfigError, InputError
from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from bixse.ui.pages.compare import TwoSystems
from bixse.ui.searcher import open_searcher
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from helpers.html_page import Page
from helpers.ui_server import Browser, events_of

HOSTILE = "<script>alert(1)</script>\x1b[31m <img src=x onerror=alert(1)>"


@pytest.fixture
def toy(tmp_path):
    """A collection of five documents, and two runs of its one query that move them; d5 is found by neither."""
    corpus = {f"d{n}": Document(f"title {n} {HOSTILE}", f"text {n} {HOSTILE}") for n in range(1, 6)}
    collection = Collection("toy", corpus, {"q1": "a query", "q2": "not judged"}, {"test": {"q1": {"d1": 3, "d3": 0}}})
    save_collection(collection, tmp_path / "toy")
    for name, ids in (("a", ["d1", "d2", "d3"]), ("b", ["d3", "d1", "d4"])):
        write_run(tmp_path / f"{name}.trec", {"q1": {d: 9.0 - rank for rank, d in enumerate(ids)}}, name)
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def compare(toy, open_server):
    """A browser of a comparison that is loaded."""

    def make(*systems, run=toy / "empty", person="ann", **settings):
        settings = {"collection": toy / "toy", **settings}
        server = open_server(run, systems=systems or (str(toy / "a.trec"), str(toy / "b.trec")), **settings)
        server.workspace.once(TwoSystems).job.wait()
        return Browser(server, person)

    return make


@pytest.fixture(scope="module")
def calibrated(actions, student, tmp_path_factory):
    """A model with a head that was calibrated by the command, and what the command found."""
    settings = CalibrateSettings(
        model=str(student), pairs=actions.parent / "pairs.jsonl", at_precision=[0.5], export=[0.25]
    )
    out = tmp_path_factory.mktemp("calibrated") / "out"
    return out / "model", calibrate(settings, out)


def test_settings_that_compare_nothing(toy):
    for wrong in ({"systems": ["a"]}, {"systems": ["a", "b", "c"]}, {"held_out": "pairs.jsonl"}):
        with pytest.raises(ConfigError):
            UiSettings.load(None, {"run": str(toy), **wrong})
    with pytest.raises(InputError, match="no pairs"), open_workspace(UiSettings(run=toy)):
        pass  # nothing else to show


@pytest.mark.parametrize("broken", ["no collection", "no such split", "damaged run", "no such model"])
def test_what_cannot_be_loaded_is_said_in_words(compare, toy, broken):
    given = {"no collection": {"collection": None}, "no such split": {"split": "dev"}}.get(broken, {})
    systems = ("bm25", "no/such/model") if broken == "no such model" else ()
    if broken == "damaged run":
        (toy / "a.trec").write_text("q1 Q0 d1\n")
    text = compare(*systems, **given).get("/compare", params={"text": "a query"}).text
    assert "got" in text and "fix:" in text and 'http-equiv="refresh"' not in text


def test_a_page_says_that_models_are_being_loaded(toy, open_server, monkeypatch):
    gate, really = threading.Event(), open_searcher
    monkeypatch.setattr("bixse.ui.searcher.open_searcher", lambda *given: gate.wait(60) and really(*given))
    server = open_server(toy / "empty", systems=("bm25", "bm25"), collection=toy / "toy")
    page = Browser(server).get("/compare").text
    assert "Loading" in page and 'http-equiv="refresh"' in page
    gate.set()
    server.workspace.once(TwoSystems).job.wait()
    assert "Loading" not in Browser(server).get("/compare").text
    assert "<h2" not in Browser(server).get("/compare/results").text  # nothing is asked yet


def test_a_run_answers_no_query_that_was_typed(compare):
    browser = compare()
    text = browser.get("/compare", params={"text": "something else"}).text
    assert "does not answer" in text and 'class="hit' not in text
    assert "does not answer" in browser.get("/compare", params={"query": "q2"}).text


@pytest.mark.parametrize("given", [{"p": "nan", "top": "-1"}, {"p": "1e999", "top": "x"}, {"p": "2", "query": "q9"}])
def test_an_address_with_nonsense_is_a_page(compare, given):
    assert compare().get("/compare", params={"text": "a query", **given}).status_code == 200


def test_documents_that_moved_say_so_beside_their_lines(compare):
    browser = compare()
    html = browser.get("/compare", params={"text": " a query "}).text  # a query of the collection, typed
    moves = re.findall(r'class="move (\w+)">.*?</span>([^<]+)</span>', html)
    left = [("down", "1 → 2"), ("gone", "2 → –"), ("up", "3 → 1")]
    assert moves == [*left, ("up", "3 → 1"), ("down", "1 → 2"), ("new", "– → 3")]
    paths = dict(re.findall(r'<path class="(\w+)" d="([^"]+)"', html))
    assert paths == {"down": "M0 5C45 5 55 15 100 15", "gone": "M0 15H16", "up": "M0 25C45 25 55 5 100 5",
                     "new": "M84 25H100"}  # fmt: skip
    assert html.count("judged <strong>3<") == 2 and html.count("judged <strong>0<") == 2
    page = Page(html.replace("<!DOCTYPE html>", ""))
    assert not page.open and "alert(1)" in page.text and "\x1b" not in html
    assert not {tag for tag, _ in page.elements} & {"img", "b", "i", "iframe"}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag != "script" or attributes["src"].startswith("/static/")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
    fields = [a for tag, a in page.elements if tag in ("input", "select") and a.get("type") != "hidden"]
    assert fields and all(field["id"] in labelled for field in fields)


def test_the_sliders_figures_are_the_commands(compare, calibrated, actions):
    model, result = calibrated
    (point,), (cut, *_) = result.points, [cut for cut in result.cuts if cut.precision is None]
    given = {"collection": actions, "held_out": actions.parent / "pairs.jsonl"}
    browser = compare(str(model), "bm25", **given)
    html = browser.get("/compare/results", params={"text": "copy a file", "p": point.threshold}).text
    low, high = point.interval
    assert f'{point.precision:.3f} <span class="quiet">{low:.3f} to {high:.3f}' in html
    low, high = point.recall_interval
    assert f'{point.recall:.3f} <span class="quiet">{low:.3f} to {high:.3f}' in html
    assert f"<dd>{point.pairs} <span" in html and "gives scores and no probabilities" in html
    html = browser.get("/compare", params={"text": "copy a file", "p": 0.25}).text
    assert f"<code>{cut.cosine:.4f}</code>" in html and "--export 0.25" in html and "--threshold 0.25" in html
    assert f"p={point.threshold}" in html  # the threshold that the command found is one click away
    assert html.count('class="bar"') == 10 and 'type="range"' in html


def test_too_few_held_out_queries_leave_the_rest_of_the_page(compare, calibrated, actions, tmp_path):
    rows = [json.loads(line) for line in (actions.parent / "pairs.jsonl").read_text().splitlines()]
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in rows[:40]))
    html = compare(str(calibrated[0]), "bm25", collection=actions, held_out=few).get(
        "/compare", params={"text": "copy a file"}
    ).text  # fmt: skip
    assert "expected at least 20" in html and html.count('class="hit"') + html.count('class="hit below"') > 10


GRADE = {"event": "e1", "query_id": "q1", "document_id": "d2", "answer": "2", "p": "0.5", "top": "10"}


@pytest.mark.parametrize("form", [{"document_id": "d9"}, {"query_id": "q9"}, {"answer": "7"}, {"answer": ""}])
def test_a_grade_that_no_page_of_ours_sends_is_refused(compare, toy, form):
    assert compare().submit("/compare/grade", {**GRADE, **form}).status_code == 400
    assert not events_of(toy / "empty")


def test_without_a_name_nothing_is_graded(compare, toy):
    browser = compare(person="")
    assert "give your name" in browser.get("/compare", params={"query": "q1"}).text
    assert "Nothing is saved" in browser.submit("/compare/grade", GRADE).text
    assert not events_of(toy / "empty")


def test_a_click_grades_a_hit_once(compare, toy):
    browser = compare()
    for _ in range(2):
        html = browser.submit("/compare/grade", GRADE).text
    (event,) = events_of(toy / "empty")
    assert event["grade"] == 2.0 and event["person"] == "ann" and "probability" not in event
    assert "you <strong>2<" in html and "Saved: 2 for d2" not in html
    assert read_labels(toy / "empty" / "labels.jsonl", GradeScale(0, 3)).grades == {("q1", "d2"): 2.0}


def test_pairs_that_a_person_chose_say_nothing_of_agreement(compare, run, toy):
    corpus = {f"d{n}-0": Document("", f"document {n}") for n in range(4)}
    queries = {f"q{n}": f"query number {n}" for n in range(4)}
    save_collection(Collection("own", corpus, queries, {"test": {"q0": {"d0-0": 1}}}), toy / "own")
    browser = compare("bm25", "bm25", run=run, collection=toy / "own")
    for n in range(4):
        browser.submit("/compare/grade", {**GRADE, "event": f"e{n}", "query_id": f"q{n}", "document_id": f"d{n}-0"})
    workspace = browser.server.workspace
    assert len(workspace.labels.grades()) == 4 and workspace.agreement is None
