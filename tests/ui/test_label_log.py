"""The file of labels: damage first, then which labels count, and that the audit reads the same."""

import multiprocessing
import os
from itertools import count

import pytest

from bixse.errors import InvalidFileError, StorageError
from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from bixse.ui.label_log import LabelEvent, open_labels

SCALE = GradeScale(0, 3)
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
    for damaged in (first[:30], first.replace('"grade": 2.0, ', ""), "[]"):
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


def test_event_that_is_sent_twice_is_written_once(path):
    for is_new in (True, False):
        with open_labels(path) as labels:
            assert labels.add(event("ann", "a", 2.0, name="same")) == is_new
            assert not labels.add(event("ann", "a", 3.0, name="same"))
            assert labels.grades() == {("q", "a"): 2.0}


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


def test_audit_counts_pairs_without_a_label(path):
    write(path, event("ann", "a", 2.0), event("ann", "b"), event("bob", "c", status="skipped"), event("ann", "d", 0.0))
    assert read_labels(path, SCALE).statuses == {"graded": 2, "cannot-tell": 1, "skipped": 1}


def _write_until_killed(path, started):
    with open_labels(path) as labels:
        for number in count():
            labels.add(event("ann", f"d{number}", 1.0, name=f"e{number}", explanation="x" * 2000))
            started.set()


def test_killed_process_leaves_complete_lines(path):
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_write_until_killed, args=(path, started))
    process.start()
    assert started.wait(20)
    process.join(0.2)
    process.kill()
    process.join()
    with open_labels(path) as labels:
        names = [event.event for event in labels.events]
    assert names == [f"e{number}" for number in range(len(names))] and names
