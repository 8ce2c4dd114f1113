import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError, StorageError
from bixse.judging import ledger as ledger_module
from bixse.judging.judge import Answer, Completion, Question, Usage
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers import segments as module
from bixse.judging.ledgers.segments import StoredRow, answers_by_status, seal
from bixse.judging.ledgers.writers import LEASE, seal_left
from helpers import scripted_judge
from helpers.ledger_worker import FLOCK, elsewhere, here, slow_elsewhere, worker
from helpers.scripted_judge import ScriptedJudge, some_pairs
from helpers.scripted_judge import graded as grade


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ledger"
    path.mkdir()
    return path


def graded(number):
    return Answer("graded", "verbal", grade=float(number))


def killed(folder, first, end):
    with worker(folder) as process:
        for number in range(first, end):
            process.do("write", f"k{number}", number)


def stored(number):
    return StoredRow(f"k{number}", "", "", "", 0, "graded", "verbal", graded(number).to_json(), 1.0)


def grades(folder, count):
    """Number -> grade that the ledger has of the first numbers."""
    with Ledger(folder) as ledger:
        ledger.load([f"k{number}" for number in range(count)])
        answers = {number: ledger.find(f"k{number}") for number in range(count)}
    return {number: answer.grade for number, answer in answers.items() if answer is not None}


def all_of(count):
    return {number: float(number) for number in range(count)}


def test_other_files_and_folders_are_refused_and_left_alone(folder):
    (folder / "notes.txt").write_text("mine")
    for path in (folder, folder / "notes.txt"):
        with pytest.raises(InputError, match=r"notes\.txt.*fix"):
            Ledger(path)
    for path in (folder / "notes.txt", folder / "none"):
        with pytest.raises(InputError):
            answers_by_status(path)
    with pytest.raises(StorageError, match="fix"):
        Ledger(folder / "notes.txt" / "ledger")
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize(("content", "said"), [('{"bixse_ledger": 99, "id": "x"}', "format 99"), ("{", "damaged")])
def test_a_ledger_of_a_later_version_or_a_damaged_one(folder, content, said):
    (folder / "ledger.json").write_text(content)
    with pytest.raises(InputError, match=f"{said}.*fix"):
        Ledger(folder)


