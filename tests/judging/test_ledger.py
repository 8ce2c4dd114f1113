import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bixse.errors import StorageError
from bixse.judging.judge import Answer, Completion, Question, Usage
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import StoredRow, answers_by_status
from helpers.ledger_worker import elsewhere, here
from helpers.scripted_judge import ScriptedJudge, graded, planted, some_pairs

HERE = Path(__file__).parents[1] / "helpers"


def start(out, ledger, log, count, pause, prefix=()):
    words = [sys.executable, str(HERE / "scripted_judge.py"), str(out), str(ledger), str(log), str(count), str(pause)]
    return subprocess.Popen([*prefix, *words], stderr=subprocess.PIPE)


def asked(log):
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="fix"):
        Ledger(tmp_path / "file" / "ledger")


def test_an_answer_comes_back_as_it_was(tmp_path):
    answer = Answer(
        "graded", "top-logprobs", (0.1, 0.25, 1 / 3, 0.0), 1.3, 1.2, 1.4, 'é "2"\n', Usage(10, 4, 2, 1), 0.5, "m", "", 3
    )
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.write("key", answer)
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.find("key") == answer
        assert ledger.find("other") is None


def test_a_later_answer_replaces_one_without_a_grade_and_the_first_is_kept_aside(tmp_path):
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.write("key", Answer("truncated", "verbal", text="well"))
        ledger.write("key", Answer("graded", "verbal", grade=1.0))
        assert ledger.find("key").status == "graded"
    assert answers_by_status(tmp_path / "ledger") == {"graded": 1, "truncated": 1}


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
    with Ledger(tmp_path / "ledger", Completion) as ledger:
        ledger._take(StoredRow("key", "", "", "", 0, "written", "text", json.dumps(kept), 0.0))
        assert ledger.find("key") == Completion("written", "how to copy", Usage(9, 0, 3), 0.5, "m")


def test_killed_at_any_moment_nothing_answered_is_asked_again(tmp_path):
    """kill -9 again and again: each time at most the questions in flight (4) are lost."""
    ledger, log, count, kills = tmp_path / "ledger", tmp_path / "asked.txt", 60, 0
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
    assert answers_by_status(ledger) == {"graded": count}, "no answer twice"
    table = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert len(table) == count
    assert all(row["grade"] == planted(Question("", "", "", row["document"])) for row in table)


@pytest.mark.parametrize("prefix", [here, elsewhere])
def test_processes_share_a_ledger_and_the_work(tmp_path, prefix):
    ledger, count = tmp_path / "ledger", 60
    logs = [tmp_path / f"{i}.txt" for i in range(3)]
    all_three = [start(tmp_path / f"out{i}", ledger, log, count, 0.05, prefix) for i, log in enumerate(logs)]
    assert [process.wait(timeout=120) for process in all_three] == [0, 0, 0]
    assert sum(sum(asked(log).values()) for log in logs) == count, "every question is paid for once"
    tables = [pq.read_table(tmp_path / f"out{i}" / "pairs.parquet") for i in range(3)]
    assert tables[0].num_rows == count
    assert all(table.equals(tables[0]) for table in tables)


def test_a_new_ledger_is_opened_by_many_at_once(tmp_path):
    code = "import sys; from bixse.judging.ledger import Ledger; Ledger(sys.argv[1]).close()"
    for attempt in range(5):
        words = [sys.executable, "-c", code, str(tmp_path / f"{attempt}")]
        opened = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(4)]
        assert [process.wait(timeout=60) for process in opened] == [0] * 4


def test_answers_are_shared_by_runs_and_kept_apart_by_judges(tmp_path):
    ledger, pairs = tmp_path / "ledger", some_pairs(20)
    first, same, other = ScriptedJudge(), ScriptedJudge(), ScriptedJudge(name="another model")
    graded(pairs, first, tmp_path / "a", ledger=ledger)
    graded(pairs, same, tmp_path / "b", ledger=ledger)
    graded(pairs, other, tmp_path / "c", ledger=ledger)
    assert [len(judge.asked) for judge in (first, same, other)] == [20, 0, 20]


def test_a_full_disk_is_reported_and_earlier_answers_stay(tmp_path):
    """A process whose files may not grow beyond 4 kB; the line that did not fit leaves no half."""
    code = """
import resource, signal, sys
from bixse.errors import StorageError
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Ledger(sys.argv[1]) as ledger:
    ledger.write("first", Answer("graded", "verbal", grade=1.0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        for number in range(1000):
            ledger.write(str(number), Answer("graded", "verbal", grade=1.0, text="x" * 200))
    except StorageError as error:
        assert "fix" in str(error)
        ledger.claim("k")
        print(number)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "ledger")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.find("first").grade == 1.0
        assert ledger.find(str(int(done.stdout) - 1)).grade == 1.0
        assert ledger.find(done.stdout.strip()) is None
