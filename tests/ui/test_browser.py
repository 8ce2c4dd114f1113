"""Labelling in Chromium, against the server as it is started: keys, kill -9, two browsers, no scripts."""

import json
import re
import signal

import pytest

from bixse.files.parquet import read_table
from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from helpers.llama_server import llama_server, missing
from helpers.ui_browser import needs_chromium, running, tab
from helpers.ui_server import events_of, graded_folder

pytestmark = [pytest.mark.slow, needs_chromium]


def press(page, key):
    """Press a key that sends a form, and wait for what follows."""
    with page.expect_navigation():
        page.keyboard.press(key)


def answered(page):
    return int(re.search(r"([\d,]+) of", page.locator(".progress").inner_text())[1])


def test_twenty_pairs_by_keyboard_with_a_reload_an_undo_and_a_kill(run, chromium):
    confirmed = 0
    with running(run, "--planned", "30", "--overlap", "0") as server, tab(chromium, server, "Ann") as page:
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
        assert answered(page) == 8
        confirmed = len(events_of(run))
        assert confirmed == 10 and events_of(run)[-1]["explanation"] == "12 reasons, not grades"
        other = page.context.new_page()  # holds the same form, to be sent again to the next server
        other.goto(f"{server.origin}/label")
        hidden = "[data-open] input[name=event]"
        name = page.locator(hidden).first.input_value()
        other.locator(hidden).first.evaluate("(field, name) => { field.value = name }", name)
        page.keyboard.press("3", delay=0)
        server.process.send_signal(signal.SIGKILL)
        server.kill()
        kept = events_of(run)
        assert len(kept) in (confirmed, confirmed + 1)
        with running(run, "--planned", "30", "--overlap", "0", port=server.port):  # the browser is still let in
            press(other, "3")
            assert len(events_of(run)) == confirmed + 1 and events_of(run)[-1]["event"] == name
            before = answered(other)
            while answered(other) < 20:
                press(other, "3")
            assert answered(other) == 20 > before
    events = events_of(run)
    assert events[: len(kept)] == kept  # nothing that was on the disk is gone
    names = [event["event"] for event in events]
    assert len(set(names)) == len(names)
    undone = {event.get("undoes") for event in events}
    labels = [(event["query_id"], event["document_id"]) for event in events
              if event["status"] == "graded" and event["event"] not in undone]  # fmt: skip
    assert len(labels) == 20
    assert set(labels) == set(read_labels(run / "labels.jsonl", GradeScale(0, 3)).grades)


def test_two_browsers_at_once(run, chromium):
    with running(run, "--planned", "40", "--overlap", "0.2") as server, tab(chromium, server, "Ann") as ann:
        ann.get_by_role("button", name="One more browser").click()
        invited = re.search(r"http://\S+token=[\w-]+", ann.locator(".said").inner_text())[0]
        context = chromium.new_context()
        bob = context.new_page()
        bob.goto(f"{invited}&person=Bob")
        bob.wait_for_url(f"{server.origin}/overview")
        for page in (ann, bob):
            page.goto(f"{server.origin}/label")
        for turn in range(12):
            for page in (ann, bob):  # sent before the other's answer is there
                page.evaluate("key => document.querySelector(`[data-open] [data-key='${key}']`).click()", turn % 4)
            for page in (ann, bob):
                page.wait_for_load_state("load")
                page.wait_for_function(f"() => document.body.innerText.includes('{turn + 1} of 40')")
        context.close()
    people = {}
    for event in events_of(run):
        people.setdefault((event["query_id"], event["document_id"]), []).append(event["person"])
    assert sum(map(len, people.values())) == 24
    assert all(len(names) == len(set(names)) for names in people.values())


def test_keys_move_between_the_documents_of_a_query(tmp_path, chromium):
    run = graded_folder(tmp_path / "run", queries=2, documents=5)
    with running(run, "--planned", "10") as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/label")
        cards = [card.get_attribute("id") for card in page.locator("[data-card]").all()]
        assert len(cards) == 5

        def focused():
            return page.evaluate("() => document.activeElement.id")

        assert focused() == cards[0]  # the first is ready for its grade
        for key in "jjk":
            page.keyboard.press(key)
        assert focused() == cards[1]
        press(page, "c")
        assert events_of(run)[0]["status"] == "cannot-tell"
        said = page.locator(f"#{cards[1]} .own").inner_text()
        assert "cannot tell" in said and "the judge" not in said
        assert focused() == cards[0]