@pytest.mark.parametrize(
    "position", ["open", 0, -1, *(pytest.param(at, marks=pytest.mark.slow) for at in ("cut", 11, 200, -40))]
)
def test_a_damaged_segment_is_named_and_left_as_it_is(folder, position):
    killed(folder, 0, 50)
    if position != "open":
        seal_left(folder)
    (segment,) = folder.glob("segment-*")
    content = bytearray(segment.read_bytes())
    if position == "cut":
        del content[-20:]
    else:
        content[content.index(b"\n", len(content) // 2) + 1 if position == "open" else position] ^= 4
    segment.write_bytes(content)
    for read in (lambda: grades(folder, 50), lambda: answers_by_status(folder)):
        with pytest.raises(InputError, match=f"{segment.name}.*{'line 2[0-9]' if position == 'open' else ''}"):
            read()
    killed(folder, 50, 51)
    assert segment in [*seal_left(folder), *folder.glob("*.parquet"), *folder.glob("*.jsonl")], "it stays as it is"
    segment.unlink()
    assert grades(folder, 60) == {50: 50.0}


def test_foreign_segments_and_those_of_another_version_are_refused(folder, monkeypatch):
    killed(folder, 0, 5)
    pq.write_table(pa.table({"key": ["key 1"]}), folder / "notes.parquet")
    with pytest.raises(InputError, match=r"notes\.parquet.*fix"):
        grades(folder, 2)
    (folder / "notes.parquet").unlink()
    for line, fact in (('{"key": "key 1"}\n', "first line"), ('{"bixse_ledger": 3}\n', "format 3")):
        (folder / "notes.jsonl").write_text(line)
        with pytest.raises(InputError, match=rf"notes\.jsonl.*{fact}.*fix"):
            grades(folder, 2)
    (folder / "notes.jsonl").unlink()
    monkeypatch.setattr(module, "SCHEMA", module.SCHEMA.with_metadata({"bixse_ledger": "3"}))
    seal([stored(1)], folder / "segment-1.jsonl")
    with pytest.raises(InputError, match="format 3"):
        grades(folder, 2)


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


KEYS = ["", '"', '", ', 'a", b', "\\", "a\\", "a\nb", "\r", "a\0b", "[", "'; DROP TABLE wanted", "é\u2028😀", " key ",
        "key"]  # fmt: skip


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
            assert answers_by_status(tmp_path / path) == {"graded": len(KEYS)}


def test_segments_copied_from_another_ledger_are_its_answers(tmp_path):
    folders = [tmp_path / name for name in ("here", "there")]
    for place, folder in enumerate(folders):
        with Ledger(folder) as ledger:
            for number in range(10 * place, 10 * place + 10):
                ledger.write(f"k{number}", graded(number))
    for source, target in (folders, folders[::-1]):
        for path in source.glob("segment-*.parquet"):
            shutil.copy(path, target)
    for folder in folders:
        assert grades(folder, 20) == all_of(20)
        assert answers_by_status(folder) == {"graded": 20}


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
    assert grades(folder, 3) == left
    assert sum(answers_by_status(folder).values()) == len(left)
    assert seal_left(folder) == []
    assert grades(folder, 3) == left


def test_of_several_answers_a_usable_one_stands_then_the_latest(folder):
    answers = [graded(1), Answer("truncated", "verbal"), graded(2), Answer("failed", "verbal")]
    for place, answer in enumerate(answers):
        with Ledger(folder) as ledger:
            ledger.write("k0", answer)
        assert grades(folder, 1)[0] == (1.0 if place < 2 else 2.0)
    assert answers_by_status(folder) == {"graded": 2, "truncated": 1, "failed": 1}


def test_memory_holds_only_requested_answers(folder):
    Ledger(folder).close()
    seal([stored(number) for number in range(40_000)], folder / "segment-0.jsonl")
    with Ledger(folder) as ledger:
        ledger.load(["k7", "k39999", "nothing"])
        assert len(ledger._known) == 2
        assert (ledger.find("k7").grade, ledger.find("nothing")) == (7.0, None)
        assert ledger.find("k8").grade == 8.0, "found alone without load"
    assert answers_by_status(folder) == {"graded": 40_000}


def test_a_segment_that_is_sealed_while_it_is_read_is_read_under_its_new_name(folder, monkeypatch):
    killed(folder, 0, 10)
    segments_of, listed = ledger_module.segments_of, []

    def then_sealed(path):
        listed.append(segments_of(path))
        if len(listed) == 1:
            seal_left(path)
        return listed[-1]

    monkeypatch.setattr(ledger_module, "segments_of", then_sealed)
    assert grades(folder, 10) == all_of(10)
    assert len(listed) == 3


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
        assert dict(database.execute(dollars).fetchall()) == pytest.approx({"one": 208e-6, "two": 208e-6})
        database.execute(standing)
        found = database.execute(f"SELECT document_id, status, grade FROM '{tmp_path}/answers.csv'").fetchall()
    assert found == [("d0", "graded", 2.0), ("d1", "graded", 0.75), ("d2", "graded", 1.0), ("d3", "graded", 3.0)]


lockless = pytest.mark.skipif(FLOCK is None, reason="the number of flock is not known here")


@pytest.fixture(autouse=True)
def every_claim_looks(monkeypatch):
    monkeypatch.setattr(ledger_module, "LOOK_AFTER", 0.0)


def shown(path):
    return sorted(entry.suffix for entry in path.iterdir() if not entry.name.startswith("."))


def hidden(path):
    return [entry.name for entry in path.iterdir() if entry.name.endswith(".writer")]


def age(path, seconds=LEASE + 10):
    """Have all files look as if nobody had touched them for so long."""
    then = time.time() - seconds
    for entry in path.iterdir():
        os.utime(entry, (then, then))


@pytest.mark.parametrize("prefix", [here, elsewhere])
def test_a_question_is_claimed_by_one_living_process(folder, prefix):
    with Ledger(folder) as book, worker(folder, prefix=prefix) as other:
        assert (book.find("k0"), book.find("k1")) == (None, None)
        assert other.do("claim", "k0") == "True"
        assert book.claim("k1")
        assert (book.claim("k0"), other.do("claim", "k1")) == (False, "False")
        book.give_back("k1")
        assert other.do("claim", "k1") == "True"
        other.kill()
        assert book.claim("k0"), "its process is gone"


def test_a_claim_stays_where_another_process_tried_for_it(folder):
    with Ledger(folder) as book, worker(folder) as first, worker(folder) as second:
        assert (first.do("claim", "k0"), second.do("claim", "k0")) == ("True", "False")
        assert (second.do("claim", "k1"), book.find("k0"), book.claim("k0")) == ("True", None, False)
        assert (book.find("k2"), book.claim("k2"), first.do("claim", "k3")) == (None, True, "True")
        assert (first.do("claim", "k2"), book.find("k3"), book.claim("k3")) == ("False", None, False)


def test_a_claim_ends_with_the_answer_or_the_ledger(folder):
    with Ledger(folder) as book, worker(folder) as other:
        book.load(["k0", "k1", "k2"])
        other.do("claim", "k0")
        other.do("claim", "k1")
        other.do("write", "k0", 2)
        assert book.claim("k0")
        assert book.find("k0").grade == 2.0
        assert not book.claim("k1")
        other.do("write", "k2", 3)
        other.do("close")
        assert book.claim("k1")
        assert book.find("k2").grade == 3.0, "read from the segment that was sealed since the last look"
    assert hidden(folder) == []


def test_a_process_that_hangs_loses_its_claims_after_the_lease_but_not_its_segment(folder):
    with Ledger(folder) as book, worker(folder, "touch=1000") as other:
        book.load(["k0"])
        other.do("claim", "k0")
        assert not book.claim("k0")
        age(folder)
        assert book.claim("k0")
        book.close()
        assert len(seal_left(folder)) == 1


def test_answers_of_other_processes_are_found_as_they_come_and_only_what_is_new_is_read(folder):
    with Ledger(folder) as book, Ledger(folder) as other:
        book.load([f"k{number}" for number in range(4)])
        other.write("k0", graded(0))
        assert book.claim("k1")
        assert book.find("k0").grade == 0.0
        (segment,) = [path for path in folder.glob("*.jsonl") if path != book._open_segment.path]
        with segment.open("r+b") as file:
            file.write(b"\0" * (segment.stat().st_size - 1))
        other.write("k2", graded(2))
        assert book.claim("k3")
        assert book.find("k2").grade == 2.0
    assert grades(folder, 3) == {0: 0.0, 2: 2.0}, "sealed from what its writer remembers"


@pytest.mark.parametrize("prefix", [here, elsewhere])
@pytest.mark.parametrize("sealing", [here, slow_elsewhere])
def test_no_process_seals_the_segment_of_a_living_writer(folder, prefix, sealing):
    with worker(folder, prefix=prefix) as living, worker(folder, prefix=sealing) as other:
        living.do("write", "k0", 0)
        assert (other.do("seal"), shown(folder)) == ("1", [".json", ".jsonl"])
        living.do("write", "k1", 1)
        living.kill()
        assert grades(folder, 2) == all_of(2)
        other.do("write", "k2", 2)
        other.do("close")
        assert shown(folder) == [".json", ".parquet", ".parquet"]
    assert grades(folder, 3) == all_of(3)


def test_a_forked_child_holds_no_lock_of_its_parent_and_leaves_its_segment_alone(folder):
    with worker(folder) as parent:
        parent.do("write", "k0", 0)
        parent.do("fork", "k1", 1)
        while shown(folder) != [".json", ".jsonl", ".parquet"]:
            time.sleep(0.02)
        assert len(seal_left(folder)) == 1, "the parent lives"
        parent.do("write", "k2", 2)
        os.kill(parent.process.pid, 9)
        parent.process.wait()
        assert seal_left(folder) == [], "its child lives"
    assert grades(folder, 3) == all_of(3)


@pytest.mark.parametrize("writer", ["another machine", "no file"])
def test_a_segment_without_a_lock_of_this_machine_is_sealed_after_the_lease(folder, writer):
    with worker(folder) as other:
        other.do("write", "k0", 0)
        other.kill()
    (file,) = folder.glob(".*.writer")
    if writer == "no file":
        file.unlink()
    else:
        file.write_text("another/1/segment\n")
    assert len(seal_left(folder)) == 1
    age(folder)
    assert (seal_left(folder), grades(folder, 1)) == ([], {0: 0.0})


@lockless
def test_without_locks_a_writer_is_known_by_its_touches(folder):
    with worker(folder, "no-locks", "touch=0.05") as other, worker(folder, "no-locks") as book:
        assert other.do("claim", "k0") == "True"
        age(folder)
        time.sleep(1)
        assert book.do("claim", "k0") == "False", "it was touched again"
        other.kill()
        assert book.do("claim", "k0") == "False", "the lease has not run out"
        age(folder)
        assert book.do("claim", "k0") == "True"


@lockless
def test_a_writer_whose_segment_was_taken_after_a_halt_loses_nothing(folder):
    with worker(folder, "no-locks", "touch=1000") as halted, worker(folder, "no-locks") as other:
        halted.do("write", "k0", 0)
        assert other.do("seal") == "1"
        age(folder)
        assert other.do("seal") == "0"
        halted.do("write", "k1", 1)
        assert other.do("seal") == "1"
        halted.kill()
    assert grades(folder, 2) == all_of(2)


def test_simultaneous_writers_readers_and_sealing_threads_lose_nothing(folder):
    """Locks are of open files, so threads hold them against each other as processes do."""

    def write(first):
        for number in range(first, first + 15):
            with Ledger(folder) as ledger:
                ledger.write(f"k{number}", graded(number))

    def repeat(work):
        for _ in range(15):
            work()

    Ledger(folder).close()  # a reader refuses a folder that is no ledger yet
    works = [lambda: answers_by_status(folder), lambda: grades(folder, 1), *[lambda: seal_left(folder)] * 2]
    with ThreadPoolExecutor() as pool:
        running = [*(pool.submit(write, first) for first in (0, 15)), *(pool.submit(repeat, work) for work in works)]
    assert [future.exception() for future in running] == [None] * 6
    assert grades(folder, 30) == all_of(30)
    assert (set(shown(folder)), hidden(folder)) == ({".json", ".parquet"}, [])
    assert answers_by_status(folder) == {"graded": 30}


def test_an_answer_comes_back_as_it_was(tmp_path):
    answer = Answer(
        "graded", "top-logprobs", (0.1, 0.25, 1 / 3, 0.0), 1.3, 1.2, 1.4, 'é "2"\n', Usage(10, 4, 2, 1), 0.5, "m", "", 3
    )
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.write("key", answer)
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.find("key") == answer
        assert ledger.find("other") is None


def test_the_key_holds_all_that_decides_an_answer():
    question = Question("1", "2", "a", "b", "order", ({"role": "user", "content": "Query: a\n\nPassage: b"},))
    identity = {"model": "m", "revision": "r", "mode": "top-logprobs", "parameters": {"temperature": 0}}
    key = question.key(identity)
    assert replace(question, query_id="8", document_id="9", variant="another name").key(identity) == key
    changes = {"model": "n", "revision": "s", "mode": "sample", "parameters": {"temperature": 1}}
    keys = [question.key({**identity, name: value}) for name, value in changes.items()]
    other_words = ({"role": "user", "content": "Query: a\n\nPassage: c"},)
    keys += [replace(question, repeat=1).key(identity), replace(question, messages=other_words).key(identity)]
    assert len({key, *keys}) == 7


def test_answers_of_version_0_1_0_are_read(tmp_path):
    question = Question("1", "2", "a", "b", messages=({"role": "user", "content": "Query: a"},))
    content = json.dumps([{"judge": "server", "model": "m", "mode": "verbal"}, question.messages, 0], sort_keys=True)
    key = question.key({"kind": "server", "model": "m", "mode": "verbal"})
    assert key == hashlib.sha256(content.encode()).hexdigest()
    kept = {"status": "written", "mode": "text", "probabilities": [], "grade": None, "low": None, "high": None,
            "text": "how to copy", "usage": {"prompt": 9, "cached": 0, "completion": 3, "reasoning": 0},
            "seconds": 0.5, "judge": "m", "detail": "", "tries": 1}  # fmt: skip
    with Ledger(tmp_path / "ledger", Completion) as ledger:
        ledger._take(StoredRow("key", "", "", "", 0, "written", "text", json.dumps(kept), 0.0))
        assert ledger.find("key") == Completion("written", "how to copy", Usage(9, 0, 3), 0.5, "m")


@pytest.mark.parametrize("prefix", [here, slow_elsewhere])
def test_processes_share_a_ledger_and_the_work(tmp_path, prefix):
    ledger, count = tmp_path / "ledger", 60
    command = [*prefix, sys.executable, scripted_judge.__file__]
    places = [(str(tmp_path / f"out{i}"), str(ledger), str(tmp_path / f"{i}.txt")) for i in range(3)]
    all_three = [subprocess.Popen([*command, *paths, str(count), "0.05"]) for paths in places]
    assert [process.wait(timeout=120) for process in all_three] == [0, 0, 0]
    asked = "".join(log.read_text() for log in tmp_path.glob("*.txt")).splitlines()
    assert len(asked) == len(set(asked)) == count, "every question is paid for once"
    tables = [pq.read_table(tmp_path / f"out{i}" / "pairs.parquet") for i in range(3)]
    assert tables[0].num_rows == count
    assert all(table.equals(tables[0]) for table in tables)


def test_a_full_disk_is_reported_and_earlier_answers_stay(folder):
    with worker(folder, "limit=4096") as process:
        written = [process.do("write", f"k{number}", number) for number in range(60)]
        assert process.do("claim", "k") == "True", "a short line has room, and does not begin behind half a line"
    count = written.index("full")
    assert count > 5 and grades(folder, 60) == all_of(count)
