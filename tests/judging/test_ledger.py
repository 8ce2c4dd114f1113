import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError, StorageError
from bixse.judging.grade import grade
from bixse.judging.grade_settings import GradeSettings
from bixse.judging.judge import Answer, Completion, Question, Usage
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.ledger_files import answers_by_status
from helpers.ledger_worker import elsewhere, here
from helpers.scripted_judge import ScriptedJudge, planted, some_pairs

HERE = Path(__file__).parents[1] / "helpers"


def start(out, ledger, log, count, pause, prefix=()):
    words = [sys.executable, str(HERE / "scripted_judge.py"), str(out), str(ledger), str(log), str(count), str(pause)]
    return subprocess.Popen([*prefix, *words], stderr=subprocess.PIPE)


def asked(log):
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, please keep them\n" * 100)
    with pytest.raises(InputError, match="no ledger"):
        Ledger(text)
    assert text.read_text().startswith("these are my notes")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE mine (x)")
    with pytest.raises(InputError, match="something else"):
        Ledger(other)


def test_a_ledger_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=99")
    with pytest.raises(InputError, match="format 99"):
        Ledger(path)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="fix"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def test_an_answer_comes_back_as_it_was(tmp_path):
    answer = Answer(
        "graded", "top-logprobs", (0.1, 0.25, 1 / 3, 0.0), 1.3, 1.2, 1.4, 'é "2"\n', Usage(10, 4, 2, 1), 0.5, "m", "", 3
    )
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.write("key", answer)
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.find("key") == answer
        assert ledger.find("other") is None


