"""The file of labels: damage first, then what of it stands, and that the audit reads the same."""

import json
import multiprocessing
import os

import pytest

from bixse.errors import InputError, InvalidFileError, OutputExistsError, StorageError
from bixse.judging.audit.labels import read_labels
from bixse.relevance import GradeScale
from bixse.ui.label_log import LabelEvent, open_labels

NUMBERS = iter(range(10_000))


def event(person, document, grade=None, status=None, name=None, **more):
    status = status or ("graded" if grade is not None else "cannot-tell")
    return LabelEvent(name or f"e{next(NUMBERS)}", person, "q", document, status, grade, **more)


def written(path, events):
    with open_labels(path) as labels:
        assert all(labels.add(one) for one in events)
    return path


def test_a_torn_last_line_is_set_apart_and_the_rest_stands(tmp_path):
    path = written(tmp_path / "labels.jsonl", [event("ann", "a", 2.0)])
    torn = json.dumps({"event": "x", "person": "ann"})[:20]
    with path.open("a") as file:
        file.write(torn)
    written(path, [event("ann", "b", 1.0)])
    assert read_labels(path, GradeScale(0, 3)).grades == {("q", "a"): 2.0, ("q", "b"): 1.0}
    assert (tmp_path / "labels.jsonl.torn").read_text().strip() == torn


def test_a_line_without_its_end_that_is_whole_is_kept(tmp_path):
    path = written(tmp_path / "labels.jsonl", [event("ann", "a", 2.0)])
    path.write_text(path.read_text().rstrip("\n"))
    written(path, [event("ann", "b", 1.0)])
    assert len(read_labels(path, GradeScale(0, 3)).grades) == 2


def test_a_damaged_line_in_the_middle_is_refused_and_nothing_is_touched(tmp_path):
    path = written(tmp_path / "labels.jsonl", [event("ann", "a", 2.0), event("ann", "b", 2.0)])
    lines = path.read_text().splitlines()
    for damaged in ([lines[0][:30], lines[1]], [lines[0].replace('"grade": 2.0, ', ""), lines[1]], ["[]", lines[1]]):
        path.write_text("\n".join(damaged) + "\n")
        before = path.read_bytes()
        with pytest.raises(InvalidFileError), open_labels(path):
            pass
        assert path.read_bytes() == before


def test_only_one_process_writes(tmp_path):
    with (
        open_labels(tmp_path / "labels.jsonl"),
        pytest.raises(OutputExistsError),
        open_labels(tmp_path / "labels.jsonl"),
    ):
        pass


def test_other_names_are_refused(tmp_path):
    with pytest.raises(InputError), open_labels(tmp_path / "labels.csv"):
        pass


def test_an_event_that_could_not_be_written_does_not_count(tmp_path, monkeypatch):
    path = tmp_path / "labels.jsonl"
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
    assert len(read_labels(path, GradeScale(0, 3)).grades) == 2


def test_an_event_sent_twice_is_written_once(tmp_path):
    path = tmp_path / "labels.jsonl"
    with open_labels(path) as labels:
        assert labels.add(event("ann", "a", 2.0, name="same"))
        assert not labels.add(event("ann", "a", 3.0, name="same"))
    with open_labels(path) as labels:
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


@pytest.mark.parametrize("said", CASES)
def test_what_stands(tmp_path, said):
    steps, expected = CASES[said]
    events = [event("ann", "other", 0.0), event("ann", "another", 3.0)]
    own = []
    for person, word in steps:
        kind, _, value = word.partition(" ") if isinstance(word, str) else ("", "", "")
        if kind == "undo":
            own.append(event(person, "a", status="undone", undoes=own[int(value)].event))
        elif kind == "final":
            own.append(event(person, "a", float(value), "final"))
        else:
            own.append(event(person, "a", status=kind) if kind else event(person, "a", word))
    path = written(tmp_path / "labels.jsonl", events + own)
    read = read_labels(path, GradeScale(0, 3))
    assert read.grades.get(("q", "a")) == expected
    with open_labels(path) as labels:
        assert labels.grades() == read.grades  # from the file, as event by event


def test_the_audit_counts_pairs_without_a_label(tmp_path):
    events = [event("ann", "a", 2.0), event("ann", "b"), event("bob", "c", status="skipped"), event("ann", "d", 0.0)]
    labels = read_labels(written(tmp_path / "labels.jsonl", events), GradeScale(0, 3))
    assert labels.statuses == {"graded": 2, "cannot-tell": 1, "skipped": 1}


def _write_until_killed(path, started):
    with open_labels(path) as labels:
        number = 0
        while True:
            labels.add(event("ann", f"d{number}", 1.0, name=f"e{number}", explanation="x" * 2000))
            started.set()
            number += 1


def test_a_killed_process_leaves_whole_lines(tmp_path):
    context = multiprocessing.get_context("fork")
    path, started = tmp_path / "labels.jsonl", context.Event()
    process = context.Process(target=_write_until_killed, args=(path, started))
    process.start()
    assert started.wait(20)
    process.join(0.2)
    process.kill()
    process.join()
    with open_labels(path) as labels:
        names = [one.event for one in labels.events]
    assert names == [f"e{number}" for number in range(len(names))] and names