@pytest.mark.parametrize("size", [(1366, 768), (390, 844)])
def test_a_key_grades_no_card_that_is_out_of_sight(tmp_path, chromium, size):
    text = ("document {1} of query {0}. " + "It goes on and on. " * 40).format
    run = graded_folder(tmp_path / "run", queries=2, documents=5, texts=text)
    viewport = {"width": size[0], "height": size[1]}
    with running(run, "--planned", "10") as server, tab(chromium, server, "Ann", viewport=viewport) as page:
        page.goto(f"{server.origin}/label")
        first = page.locator("[data-card]").first

        def sees(card):
            return 0 <= card.bounding_box()["y"] < size[1]

        in_sight = "() => { const y = document.querySelector('[data-card]').getBoundingClientRect().y; " \
                   "return y >= 0 && y < innerHeight }"  # fmt: skip
        for share in (0.6, 1):
            page.evaluate("(share) => scrollTo(0, share * document.body.scrollHeight)", share)
            assert not sees(first)
            page.keyboard.press("3")
            page.wait_for_function(in_sight)
            assert not events_of(run)  # the card comes back, and waits for its grade
        press(page, "2")
        (event,) = events_of(run)
        assert event["grade"] == 2.0 and event["document_id"] in first.inner_text()
        page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        for words in (".query", ".progress", ".said"):
            box = page.locator(words).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] < size[1] / 2
        assert "Saved: 2" in page.locator(".said").inner_text()


def test_it_works_without_scripts(run, chromium):
    with running(run) as server, tab(chromium, server, "Ann", java_script_enabled=False) as page:
        page.goto(f"{server.origin}/label")
        for _ in range(4):  # the documents of the first query
            page.locator("[data-open] button", has_text="2").first.click()
        assert "Saved: 2" in page.content() and page.locator(".done li", has_text="the judge").count() == 4
        page.goto(f"{server.origin}/disagreements")
        page.locator(".counts a").first.click()
        assert "human=2" in page.url


def label_four_queries(run):
    """Two documents each, one of them relevant."""
    row = {"person": "Ann", "time": "2026-01-01T00:00:00Z", "status": "graded"}
    rows = [
        {**row, "event": f"e{q}-{d}", "query_id": f"q{q}", "document_id": f"d{q}-{d}", "grade": d}
        for q in range(4)
        for d in (0, 3)
    ]
    (run / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_trial_tells_how_far_it_is_without_a_reload(run, chromium):
    label_four_queries(run)
    judge = ("--judge", "http://127.0.0.1:9")
    with running(run, *judge) as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/rubric")
        page.get_by_role("button", name="Save as a new version").click()
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("#trial .message", timeout=120_000)
        assert "127.0.0.1:9" in page.locator("#trial").inner_text()


@pytest.mark.skipif(bool(missing()), reason=missing() or "can run")
def test_a_rubric_edited_beside_the_disagreements_is_tried_on_a_real_server(run, chromium):
    label_four_queries(run)
    with llama_server() as judge, running(run, "--judge", judge) as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/disagreements")
        instruction = page.locator("textarea[name=system-0]")
        instruction.fill(f"{instruction.input_value()} Be strict.")
        page.get_by_role("button", name="Save as a new version").click()
        page.get_by_role("button", name="Try it").click()
        ended = "#trial .message, #trial a[href*='tried=']"
        page.wait_for_selector(ended, timeout=600_000)  # a model on processors that others use too
        page.get_by_role("link", name="Show what changed").click()
        assert "weighted kappa before, on 8 pairs" in page.locator("#version-2").inner_text()
        page.get_by_role("button", name="Keep").click()
        page.goto(f"{server.origin}/disagreements")
        assert page.locator("textarea[name=system-0]").input_value().endswith("Be strict.")
    rows = read_table(run / "rubric-2" / "judgements.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["graded"] * 8
    assert all(row["judge"].startswith("SmolLM2-135M-Instruct") for row in rows)