def test_a_later_answer_replaces_one_without_a_grade_and_the_first_is_kept_aside(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.write("key", Answer("truncated", "verbal", text="well"))
        ledger.write("key", Answer("graded", "verbal", grade=1.0))
        assert ledger.find("key").status == "graded"
        assert answers_by_status(ledger.path) == {"graded": 1}
        (old,) = ledger.store._file.execute("SELECT answer FROM earlier").fetchall()
        assert Answer.from_json(old[0]).status == "truncated"


def test_the_key_holds_all_that_decides_an_answer():
    messages = ({"role": "user", "content": "Query: a\n\nPassage: b"},)
    question = Question("1", "2", "a", "b", "order", messages)
    identity = {"model": "m", "revision": "r", "mode": "top-logprobs", "parameters": {"temperature": 0}}
    key = question.key(identity)
    other_ids = Question("8", "9", "a", "b", "another name", messages)
    assert other_ids.key(identity) == key  # the same question under other names is the same question
    changed = [
        question.key({**identity, "model": "n"}),
        question.key({**identity, "revision": "s"}),
        question.key({**identity, "mode": "sample"}),
        question.key({**identity, "parameters": {"temperature": 1}}),
        Question("1", "2", "a", "b", "order", messages, 1).key(identity),
        Question("1", "2", "a", "b", "order", ({"role": "user", "content": "Query: a\n\nPassage: c"},)).key(identity),
    ]
    assert len({key, *changed}) == 7


def test_what_an_earlier_version_paid_for_is_found(tmp_path):
    """Keys and texts as version 0.1.0 wrote them: a server's identity under "judge", a query as an answer."""
    messages = ({"role": "user", "content": "Query: a"},)
    old = {"judge": "server", "model": "m", "mode": "verbal"}
    content = json.dumps([old, [dict(message) for message in messages], 0], sort_keys=True)
    found = Question("1", "2", "a", "b", messages=messages).key({"kind": "server", "model": "m", "mode": "verbal"})
    assert found == hashlib.sha256(content.encode()).hexdigest()
    kept = {"status": "written", "mode": "text", "probabilities": [], "grade": None, "low": None, "high": None,
            "text": "how to copy", "usage": {"prompt": 9, "cached": 0, "completion": 3, "reasoning": 0},
            "seconds": 0.5, "judge": "m", "detail": "", "tries": 1}  # fmt: skip
    with Ledger(tmp_path / "l.sqlite", Completion) as ledger:
        ledger.write("key", Completion("failed"))
        ledger.store._file.execute("UPDATE answers SET answer = ?", (json.dumps(kept),))
        assert ledger.find("key") == Completion("written", "how to copy", Usage(9, 0, 3), 0.5, "m")


def test_killed_at_any_moment_nothing_answered_is_asked_again(tmp_path):
    """kill -9 again and again: each time at most the questions in flight (4) are lost."""
    ledger, log, count, kills = tmp_path / "l.sqlite", tmp_path / "asked.txt", 60, 0
    rng = random.Random(0)
    for _ in range(4):
        process = start(tmp_path / "out", ledger, log, count, 0.02)
        before = sum(asked(log).values())
        deadline = time.time() + 30
        while sum(asked(log).values()) < before + 8 and process.poll() is None and time.time() < deadline:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    process = start(tmp_path / "out", ledger, log, count, 0.0)
    assert process.wait(timeout=60) == 0, process.stderr.read()
    times = asked(log)
    assert len(times) == count
    assert sum(times.values()) - count <= 4 * kills
    with sqlite3.connect(ledger) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    table = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert len(table) == count
    assert all(row["grade"] == planted(Question("", "", "", row["document"])) for row in table)


@pytest.mark.parametrize("prefix", [here, elsewhere])
def test_processes_share_a_ledger_and_the_work(tmp_path, prefix):
    ledger, count = tmp_path / "l.sqlite", 60
    logs = [tmp_path / f"{i}.txt" for i in range(3)]
    all_three = [start(tmp_path / f"out{i}", ledger, log, count, 0.05, prefix) for i, log in enumerate(logs)]
    assert [process.wait(timeout=120) for process in all_three] == [0, 0, 0]
    assert sum(sum(asked(log).values()) for log in logs) == count, "every question is paid for once"
    with sqlite3.connect(ledger) as file:
        assert file.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    tables = [pq.read_table(tmp_path / f"out{i}" / "pairs.parquet") for i in range(3)]
    assert tables[0].num_rows == count
    assert all(table.equals(tables[0]) for table in tables)


def test_a_new_ledger_is_opened_by_many_at_once(tmp_path):
    code = "import sys; from bixse.judging.ledger import Ledger; Ledger(sys.argv[1]).close()"
    for attempt in range(5):
        words = [sys.executable, "-c", code, str(tmp_path / f"{attempt}.sqlite")]
        opened = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(4)]
        assert [process.wait(timeout=60) for process in opened] == [0] * 4


def test_answers_are_shared_by_runs_and_kept_apart_by_judges(tmp_path):
    ledger, pairs = tmp_path / "l.sqlite", some_pairs(20)
    first, same, other = ScriptedJudge(), ScriptedJudge(), ScriptedJudge(name="another model")
    grade(pairs, first, tmp_path / "a", ledger=ledger)
    grade(pairs, same, tmp_path / "b", ledger=ledger)
    grade(pairs, other, tmp_path / "c", ledger=ledger, settings=GradeSettings())
    assert [len(judge.asked) for judge in (first, same, other)] == [20, 0, 20]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_ledger_is_told(tmp_path):
    path = tmp_path / "l.sqlite"
    Ledger(path).close()
    path.chmod(0o444)
    with pytest.raises(StorageError, match="fix"), Ledger(path) as ledger:
        ledger.write("key", Answer("graded", "verbal", grade=1.0))


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(path) as ledger:
        ledger.write("first", Answer("graded", "verbal", grade=1.0))
        pages = ledger.store._file.execute("PRAGMA page_count").fetchone()[0]
        ledger.store._file.execute(f"PRAGMA max_page_count={pages}")  # SQLite then answers as on a full disk
        with pytest.raises(StorageError, match="full"):
            for number in range(1000):
                ledger.write(str(number), Answer("graded", "verbal", grade=1.0, text="x" * 200))
    with Ledger(path) as ledger:
        assert ledger.find("first").grade == 1.0
