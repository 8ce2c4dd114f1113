"""Pages in Chromium: accessibility, keys, widths, hostile texts and the slider on all; labelling through a kill -9."""

import json
import re
import shutil

import pytest

from bixse.audit.labels import read_labels
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.pairs_files import load_pairs
from bixse.relevance import GradeScale
from helpers.chat_server import planted
from helpers.row_files import jsonl
from helpers.scripted_judge import ScriptedJudge
from helpers.scripted_judge import graded as grade_pairs
from helpers.toy import action_collection
from helpers.ui_browser import faults, needs_axe, needs_chromium, running, tab
from helpers.ui_server import events_of, graded_folder, write_record

TAKEN = "document.title='taken'"
HOSTILE = f'</p><script>{TAKEN}</script><img src=x onerror="{TAKEN}">\u202eright to left\x1b[31m'
LONG = "long words " * 100_000  # 1.1 MB
PERSON = "Ann"
REFUSED = "disagreements?human=9"
PATHS = """
overview label label?query=q1 adjudicate disagreements disagreements?human=0&judge=1 disagreements?human=9 rubric
compare compare?query=q20-0&p=0.2 compare?text=copy+a+file+that+nobody+has calibration calibration?exponent=-2
training batch batch?epoch=2&batch=3 batch?row=1&column=1
""".split()  # noqa: SIM905
WIDTHS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 800}}
pytestmark = [pytest.mark.slow, needs_chromium]


def hostile(words, is_long=False):
    return f"{words} {HOSTILE}" + (LONG if is_long else "")


@pytest.fixture(scope="module")
def folder(actions, calibrated, graded, tmp_path_factory):
    """A run folder that every page fits: pairs with labels, a training run, two systems, runs below."""
    root = tmp_path_factory.mktemp("all")
    run = graded_folder(root / "run", texts=lambda q, d: hostile(f"document {d} of query {q}", d == 0))
    rows = [
        {"event": f"{person}{q}-{d}", "person": person, "time": "2026-01-01T00:00:00Z", "status": "graded",
         "grade": grade, "query_id": f"q{q}", "document_id": f"d{q}-{d}", "explanation": HOSTILE}
        for person, grade in ((PERSON, 0), (f"<b>{HOSTILE}"[:40], 3))
        for q in range(6) for d in (range(4) if person == PERSON and q == 0 else [1])  # one query is complete
    ]  # fmt: skip
    jsonl(run / "labels.jsonl", *rows)
    plain = action_collection()
    first = next(iter(plain.corpus))
    corpus = {name: Document(hostile(title), hostile(text, name == first)) for name, (title, text) in
              plain.corpus.items()}  # fmt: skip
    queries = {name: hostile(text) for name, text in plain.queries.items()}
    save_collection(Collection("actions", corpus, queries, plain.qrels), root / "actions")
    steps = [
        {"step": step, "epoch": step / 10, "loss": 3 / step, "logit_bias": -5.0 + step / 9, "mean_logit_relevant": 1.0,
         "mean_logit_irrelevant": -4.0} | ({"eval_dev_ndcg@10": step / 20} if step % 5 == 0 else {})
        for step in range(1, 20)
    ]  # fmt: skip
    jsonl(run / "log.jsonl", *steps)
    change = {"collection": f"<b>{HOSTILE}", "role": "dev", "model": "merged", "mean": -0.02, "low": -0.03,
              "high": -0.01, "queries": 9}  # fmt: skip
    points = [{"weight": weight, "scores": {change["collection"]: 0.5}} for weight in (0, 1)]
    config = {"pairs": str(actions.parent / "pairs.jsonl"), "seed": 0, "loss_options": {},
              "optimizer": {"global_batch_size": 8, "documents_per_query": 3, "num_train_epochs": 2}}  # fmt: skip
    results = {"merge": {"weight": 0.5, "points": points, "changes": [change]}, "best_step": 10}
    write_record(run, config=config, results=results)
    shutil.copytree(calibrated[0], run / "model")
    for name in ("below", "<img src=x onerror=alert(1)>"):
        shutil.copytree(graded, run / name)
    return run


