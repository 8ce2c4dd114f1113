"""Writers of one ledger: living, killed, forked, in other process namespaces, and on file systems without locks."""

import os
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.judging import ledger as module
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import answers_by_status
from bixse.judging.ledgers.writers import LEASE, seal_left
from helpers.chat_server import chat_server, planted
from helpers.command import ended, start
from helpers.ledger_worker import FLOCK, elsewhere, here, worker

SHARE = [0.9, 0.05, 0.03, 0.01]
lockless = pytest.mark.skipif(FLOCK is None, reason="the number of flock is not known here")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ledger"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def every_claim_looks(monkeypatch):
    monkeypatch.setattr(module, "LOOK_AFTER", 0.0)


def graded(number):
    return Answer("graded", "verbal", grade=float(number))


def grades(path, count):
    """The grades that a ledger has of the keys k0, k1, ..."""
    with Ledger(path) as ledger:
        found = [ledger.find(f"k{number}") for number in range(count)]
    return [None if answer is None else answer.grade for answer in found]


def shown(path):
    return sorted(entry.suffix for entry in path.iterdir() if not entry.name.startswith("."))


def hidden(path):
    return [entry.name for entry in path.iterdir() if entry.name.endswith(".writer")]


def age(path, seconds=LEASE + 10):
    """Have all files look as if nobody had touched them for so long."""
    then = time.time() - seconds
    for entry in path.iterdir():
        os.utime(entry, (then, then))


# --- claims


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
        book.load(["k0", "k1"])
        other.do("claim", "k0")
        other.do("claim", "k1")
        other.do("write", "k0", 2)
        assert book.claim("k0")
        assert book.find("k0").grade == 2.0
        assert not book.claim("k1")
        other.do("close")
        assert book.claim("k1")
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


def test_files_of_killed_processes_do_not_stay(folder):
    with worker(folder) as other:
        other.do("claim", "k0")
        other.do("write", "k0", 1)
        other.kill()
    assert len(hidden(folder)) == 1
    with Ledger(folder) as book:
        book.claim("k1")
        seal_left(folder)
        assert len(hidden(folder)) == 1
    assert hidden(folder) == []
    assert grades(folder, 1) == [1.0]


# --- what other processes write meanwhile


def test_answers_of_other_processes_are_found_as_they_come_and_only_what_is_new_is_read(folder):
    with Ledger(folder) as book, Ledger(folder) as other:
        book.load([f"k{number}" for number in range(4)])
        other.write("k0", graded(0))
        assert book.claim("k1")
        assert book.find("k0").grade == 0.0
        (segment,) = [path for path in folder.glob("*.jsonl") if path != book._own.path]
        with segment.open("r+b") as file:
            file.write(b"\0" * (segment.stat().st_size - 1))
        other.write("k2", graded(2))
        assert book.claim("k3")
        assert book.find("k2").grade == 2.0
    assert grades(folder, 3) == [0.0, None, 2.0], "sealed from what its writer remembers"


def test_a_segment_that_was_sealed_between_two_looks_is_read(folder):
    with Ledger(folder) as book, worker(folder) as other:
        book.load([f"k{number}" for number in range(4)])
        assert book.claim("k0")
        other.do("write", "k1", 1)
        other.do("close")
        assert book.claim("k2")
        assert book.find("k1").grade == 1.0


def test_a_second_command_on_a_folder_pays_for_little_that_the_first_pays_for(folder, tmp_path):
    count = 400
    texts = [f"query {number // 4}" for number in range(count)], [planted(f"p{n}", SHARE) for n in range(count)]
    pq.write_table(pa.table({"query": texts[0], "document": texts[1]}), tmp_path / "pairs.parquet")
    with chat_server() as server:
        address = server.scenario(delay=0.1)
        words = ("grade", "--pairs", tmp_path / "pairs.parquet", "--judge", address, "--ledger", folder)
        words = (*words, "--concurrency", "4", "--out")
        first = start(*words, tmp_path / "first")
        while len(server.stats(address)["tries"]) < 40 and first.poll() is None:
            time.sleep(0.05)
        second = start(*words, tmp_path / "second")
        (code, one), (other_code, two) = ended(first), ended(second)
        tries = [server.stats(address)["tries"].get(f"p{number}", 0) for number in range(count)]
    assert (code, other_code, min(tries)) == (0, 0, 1)
    assert one["statuses"] == two["statuses"] == {"graded": count}
    assert two["asked"] > count / 20, "they share the work"
    assert sum(tries) - count <= count / 50, "the rest is paid for once"


# --- segments of living writers


@pytest.mark.parametrize("prefix", [here, elsewhere])
@pytest.mark.parametrize("sealing", [here, elsewhere])
def test_no_process_seals_the_segment_of_a_living_writer(folder, prefix, sealing):
    with worker(folder, prefix=prefix) as living, worker(folder, prefix=sealing) as other:
        living.do("write", "k0", 0)
        assert (other.do("seal"), shown(folder)) == ("1", [".json", ".jsonl"])
        living.do("write", "k1", 1)
        living.kill()
        assert grades(folder, 2) == [0.0, 1.0]
        other.do("write", "k2", 2)
        other.do("close")
        assert shown(folder) == [".json", ".parquet", ".parquet"]
    assert grades(folder, 3) == [0.0, 1.0, 2.0]


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
    assert grades(folder, 3) == [0.0, 1.0, 2.0]


def test_a_segment_of_another_machine_is_taken_after_the_lease(folder):
    """As on an NFS mount with locks of its own, where that of another machine looks free."""
    with worker(folder) as other:
        other.do("write", "k0", 0)
        other.kill()
    (file,) = folder.glob(".*.writer")
    file.write_text("another/1/segment\n")
    assert len(seal_left(folder)) == 1
    age(folder)
    assert (seal_left(folder), grades(folder, 1)) == ([], [0.0])


def test_a_segment_without_a_file_of_its_writer_is_taken_after_the_lease(folder):
    """As a full disk leaves it, on which a process could not seal."""
    with worker(folder) as other:
        other.do("write", "k0", 0)
        other.kill()
    for file in folder.glob(".*.writer"):
        file.unlink()
    assert len(seal_left(folder)) == 1
    age(folder)
    assert (seal_left(folder), grades(folder, 1)) == ([], [0.0])


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
    assert grades(folder, 2) == [0.0, 1.0]


# --- many at once


def at_once(*codes):
    """Run programs at the same time; gives what they print of errors."""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for code in codes]
    return [process.communicate(timeout=120)[1] for process in running]


LOOP = """
from pathlib import Path
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import answers_by_status
from bixse.judging.ledgers.writers import seal_left
folder = Path({folder!r})
for number in range({first}, {first} + 15):
    {work}
"""
WRITE = 'with Ledger(folder) as ledger: ledger.write(f"k{number}", Answer("graded", "verbal", grade=float(number)))'
READ = """
    answers_by_status(folder)
    with Ledger(folder) as ledger: ledger.find("k0")
"""


def test_simultaneous_writers_readers_and_sealing_processes_lose_nothing(folder):
    works = [(0, WRITE), (15, WRITE), (0, "seal_left(folder)"), (0, "seal_left(folder)"), (0, READ)]
    Ledger(folder).close()
    codes = [LOOP.format(folder=str(folder), first=first, work=work) for first, work in works]
    assert at_once(*codes) == [""] * 5
    assert grades(folder, 30) == [float(number) for number in range(30)]
    assert (set(shown(folder)), hidden(folder)) == ({".json", ".parquet"}, [])
    assert answers_by_status(folder) == {"graded": 30}
