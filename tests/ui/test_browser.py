"""Labelling in Chromium, against the server as it is started: keys, kill -9, scrolling, progress."""

import json
import re

import pytest

from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from helpers.ui_browser import needs_chromium, running, tab
from helpers.ui_server import events_of, graded_folder

pytestmark = [pytest.mark.slow, needs_chromium]


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


def test_trial_shows_its_progress_without_a_reload(run, chromium):
    row = {"person": "Ann", "time": "2026-01-01T00:00:00Z", "status": "graded", "document_id": "d0-0", "grade": 1}
    rows = [{**row, "event": f"e{q}", "query_id": f"q{q}", "document_id": f"d{q}-0"} for q in range(2)]
    (run / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with running(run, "--judge", "http://127.0.0.1:9") as server, tab(chromium, server, "Ann") as page:
        page.goto(f"{server.origin}/rubric")
        page.get_by_role("button", name="Save as a new version").click()
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("#trial .message", timeout=120_000)
        assert "127.0.0.1:9" in page.locator("#trial").inner_text()
