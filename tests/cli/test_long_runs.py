import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from helpers.chat_server import planted
from helpers.row_files import jsonl

WORDS = "copy move delete open read write list file folder tree disk path name text byte line".split()  # noqa: SIM905
HOSTILE = "judge\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\rmodel"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def pairs(tmp_path):
    rows = [{"query": f"query {n % 20}", "document": planted(str(n), [0.1, 0.2, 0.3, 0.3])} for n in range(400)]
    return jsonl(tmp_path / "pairs.jsonl", *rows)


@pytest.fixture
def collection(tmp_path):
    texts = {f"d{n}": " ".join(WORDS[(n >> shift) % 16] for shift in range(0, 20, 2)) for n in range(20_000)}
    corpus = {name: Document("", text) for name, text in texts.items()}
    save_collection(Collection("many", corpus, {"q": "copy a file"}, {"test": {"q": {"d1": 1}}}), tmp_path / "many")
    return tmp_path / "many"


def start(log, *words, seconds=0.1, **settings):
    """Start the command with standard error in a file, and progress more often than once a minute."""
    command = [sys.executable, "-m", "bixse", *map(str, words)]
    environment = {**os.environ, "BIXSE_PROGRESS_SECONDS": str(seconds)}
    with log.open("w") as errors:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=log.parent, **settings
        )


def wait_for(log, pattern, process, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if match := re.search(f"^.*{pattern}.*$", log.read_text(), re.MULTILINE):
            return match[0]
        time.sleep(0.02)
    pytest.fail(f"no {pattern!r} in {log.read_text()!r}, exit status {process.poll()}")


def stop(process):
    """Send SIGTERM twice, as some schedulers do, and return the exit status."""
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode


def grading(server, address, pairs, *more):
    prices = ["--prices", "10", "10"]
    return ["grade", "--pairs", pairs, "--judge", address, "--out", pairs.parent / "out", *prices, *more]


def test_sigterm_writes_the_tables_and_the_same_command_goes_on(server, pairs):
    address = server.scenario(delay=0.05)
    words = grading(server, address, pairs, "--concurrency", "2")
    log, out = pairs.with_suffix(".log"), pairs.parent / "out"
    process = start(log, *words)
    line = wait_for(log, r"\d graded", process)
    assert stop(process) == 130, log.read_text()
    assert re.fullmatch(r"grade: \d+ of 400 \(\d+ %\), .+it/s, .+ left, [\d,]+ graded, 0\.\d{4} US dollars", line)
    rows = pq.read_table(out / "judgements.parquet").to_pylist()
    assert 0 < len(rows) < 400
    assert {row["status"] for row in rows} == {"graded"}
    assert len(pq.read_table(out / "pairs.parquet")) == len(rows)
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    assert f"{len(rows)} of 400 pairs" in log.read_text()
    assert "Traceback" not in log.read_text()
    server.change(address, delay=0)
    before = server.stats(address)["counts"]["chat"]
    process = start(log, *words, "--json")
    metrics = json.loads(process.communicate(timeout=120)[0])["metrics"]
    assert (metrics["reused"], metrics["asked"]) == (len(rows), 400 - len(rows))
    assert server.stats(address)["counts"]["chat"] - before < 400 - len(rows) + 10


def test_a_log_goes_on_where_nothing_is_answered(server, pairs):
    log = pairs.with_suffix(".log")
    jsonl(pairs, {"query": "q", "document": planted("stalled", [0, 0, 0, 1], ["stall"])})
    process = start(log, *grading(server, server.scenario(), pairs))
    wait_for(log, "grade: 0 of 1 ", process)
    time.sleep(0.5)
    assert log.read_text().count("grade: 0 of 1 (0 %)") > 2
    assert stop(process) == 130
    assert "\r" not in log.read_text()


@pytest.mark.slow
def test_a_terminal_shows_dollars_and_statuses(server, pairs):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    words = grading(server, server.scenario(delay=0.02), pairs, "--concurrency", "4")
    process = subprocess.Popen(
        [sys.executable, "-m", "bixse", *map(str, words)], stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other side is closed
        while True:
            shown += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(60) == 0, shown
    assert re.search(r"grade:.*/400 .*\d+ graded, 0\.\d{4} US dollars", shown.decode()), shown


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_a_server_says_never_reaches_the_terminal_as_codes(server, pairs, form):
    address = server.scenario(models=[HOSTILE], known=0.02)  # its name stands in warnings and in the result
    log = pairs.with_suffix(".log")
    process = start(log, *grading(server, address, pairs, *form), seconds=60)
    shown = process.communicate(timeout=120)[0] + log.read_bytes().decode()
    assert shown.count("do not trust its grades") == (2 if form else 1), "once, and in the JSON object"
    assert "400" in shown and "grade:" not in log.read_text(), "a run of seconds logs no progress"
    assert not CONTROLS.search(shown), CONTROLS.findall(shown)
    answers_nothing = server.scenario(models=[HOSTILE], no_logprobs=True, system=False, system_says=HOSTILE)
    process = start(log, *grading(server, answers_nothing, pairs, "--model", "m", *form))
    shown = process.communicate(timeout=120)[0] + log.read_bytes().decode()
    assert process.returncode in (1, 2)
    assert not CONTROLS.search(shown), CONTROLS.findall(shown)


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("generate", "write queries: [1-9]"),
        pytest.param("convert", "(hash|look at|read|write).*: .* of .*B/s", marks=pytest.mark.slow),
        pytest.param("evaluate", "model: many: [1-9]", marks=pytest.mark.slow),
        pytest.param("index", "encode documents: [1-9]", marks=pytest.mark.slow),
        pytest.param("mine", "encode documents: [1-9]", marks=pytest.mark.slow),
        pytest.param("calibrate", "encode pairs: [1-9]", marks=pytest.mark.slow),
        pytest.param("train", "train: [1-9].* left", marks=pytest.mark.slow),
    ],
)
def test_every_long_verb_says_how_far_it_is_and_takes_sigterm_as_ctrl_c(tmp_path, tiny_model_path, request, verb, line):
    model, out, file, log = tiny_model_path, tmp_path / "out", tmp_path / "nq.jsonl", tmp_path / "log"
    folder = request.getfixturevalue("collection") if verb in ("evaluate", "index", "mine") else None
    address = request.getfixturevalue("server").scenario(delay=0.1)
    words = {
        "evaluate": [model, "--collection", folder],
        "generate": ["--corpus", file, "--concurrency", "2", "--server", address],
        "index": [model, "--collection", folder],
        "mine": ["--collection", folder, "--retriever", model],
        "convert": ["e5", file],
        "calibrate": [model, "--pairs", file],
        "train": ["--model", model, "--pairs", file, "--max-steps", "100000"],
    }
    if verb == "generate":
        jsonl(file, *({"_id": str(n), "text": f"copy a file {n}"} for n in range(400)))
    elif verb == "convert":
        jsonl(file, *({"query": f"q {n}", "positive": f"p {n}", "negative": "n"} for n in range(400_000)))
    elif verb in ("calibrate", "train"):
        rows = ({"query": WORDS[n % 16], "document": f"{WORDS[n % 7]} {n}", "relevance": n % 2} for n in range(20_000))
        jsonl(file, *rows)
    process = start(log, verb, *words[verb], "--out", out)
    wait_for(log, line, process)
    assert stop(process) == 130, log.read_text()
    assert re.search("error: .*SIGTERM", log.read_text())
    assert not re.search("\r|Traceback", log.read_text())
    if verb == "train":
        assert list((out / "checkpoints").glob("checkpoint-*"))