@pytest.fixture(scope="module")
def page(folder, actions, calibrated, chromium):
    """One tab of a person, after a rubric was edited; nothing fails in its scripts, nothing is taken over."""
    words = ["--overlap", "1", "--judge", "http://127.0.0.1:9", "--collection", folder.parent / "actions",
             "--systems", "bm25", calibrated[0], "--held-out", actions.parent / "pairs.jsonl"]  # fmt: skip
    with running(folder, *map(str, words)) as server, tab(chromium, server, PERSON) as opened:
        opened.origin = server.origin
        opened.goto(f"{server.origin}/rubric")
        opened.get_by_label("System message").fill("Judge well.")
        opened.get_by_role("button", name="Save as a new version").click()
        opened.get_by_role("button", name="Keep").click()
        grade_pairs(load_pairs(folder / "pairs.parquet"), ScriptedJudge(), folder / "rubric-2", rubric="trec-dl-0-3")
        yield opened


def show(page, path):
    """Open a page and wait until what it loads in a thread is there."""
    page.goto(f"{page.origin}/{path}")
    loaded = "() => document.querySelector('h1') && !document.querySelector('meta[http-equiv=refresh]')"
    page.wait_for_function(loaded, timeout=60_000)  # a page that loads models is read again and again
    assert page.locator("h1").count() == 1 and page.locator(".message").count() == (path == REFUSED)


@needs_axe
@pytest.mark.parametrize("path", PATHS)
def test_page_has_no_fault_of_accessibility_and_fits_a_phone(page, path):
    show(page, path)
    page.evaluate("() => document.querySelectorAll('main details:not(.grading)').forEach(x => { x.open = true })")
    assert page.locator(".changes").count() == (path == "rubric")  # the grades that the edited rubric changed
    issues = []
    for name, size in WIDTHS.items():
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            issues += [(name, scheme, fault) for fault in faults(page)]
        assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth"), name
    assert not issues


@pytest.mark.parametrize("path", PATHS)
def test_hostile_texts_are_shown_as_text(page, path):
    show(page, path)
    assert page.title().endswith("· bixse")
    text = page.locator("main").inner_text()
    assert "\u202e" not in text and "\x1b" not in text
    foreign = "[...document.querySelectorAll('script, img, b, [onerror]')].filter(x => !x.src?.startsWith(origin))"
    assert page.evaluate(f"() => {foreign}.map(x => x.outerHTML)") == []
    assert page.evaluate("() => document.documentElement.outerHTML.length") < 250_000


# What Tab should reach: an element that can be pressed or written in, is shown, and is no part of a closed <details>.
STOPS = """() => [...document.querySelectorAll(
  'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]'
)].filter(x => !x.disabled && x.checkVisibility({visibilityProperty: true}) && (x.tagName == 'SUMMARY' ||
  !x.closest('details:not([open])') )).map(x => x.outerHTML.slice(0, 200))"""
HERE = """() => {
  const x = document.activeElement, style = getComputedStyle(x);
  return [x.outerHTML.slice(0, 200), x === document.body || style.outlineStyle !== 'none', x.className];
}"""


@pytest.mark.parametrize("path", PATHS)
def test_tab_reaches_all_controls_and_shows_the_focus(page, path):
    show(page, path)
    page.set_viewport_size(WIDTHS["desktop"])
    expected = page.evaluate(STOPS)
    page.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0) }")
    page.locator(".skip").focus()
    reached = [page.evaluate(HERE)]
    for _ in range(len(expected) + 5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(HERE))
        if reached[-1][0] == reached[0][0] or reached[-1][0].startswith("<body"):
            break
    assert [html for html in expected if html not in {stop[0] for stop in reached}] == []
    assert [html for html, is_seen, _ in reached if not is_seen] == []


def test_slider_changes_the_figures_and_the_command(page, folder):
    show(page, "compare?query=q20-0")
    page.get_by_role("link", name="0.5", exact=True).press("Enter")
    page.wait_for_url(lambda url: "p=" in url)
    shown = page.locator(".cuts").inner_text()
    page.locator("#p").press("End")
    page.wait_for_function("() => document.querySelector('.command code').innerText.includes('--export 0.999')")
    assert page.locator("#p-shown").inner_text() == "0.999" and page.locator(".cuts").inner_text() != shown
    assert "p=0.999" in page.url and "p=0.999" in page.get_by_label("Next query").get_attribute("href")


