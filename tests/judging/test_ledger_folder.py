"""A ledger that is a folder: real processes that share it, killed ones, damage, and what is done with whole ledgers."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import fsspec
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError, StorageError
from bixse.judging.grade import grade
from bixse.judging.judge import Answer, Usage
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers import segment_answers
from bixse.judging.ledgers.ledger_files import answers_by_status, check_ledgers, merge_ledgers
from bixse.judging.ledgers.segment_answers import seal_left
from bixse.judging.ledgers.segments import StoredRow, seal
from helpers.command import call, refused
from helpers.scripted_judge import ScriptedJudge, some_pairs

WRITER = """
import sys, time
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
with Ledger(sys.argv[1]) as ledger:
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        ledger.write(f"key {number}", Answer("graded", "verbal", grade=float(number)))
    print("written", flush=True)
    time.sleep(float(sys.argv[4]))
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ledger"
    path.mkdir()
    return path


def writer(folder, first, end, seconds=0.0):
    """A process that has written the answers to some keys and holds the ledger open."""
    words = [sys.executable, "-c", WRITER, str(folder), str(first), str(end), str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "written\n"
    return process


def killed(folder, first, end):
    process = writer(folder, first, end, 60)
    process.send_signal(signal.SIGKILL)
    process.wait()


def graded(number):
    return Answer("graded", "verbal", grade=float(number))


def grades(folder, numbers):
    """Number -> grade that the ledger has."""
    with Ledger(folder) as ledger:
        ledger.load([f"key {number}" for number in numbers])
        found = {number: ledger.find(f"key {number}") for number in numbers}
    return {number: answer.grade for number, answer in found.items() if answer is not None}


def names(folder):
    return sorted(path.suffix for path in folder.iterdir() if not path.name.startswith("."))


# --- what is refused


def test_a_folder_of_something_else_is_refused_and_left_alone(folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt.*fix"):
        Ledger(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("content", "said"), [('{"bixse_ledger": 99, "id": "x"}', "format 99"), ("{", "damaged")])
def test_a_ledger_of_a_later_version_or_a_damaged_one(folder, content, said):
    (folder / "ledger.json").write_text(content)
    with pytest.raises(InputError, match=f"{said}.*fix"):
        Ledger(folder)


def damaged(folder, sealed):
    """The segment of a process that wrote 50 answers."""
    killed(folder, 0, 50)
    if sealed:
        seal_left(folder)
    (segment,) = folder.glob("segment-*")
    content = bytearray(segment.read_bytes())
    place = 200 if sealed else content.index(b"\n", len(content) // 2) + 1
    content[place : place + 3] = b"\0\0\0"
    segment.write_bytes(content)
    return segment


@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_segment_is_named_not_passed_over(folder, sealed):
    segment = damaged(folder, sealed)
    with pytest.raises(InputError, match=f"{segment.name}.*fix"):
        grades(folder, range(50))
    assert segment.name in check_ledgers([folder]).unreadable[0]


def test_what_to_do_about_a_damaged_segment_is_the_same_for_open_and_sealed_ones(folder, tmp_path):
    advice = []
    for sealed in (False, True):
        segment = damaged(folder, sealed)
        for read in (lambda: grades(folder, range(50)), lambda: merge_ledgers([folder], tmp_path / "all")):
            with pytest.raises(InputError, match=segment.name) as raised:
                read()
            advice.append(str(raised.value).split("fix: ")[1])
        segment.unlink()
    assert len(set(advice)) == 1, advice


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def changed(path):
    content = bytearray(path.read_bytes())
    content[11] ^= 4
    path.write_bytes(content)


def of_another(path):
    """As beside a copy of a longer segment that was put back."""
    path.write_bytes((900).to_bytes(8, "little") + (2**64 - 900).to_bytes(8, "little"))


def unreadable(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage", [Path.unlink, cut, changed, of_another, lambda path: path.write_bytes(b""), unreadable]
)
def test_damaged_numbers_of_keys_hide_no_answer(folder, damage):
    killed(folder, 0, 50)
    seal_left(folder)
    assert grades(folder, [3]) == {3: 3.0}
    (path,) = folder.glob(".*.keys")
    whole = path.read_bytes()
    damage(path)
    assert grades(folder, range(40, 60)) == {number: float(number) for number in range(40, 50)}
    assert path.is_dir() or path.read_bytes() == whole


def test_segments_without_a_wanted_answer_are_not_read(folder, monkeypatch):
    for first in range(0, 60, 10):
        killed(folder, first, first + 10)
        seal_left(folder)
    assert grades(folder, [100]) == {}, "the first look numbers the keys"
    read, sealed = [], segment_answers.sealed_rows
    monkeypatch.setattr(segment_answers, "sealed_rows", lambda *given: read.append(given) or sealed(*given))
    assert grades(folder, range(100, 10_000)) == {}
    assert read == []
    assert grades(folder, [5, 25, 26, 77]) == {5: 5.0, 25: 25.0, 26: 26.0}
    assert sorted(keys for _, keys in read) == [["key 25", "key 26"], ["key 5"]]
    merge_ledgers([folder])
    assert [path.name for path in folder.glob(".*.keys")] == []
    assert grades(folder, [5, 25, 77]) == {5: 5.0, 25: 25.0}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_segment_of_another_version(folder, sealed):
    Ledger(folder).close()
    if sealed:
        path = folder / "segment-new.parquet"
        seal([StoredRow("key 1", "", "", "", 0, "graded", "verbal", graded(1).to_json(), 1.0)], path)
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({"bixse_ledger": "2"}), path)
    else:
        (folder / "segment-new.jsonl").write_text('{"bixse_ledger": 2, "owner": "a/1/2"}\n')
    with pytest.raises(InputError, match=r"format 2.*fix"):
        grades(folder, [1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_told_before_anything_is_paid_for(folder):
    Ledger(folder).close()
    folder.chmod(0o555)
    judge = ScriptedJudge()
    with pytest.raises(StorageError, match="fix"):
        grade(some_pairs(3), judge, folder.parent / "out", ledger=folder)
    assert judge.asked == []


def test_a_segment_that_cannot_be_made_is_told_before_anything_is_paid_for(folder, monkeypatch):
    def full(path, *given, **named):
        if path.suffix == ".jsonl":
            raise OSError(28, "No space left on device")
        return opened(path, *given, **named)

    opened, judge = Path.open, ScriptedJudge()
    Ledger(folder).close()
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="free disk space"):
        grade(some_pairs(3), judge, folder.parent / "out", ledger=folder)
    assert judge.asked == []


# --- answers


def test_folders_that_exchange_sealed_segments_through_an_object_store_know_each_others_answers(tmp_path):
    store = fsspec.filesystem("memory")
    folders = [tmp_path / name for name in ("here", "there")]
    for place, folder in enumerate(folders):
        folder.mkdir()
        if place:
            store.get("/ledger/ledger.json", str(folder / "ledger.json"))
        killed(folder, 10 * place, 10 * place + 10)
        seal_left(folder)
        store.put([str(path) for path in folder.glob("[!.]*")], "/ledger/")
    for folder in folders:
        store.get("/ledger/*", str(folder))
        assert grades(folder, range(20)) == {number: float(number) for number in range(20)}
    merge_ledgers([folders[0]])
    store.get("/ledger/*", str(folders[0]))  # what was merged comes back, and is there twice
    assert grades(folders[0], range(20)) == grades(folders[1], range(20))
    assert merge_ledgers([folders[0]])[1] == 20


def test_answers_of_other_processes_at_work_killed_and_done(folder):
    killed(folder, 0, 10)
    writer(folder, 10, 20).wait()
    living = writer(folder, 20, 30, 60)
    try:
        assert names(folder) == [".json", ".jsonl", ".jsonl", ".parquet"]
        assert grades(folder, range(40)) == {number: float(number) for number in range(30)}
        assert len(seal_left(folder)) == 1, "that of the living one"
        assert names(folder) == [".json", ".jsonl", ".parquet", ".parquet"]
        assert grades(folder, range(40)) == {number: float(number) for number in range(30)}
    finally:
        living.kill()
        living.wait()


@pytest.mark.parametrize("cut", [1, 40, "all but the first line", "all"])
def test_a_line_that_a_killed_process_did_not_end_is_none(folder, cut):
    killed(folder, 0, 3)
    (segment,) = folder.glob("segment-*")
    content = segment.read_bytes()
    if isinstance(cut, str):
        cut = len(content) - (content.index(b"\n") - 5 if cut == "all but the first line" else 0)
    segment.write_bytes(content[:-cut])
    left = {0: 0.0, 1: 1.0} if cut <= 40 else {}
    assert grades(folder, range(3)) == left
    assert check_ledgers([folder]).unreadable == []
    assert seal_left(folder) == []
    assert grades(folder, range(3)) == left


def test_of_several_answers_a_usable_one_stands_then_the_latest(folder):
    answers = [graded(1), Answer("truncated", "verbal"), graded(2), Answer("failed", "verbal")]
    for place, answer in enumerate(answers):
        with Ledger(folder) as ledger:
            ledger.write("key 0", answer)
        assert grades(folder, [0])[0] == (1.0 if place < 2 else 2.0)
    assert names(folder).count(".parquet") == 4


def test_only_what_is_asked_for_is_in_memory(folder):
    rows = [StoredRow(f"key {n}", "", "", "", 0, "graded", "verbal", graded(n).to_json(), 1.0) for n in range(40_000)]
    Ledger(folder).close()
    seal(rows, folder / "segment-0.parquet")
    with Ledger(folder) as ledger:
        ledger.load(["key 7", "key 39999", "key of nothing"])
        assert len(ledger.store._known) == 2
        assert (ledger.find("key 7").grade, ledger.find("key of nothing")) == (7.0, None)
        assert ledger.find("key 8").grade == 8.0, "found by itself where nobody told before"
    assert answers_by_status(folder) == {"graded": 40_000}


def test_a_segment_that_is_sealed_or_merged_while_it_is_read_is_read_under_its_new_name(folder, monkeypatch):
    from bixse.judging.ledgers import segment_answers

    killed(folder, 0, 10)
    found, listed = segment_answers.segments_of, []

    def then_sealed(path):
        segments = found(path)
        if not listed:
            seal_left(path)
        listed.append(segments)
        return segments

    monkeypatch.setattr(segment_answers, "segments_of", then_sealed)
    assert grades(folder, range(10)) == {number: float(number) for number in range(10)}
    assert len(listed) == 3


def test_grading_goes_on_where_a_killed_process_stopped(folder, tmp_path):
    pairs, judge = some_pairs(30), ScriptedJudge()
    grade(pairs[:20], judge, tmp_path / "first", ledger=folder)
    again = ScriptedJudge()
    found = grade(pairs, again, tmp_path / "second", ledger=folder)
    assert (len(judge.asked), len(again.asked), found.summary["reused"]) == (20, 10, 20)
    alone = grade(pairs, ScriptedJudge(), tmp_path / "alone")
    assert (tmp_path / "second" / "pairs.parquet").read_bytes() == Path(alone.artifacts["pairs"]).read_bytes()


# --- whole ledgers


@pytest.fixture
def both(folder, tmp_path):
    """A folder with four answers to three questions, and an SQLite file with three to two."""
    usage = Usage(prompt=1000, cached=400, completion=10)
    with Ledger(folder) as ledger:
        ledger.write("key 0", Answer("failed", "verbal", judge="one"), "q", "d0")
        ledger.write("key 0", Answer("graded", "verbal", grade=2.0, usage=usage, judge="one"), "q", "d0")
        ledger.write("key 1", Answer("graded", "verbal", (0.25, 0.75), grade=0.75, usage=usage, judge="one"), "q", "d1")
        ledger.write("key 2", Answer("refused", "verbal", judge="two", text='no, "never"\n'), "q", "d2")
    file = tmp_path / "old.sqlite"
    with Ledger(file) as ledger:
        ledger.write("key 2", Answer("truncated", "verbal", judge="two"), "q", "d2")
        ledger.write("key 2", Answer("graded", "verbal", grade=1.0, usage=usage, judge="two"), "q", "d2")
        ledger.write("key 3", Answer("graded", "verbal", grade=3.0, usage=usage, judge="two"), "q", "d3")
    return folder, file


def test_the_documented_queries_read_a_merged_ledger(both, tmp_path):
    merge_ledgers(both, tmp_path / "all")
    text = (Path(__file__).parents[2] / "docs" / "grading.md").read_text()
    text = text.replace("all-answers/", f"{tmp_path}/all/").replace("answers.csv", f"{tmp_path}/answers.csv")
    by_status, dollars, standing = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    with duckdb.connect() as database:
        assert database.execute(by_status).fetchall() == [
            ("one", "failed", 1, 0, 0), ("one", "graded", 2, 2000, 20),
            ("two", "graded", 2, 2000, 20), ("two", "refused", 1, 0, 0), ("two", "truncated", 1, 0, 0),
        ]  # fmt: skip
        assert dict(database.execute(dollars).fetchall()) == {
            "one": pytest.approx(208e-6),
            "two": pytest.approx(208e-6),
        }
        database.execute(standing)
        found = database.execute(f"SELECT document_id, status, grade FROM '{tmp_path}/answers.csv'").fetchall()
    assert found == [("d0", "graded", 2.0), ("d1", "graded", 0.75), ("d2", "graded", 1.0), ("d3", "graded", 3.0)]


def test_merging_loses_nothing_and_does_nothing_twice(both, tmp_path):
    folder, file = both
    killed(folder, 5, 8)
    target = tmp_path / "all"
    assert merge_ledgers(both, target) == (target, 10)
    assert merge_ledgers([file, target], target) == (target, 10)
    assert names(target) == [".json", ".parquet"]
    assert answers_by_status(target) == {"graded": 7, "failed": 1, "refused": 1, "truncated": 1}
    with Ledger(target) as ledger:
        assert [ledger.find(f"key {n}").grade for n in (0, 1, 2, 3, 7)] == [2.0, 0.75, 1.0, 3.0, 7.0]
    assert merge_ledgers([folder]) == (folder, 7)
    assert names(folder) == [".json", ".parquet"]
    assert grades(folder, range(8)) == {0: 2.0, 1: 0.75, 2: None, 5: 5.0, 6: 6.0, 7: 7.0}


def test_check_tells_questions_with_two_grades(both):
    folder, _ = both
    assert check_ledgers(both).conflicting == 0
    with Ledger(folder) as ledger:
        ledger.write("key 1", Answer("graded", "verbal", grade=0.8))
    found = check_ledgers(both)
    assert (found.conflicting, list(found.conflicts), found.unreadable) == (1, ["key 1"], [])


def test_the_verb(capsys, both, tmp_path):
    folder, file = both
    merged = call(capsys, "grade", "ledger", "merge", folder, file, "--to", tmp_path / "all")[1]
    assert merged["metrics"]["answers"] == 7
    assert call(capsys, "grade", "ledger", "check", tmp_path / "all")[0] == 0
    (segment,) = (tmp_path / "all").glob("*.parquet")
    segment.write_bytes(segment.read_bytes()[:-20])
    code, found = call(capsys, "grade", "ledger", "check", tmp_path / "all")
    assert (code, found["metrics"]["unreadable"]) == (1, 1)
    assert segment.name in refused(capsys, "grade", "ledger", "merge", tmp_path / "all")
    for words in (["merge", folder, file], ["check", folder, "--to", "x"], ["merge", file]):
        refused(capsys, "grade", "ledger", *words)
    assert "no ledger" in refused(capsys, "grade", "ledger", "merge", __file__, "--to", tmp_path / "new")
    refused(capsys, "grade", "ledger", "check", tmp_path / "nothing")
    refused(capsys, "grade", "ledger", "burn", folder)
