"""The files of a ledger: damaged ones, killed writers, keys of any characters, the documented queries."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError, StorageError
from bixse.judging.judge import Answer, Usage
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers import segments as module
from bixse.judging.ledgers.segments import StoredRow, answers_by_status, seal
from bixse.judging.ledgers.writers import seal_left
from helpers.scripted_judge import ScriptedJudge, some_pairs
from helpers.scripted_judge import graded as grade

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


def test_a_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt: got a file.*fix"):
        Ledger(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


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
def test_a_damaged_segment_is_named_and_its_answers_are_not_passed_over(folder, sealed):
    segment = damaged(folder, sealed)
    for read in (lambda: grades(folder, range(50)), lambda: answers_by_status(folder)):
        with pytest.raises(InputError, match=f"{segment.name}.*{'hash' if sealed else 'line 2[0-9]'}.*fix: put back"):
            read()
    killed(folder, 50, 51)
    assert segment in [*seal_left(folder), *folder.glob("*.parquet"), *folder.glob("*.jsonl")], "it stays as it is"
    segment.unlink()
    assert grades(folder, range(60)) == {50: 50.0}


@pytest.mark.parametrize("change", [0, 11, -40, -1, "cut"])
def test_any_changed_byte_of_a_sealed_segment_is_found(folder, change):
    killed(folder, 0, 5)
    seal_left(folder)
    (segment,) = folder.glob("*.parquet")
    content = bytearray(segment.read_bytes())
    if change == "cut":
        del content[-20:]
    else:
        content[change] ^= 4
    segment.write_bytes(content)
    with pytest.raises(InputError, match=segment.name):
        grades(folder, [100])


def test_foreign_files_of_the_suffixes_are_refused(folder):
    killed(folder, 0, 5)
    pq.write_table(pa.table({"key": ["key 1"]}), folder / "notes.parquet")
    with pytest.raises(InputError, match=r"notes\.parquet.*fix"):
        grades(folder, [1])
    (folder / "notes.parquet").unlink()
    (folder / "notes.jsonl").write_text('{"key": "key 1"}\n')
    with pytest.raises(InputError, match=r"notes\.jsonl.*first line.*fix"):
        grades(folder, [1])


@pytest.mark.parametrize("sealed", [False, True])
def test_a_segment_of_another_version(folder, sealed, monkeypatch):
    Ledger(folder).close()
    if sealed:
        monkeypatch.setattr(module, "SCHEMA", module.SCHEMA.with_metadata({"bixse_ledger": "3"}))
        seal(
            [StoredRow("key 1", "", "", "", 0, "graded", "verbal", graded(1).to_json(), 1.0)],
            folder / "segment-1.jsonl",
        )
    else:
        (folder / "segment-new.jsonl").write_text('{"bixse_ledger": 3}\n')
    with pytest.raises(InputError, match=r"format 3.*fix"):
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


KEYS = [
    "",
    '"',
    '", ',
    'a", b',
    "\\",
    "a\\",
    "a\nb",
    "\r",
    "a\0b",
    "[",
    "'; DROP TABLE wanted",
    "é\u2028😀",
    " key ",
    "key",
]


@pytest.mark.parametrize("path", ["ledger", "a[1] b#c*?é'\""])
@pytest.mark.parametrize("state", ["own", "open", "sealed"])
def test_keys_and_folders_of_any_characters(tmp_path, path, state):
    with Ledger(tmp_path / path) as ledger:
        for number, key in enumerate(KEYS):
            assert ledger.claim(key)
            ledger.write(key, graded(number), 'q"\n', "d\ud800", "v'")
        if state == "sealed":
            ledger.close()
        with ledger if state == "own" else Ledger(tmp_path / path) as other:
            other.load([*KEYS, "nothing"])
            assert [other.find(key).grade for key in KEYS] == list(range(len(KEYS)))
            assert other.find("nothing") is None


def test_segments_copied_from_another_ledger_are_its_answers(tmp_path):
    """As through an object store, there and back: a segment has a name of its own and never changes."""
    folders = [tmp_path / name for name in ("here", "there")]
    for place, folder in enumerate(folders):
        writer(folder, 10 * place, 10 * place + 10).wait()
    for source, target in (folders, folders[::-1]):
        for path in source.glob("segment-*.parquet"):
            shutil.copy(path, target)
    for folder in folders:
        assert grades(folder, range(20)) == {number: float(number) for number in range(20)}
        assert answers_by_status(folder) == {"graded": 20}


def test_answers_of_other_processes_at_work_killed_and_done(folder):
    living = writer(folder, 20, 30, 60)
    try:
        writer(folder, 10, 20).wait()
        killed(folder, 0, 10)
        assert names(folder) == [".json", ".jsonl", ".jsonl", ".parquet"]
        assert grades(folder, range(40)) == {number: float(number) for number in range(30)}
        assert names(folder).count(".jsonl") == 2, "reading changes no segment"
        writer(folder, 30, 31).wait()
        assert names(folder) == [".json", ".jsonl", ".parquet", ".parquet", ".parquet"]
        assert grades(folder, range(40)) == {number: float(number) for number in range(31)}
    finally:
        living.kill()
        living.wait()


def test_killed_between_sealing_and_deleting_the_sealed_segment_counts(folder):
    killed(folder, 0, 10)
    (segment,) = folder.glob("*.jsonl")
    content = segment.read_bytes()
    seal_left(folder)
    segment.write_bytes(content)
    assert answers_by_status(folder) == {"graded": 10}
    (sealed,) = folder.glob("*.parquet")
    seal_left(folder)
    assert list(folder.glob("*.parquet")) == [sealed]


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
    assert sum(answers_by_status(folder).values()) == len(left)
    assert seal_left(folder) == []
    assert grades(folder, range(3)) == left


def test_of_several_answers_a_usable_one_stands_then_the_latest(folder):
    answers = [graded(1), Answer("truncated", "verbal"), graded(2), Answer("failed", "verbal")]
    for place, answer in enumerate(answers):
        with Ledger(folder) as ledger:
            ledger.write("key 0", answer)
        assert grades(folder, [0])[0] == (1.0 if place < 2 else 2.0)
    assert answers_by_status(folder) == {"graded": 2, "truncated": 1, "failed": 1}


def test_memory_holds_only_requested_answers(folder):
    rows = [StoredRow(f"key {n}", "", "", "", 0, "graded", "verbal", graded(n).to_json(), 1.0) for n in range(40_000)]
    Ledger(folder).close()
    seal(rows, folder / "segment-0.jsonl")
    with Ledger(folder) as ledger:
        ledger.load(["key 7", "key 39999", "key of nothing"])
        assert len(ledger._known) == 2
        assert (ledger.find("key 7").grade, ledger.find("key of nothing")) == (7.0, None)
        assert ledger.find("key 8").grade == 8.0, "found alone without load"
    assert answers_by_status(folder) == {"graded": 40_000}


def test_a_segment_that_is_sealed_while_it_is_read_is_read_under_its_new_name(folder, monkeypatch):
    from bixse.judging import ledger as reader

    killed(folder, 0, 10)
    found, listed = reader.segments_of, []

    def then_sealed(path):
        segments = found(path)
        if not listed:
            seal_left(path)
        listed.append(segments)
        return segments

    monkeypatch.setattr(reader, "segments_of", then_sealed)
    assert grades(folder, range(10)) == {number: float(number) for number in range(10)}
    assert len(listed) == 3


def test_grading_goes_on_where_a_killed_process_stopped(folder, tmp_path):
    pairs, judge = some_pairs(30), ScriptedJudge()
    grade(pairs[:20], judge, tmp_path / "first", ledger=folder)
    again = ScriptedJudge()
    found = grade(pairs, again, tmp_path / "second", ledger=folder)
    assert (len(judge.asked), len(again.asked), found.summary.reused) == (20, 10, 20)
    alone = grade(pairs, ScriptedJudge(), tmp_path / "alone")
    assert (tmp_path / "second" / "pairs.parquet").read_bytes() == Path(alone.artifacts["pairs"]).read_bytes()


def test_the_documented_queries_read_a_ledger(tmp_path):
    usage, folder = Usage(prompt=1000, cached=400, completion=10), tmp_path / "ledger"
    with Ledger(folder) as ledger:
        ledger.write("key 0", Answer("failed", "verbal", judge="one"), "q", "d0")
        ledger.write("key 0", Answer("graded", "verbal", grade=2.0, usage=usage, judge="one"), "q", "d0")
        ledger.write("key 1", Answer("graded", "verbal", (0.25, 0.75), grade=0.75, usage=usage, judge="one"), "q", "d1")
        ledger.write("key 2", Answer("refused", "verbal", judge="two", text='no, "never"\n'), "q", "d2")
    with Ledger(folder) as ledger:
        ledger.write("key 2", Answer("graded", "verbal", grade=1.0, usage=usage, judge="two"), "q", "d2")
        ledger.write("key 3", Answer("graded", "verbal", grade=3.0, usage=usage, judge="two"), "q", "d3")
    text = (Path(__file__).parents[2] / "docs" / "reference" / "ledger.md").read_text()
    text = text.replace("runs/grade/ledger/*", f"{folder}/*").replace("answers.csv", f"{tmp_path}/answers.csv")
    by_status, dollars, standing = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    with duckdb.connect() as database:
        assert database.execute(by_status).fetchall() == [
            ("one", "failed", 1, 0, 0), ("one", "graded", 2, 2000, 20),
            ("two", "graded", 2, 2000, 20), ("two", "refused", 1, 0, 0),
        ]  # fmt: skip
        assert dict(database.execute(dollars).fetchall()) == {
            "one": pytest.approx(208e-6),
            "two": pytest.approx(208e-6),
        }
        database.execute(standing)
        found = database.execute(f"SELECT document_id, status, grade FROM '{tmp_path}/answers.csv'").fetchall()
    assert found == [("d0", "graded", 2.0), ("d1", "graded", 0.75), ("d2", "graded", 1.0), ("d3", "graded", 3.0)]