def test_hits_are_side_by_side_on_a_wide_screen_and_interleaved_on_a_phone(page):
    show(page, "compare?query=q20-0")
    tops = {}
    for name, size in WIDTHS.items():
        page.set_viewport_size(size)
        boxes = [[hit.bounding_box() for hit in page.locator(f".list-{side} .hit").all()[:3]] for side in (0, 1)]
        tops[name] = [[box["y"] for box in side] for side in boxes]
        assert (boxes[0][0]["x"] == boxes[1][0]["x"]) == (name == "phone")
    assert tops["desktop"][0] == tops["desktop"][1]
    first, second = tops["phone"]
    interleaved = [top for pair in zip(first, second, strict=True) for top in pair]
    assert interleaved == sorted(interleaved) and len(set(interleaved)) == 6


@pytest.mark.parametrize("path", ["overview", "label", "rubric", "compare"])
def test_header_is_low_on_a_phone_and_shows_the_page_that_is_open(page, path):
    page.set_viewport_size(WIDTHS["phone"])
    show(page, path)
    heights = [page.locator(part).bounding_box()["height"] for part in (".top", ".stay")]
    assert max(heights) <= 120, heights
    box = page.locator(".top [aria-current]").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= WIDTHS["phone"]["width"]


def test_training_page_follows_its_log_without_a_reload(page, folder):
    show(page, "training")
    assert "Step 19" in page.locator("#now").inner_text()
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "epoch": 2.0, "loss": 0.1}) + "\n")
    page.wait_for_function("() => document.querySelector('#now').innerText.includes('Step 20')", timeout=20_000)


def press(page, key):
    """Press a key that sends a form, and wait for what follows."""
    with page.expect_navigation():
        page.keyboard.press(key)


def answered(page):
    return int(re.search(r"([\d,]+) of", page.locator(".progress").inner_text())[1])


def test_twenty_pairs_by_keyboard_survive_a_reload_an_undo_and_a_kill(run, chromium):
    plan = ("--planned", "30", "--overlap", "0")
    with running(run, *plan) as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/label")
        for turn in range(8):
            press(page, str(turn % 4))
        page.reload()
        assert answered(page) == 8 and "Saved" not in page.content()
        press(page, "u")
        assert answered(page) == 7 and "Undone" in page.content()
        page.keyboard.press("e")
        page.keyboard.type("12 reasons, not grades")
        page.keyboard.press("Escape")
        press(page, "2")
        confirmed = len(events_of(run))
        assert confirmed == 10 and events_of(run)[-1]["explanation"] == "12 reasons, not grades"
        other = page.context.new_page()  # holds the same form, to be sent again to the next server
        other.goto(f"{server.origin}/label")
        hidden = "[data-open] input[name=event]"
        name = page.locator(hidden).first.input_value()
        other.locator(hidden).first.evaluate("(field, name) => { field.value = name }", name)
        page.keyboard.press("3", delay=0)
        server.kill()
        before = events_of(run)
        assert len(before) in (confirmed, confirmed + 1)
        with running(run, *plan, port=server.port):  # the browser still has its session
            press(other, "3")
            assert len(events_of(run)) == confirmed + 1 and events_of(run)[-1]["event"] == name
            while answered(other) < 20:
                press(other, "3")
    events = events_of(run)
    assert events[: len(before)] == before  # nothing that was on the disk is gone
    assert len({event["event"] for event in events}) == len(events)
    undone = {event.get("undoes") for event in events}
    labels = [(event["query_id"], event["document_id"]) for event in events
              if event["status"] == "graded" and event["event"] not in undone]  # fmt: skip
    assert len(labels) == 20
    assert set(labels) == set(read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades)


