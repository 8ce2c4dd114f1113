"""`bixse generate` as a command: killed and started again, by several that share a ledger, and within a limit."""

from __future__ import annotations

import json

import pytest

from bixse.judging.ledgers.segments import answers_by_status
from helpers.chat_server import chat_server
from helpers.command import call, ended, kill_amid_answers, start

COUNT = 24


@pytest.fixture(scope="module")
def server():
    with chat_server() as running:
        yield running


def page(number, errors=(), end=""):
    """A document that tells the server what to write: of each three one query stands for another document too."""
    texts = [f"how does thing {number % 16} work", f"what is thing {number} for"]
    plan = {"id": f"p{number}", "p": [0.5, 0.5], "labels": texts, "errors": list(errors), "end": end}
    return f"page {number}. plan={json.dumps(plan)}"


def write_corpus(path, count=COUNT, **planted):
    """Documents, of which every ninth has no text."""
    texts = [" " if number % 9 == 8 else page(number, **planted) for number in range(count)]
    path.write_text("".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


@pytest.fixture
def words(server, tmp_path):
    address = server.scenario()
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    return address, ("generate", "--corpus", corpus, "--server", address, "--per-document", "2")


def files(folder):
    """What was written for others to read."""
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    return [(folder / name).read_bytes() for name in ("queries.jsonl", "pairs.parquet")]


def asked(stats):
    """Texts that the server wrote."""
    return sum(stats["tries"].values())


def test_a_draw_is_the_same_again_and_asks_nothing(capsys, words, server, tmp_path):
    code, whole = call(capsys, *words[1], "--documents", "11", "--out", tmp_path / "one")
    assert (code, whole["metrics"]["refused"]["repeated"] > 0) == (0, True)
    paid = asked(server.stats(words[0]))
    ledger = ("--ledger", tmp_path / "one" / "ledger")
    code, again = call(capsys, *words[1], "--documents", "11", *ledger, "--out", tmp_path / "two")
    assert (code, again["metrics"]["asked"], again["metrics"]["reused"]) == (0, 0, paid)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert asked(server.stats(words[0])) == paid


def test_a_limit_is_kept_and_lifted(capsys, words, tmp_path):
    assert call(capsys, *words[1], "--out", tmp_path / "whole")[0] == 0
    flags = (*words[1], "--concurrency", "1", "--prices", "100", "100")
    code, found = call(capsys, *flags, "--max-usd", "0.18", "--out", tmp_path / "out")
    some = found["metrics"]["asked"]
    assert (code, 3 < some < 2 * COUNT - 8, found["metrics"]["usd"] <= 0.18) == (3, True, True)
    assert found["metrics"]["stopped"]
    code, found = call(capsys, *flags, "--out", tmp_path / "out")
    assert (code, found["metrics"]["reused"], found["metrics"]["stopped"]) == (0, some, None)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.slow
def test_two_that_share_a_ledger_of_which_one_is_killed_and_started_again(server, tmp_path):
    """Only what was in flight may be paid for twice."""
    count, flight = 216, 4
    corpus = write_corpus(tmp_path / "corpus.jsonl", count)
    address, other, ledger = server.scenario(delay=0.04), server.scenario(), tmp_path / "ledger"
    ledger.mkdir()
    flags = ("generate", "--corpus", corpus, "--concurrency", flight, "--server")
    shared = (*flags, address, "--ledger", ledger, "--out")
    both = [start(*shared, tmp_path / name) for name in ("one", "two")]
    kill_amid_answers(both[1], ledger)
    code, first = ended(both[0])
    assert (code, first["not_asked"]) == (0, 0), first
    code, last = ended(start(*shared, tmp_path / "two"))
    assert (code, last["not_asked"], last["reused"] >= 10) == (0, 0, True)
    texts = count - count // 9
    assert texts <= asked(server.stats(address)) <= texts + flight
    assert sum(answers_by_status(ledger).values()) == texts
    assert ended(start(*flags, other, "--out", tmp_path / "whole"))[0] == 0
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "whole")