def test_keyboard_alone_leads_from_graded_pairs_to_a_checked_judge_and_a_kept_rubric(run, chromium):
    def reach(name):
        """Press Tab until the focus is on what has a name, as a person without a mouse does."""
        passed = []
        while name not in passed:
            page.keyboard.press("Tab")
            passed.append(page.evaluate("() => (x => x.labels?.[0]?.innerText || x.innerText)(document.activeElement)"))
            assert len(passed) < 150, passed

    def follow(name):
        reach(name)
        press(page, "Enter")

    with running(run, "--planned", "12") as server, tab(chromium, server, "") as page:
        follow("Label the next pair")
        assert page.evaluate("() => document.activeElement.id") == "person"
        page.keyboard.type("Ann")
        press(page, "Enter")
        for turn in range(12):
            press(page, str(turn % 4))
        assert "Everything is labelled" in page.locator("h1").inner_text()
        follow("See where judge and people differ")
        assert "The judge" in page.locator(".matrix").inner_text()
        reach("System message")
        page.keyboard.press("Control+A")
        page.keyboard.type("Judge strictly. Answer with 0, 1, 2 or 3.")
        follow("Save as a new version")
        follow("Keep")
        assert "keep" in page.locator(".stay .messages").inner_text() and (run / "rubric-2.toml").is_file()
        follow("Home")
        assert "The judge" in page.locator(".lead").inner_text()


def test_keys_move_between_the_documents_of_a_query(tmp_path, chromium):
    run = graded_folder(tmp_path / "run", queries=2, documents=5)
    with running(run, "--planned", "10") as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/label")
        cards = [card.get_attribute("id") for card in page.locator("[data-card]").all()]
        focused = "() => document.activeElement.id"
        assert len(cards) == 5 and page.evaluate(focused) == cards[0]  # the first is ready for its grade
        for key in "jjk":
            page.keyboard.press(key)
        assert page.evaluate(focused) == cards[1]
        press(page, "c")
        assert events_of(run)[0]["status"] == "cannot-tell"
        answer = page.locator(f"#{cards[1]} .yours").inner_text()
        assert "cannot tell" in answer and "the judge" not in answer
        assert page.evaluate(focused) == cards[0]


@pytest.mark.parametrize("size", [(1366, 768), (390, 844)])
def test_a_key_grades_no_card_that_is_out_of_sight(tmp_path, chromium, size):
    text = ("document {1} of query {0}. " + "It goes on and on. " * 40).format
    run = graded_folder(tmp_path / "run", queries=2, documents=5, texts=text)
    viewport = {"width": size[0], "height": size[1]}
    with running(run, "--planned", "10") as server, tab(chromium, server, "Ann", viewport=viewport) as page:
        page.goto(f"{server.origin}/label")
        first = page.locator("[data-card]").first
        in_sight = "() => { const y = document.querySelector('[data-card]').getBoundingClientRect().y; " \
                   "return y >= 0 && y < innerHeight }"  # fmt: skip
        for share in (0.6, 1):
            page.evaluate("(share) => scrollTo(0, share * document.body.scrollHeight)", share)
            assert not page.evaluate(in_sight)
            page.keyboard.press("3")
            page.wait_for_function(in_sight)
            assert not events_of(run)  # the card comes back, and waits for its grade
        press(page, "2")
        (event,) = events_of(run)
        assert event["grade"] == 2.0 and event["document_id"] in first.inner_text()
        page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        for words in (".query", ".progress", ".messages"):
            box = page.locator(words).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] < size[1] / 2
        assert "Saved: 2" in page.locator(".messages").inner_text()


def test_result_of_a_trial_comes_up_by_itself_and_a_new_edit_stays(tmp_path, server, chromium):
    shares = [[0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0], [0, 0.1, 0.8, 0.1], [0, 0, 0.1, 0.9]]
    run = graded_folder(tmp_path / "run", queries=4, texts=lambda q, d: planted(f"{q}-{d}", shares[(d + q) % 4]))
    row = {"person": "Ann", "time": "2026-01-01T00:00:00Z", "status": "graded"}
    ids = [{"event": f"e{q}-{d}", "query_id": f"q{q}", "document_id": f"d{q}-{d}"} for q in range(4) for d in range(4)]
    jsonl(run / "labels.jsonl", *({**row, **pair, "grade": 1} for pair in ids))
    with running(run, "--judge", server.scenario()) as ui, tab(chromium, ui, "Ann") as page:
        page.goto(f"{ui.origin}/rubric")
        page.get_by_label("System message").fill("Judge well.")
        page.get_by_role("button", name="Save as a new version").click()
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("#trial")
        page.get_by_label("System message").fill("The next edit")
        page.wait_for_selector(".changes li", timeout=120_000)
        assert page.locator(".changes li").count() == 12  # the grades of the queries 1 to 3
        assert page.get_by_label("System message").input_value() == "The next edit"
