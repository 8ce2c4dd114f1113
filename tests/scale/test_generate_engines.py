"""`bixse generate` through every engine: the queries and pairs of one process, and no text is paid for twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bixse.errors import InputError, ModelError
from bixse.judging.generate import generate as module
from bixse.judging.generate.generate_settings import WriterConfig
from bixse.judging.ledgers.segments import answers_by_status
from helpers.chat_server import chat_server
from helpers.command import call, ended, kill_amid_answers, refused, start

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
    return address, ("generate", "--corpus", corpus, "--server", address, "--per-document", "2", "--seed", "3")


def files(folder):
    """What was written for others to read."""
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    return [(folder / name).read_bytes() for name in ("queries.jsonl", "pairs.parquet")]


def asked(stats):
    """Texts that the server wrote."""
    return sum(stats["tries"].values())


# --- what is refused


def test_the_texts_that_one_process_paid_for_are_not_left_aside(capsys, words, server, tmp_path, monkeypatch):
    """The same folder in shards, and on several machines, asks nothing."""
    out = tmp_path / "out"
    assert call(capsys, *words[1], "--out", out)[0] == 0
    before, paid = files(out), asked(server.stats(words[0]))
    code, found = call(capsys, *words[1], "--shards", "3", "--out", out)
    assert (code, found["metrics"]["asked"], found["metrics"]["reused"]) == (0, 0, paid)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    ranked = (*words[1], "--engine", "ranks", "--shards", "3", "--out", out)
    code, found = call(capsys, *ranked)
    assert (code, found["metrics"]["asked"], asked(server.stats(words[0]))) == (0, 0, paid)
    assert files(out) == before


def test_processes_of_a_launcher_that_would_all_do_the_same(capsys, words, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for flags in (words[1], (*words[1], "--shards", "2")):
        assert "--engine ranks" in refused(capsys, *flags, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_machine_that_is_set_up_otherwise(words, tmp_path, monkeypatch):
    """Without the shared ledger, with another corpus, with another model behind the address."""
    jobs = []
    monkeypatch.setattr(module, "asked_shards", lambda job, *rest: jobs.append(job) or 1 / 0)
    config = WriterConfig(corpus=tmp_path / "corpus.jsonl", server=[words[0]], shards=2)
    writer = config.open()
    with pytest.raises(ZeroDivisionError):
        module.generate(config, writer, tmp_path / "out")
    writer.close()
    (job,) = jobs
    job.setup().writer.close()
    (tmp_path / "elsewhere").mkdir()
    for ledger in (tmp_path / "elsewhere", tmp_path / "nothing"):
        with pytest.raises(InputError, match=r"no such ledger.*fix"):
            replace(job, ledger=ledger).setup()
    with pytest.raises(ModelError, match=r"another one.*fix"):
        replace(job, identity={**job.identity, "model": "another"}).setup()
    write_corpus(tmp_path / "corpus.jsonl", COUNT + 1)
    with pytest.raises(InputError, match=r"other .*documents.*fix"):
        job.setup()


# --- the same result


@pytest.mark.parametrize("drawn", [(), ("--documents", "11")])
def test_shards_write_what_one_process_writes(capsys, words, server, tmp_path, drawn):
    address, flags = words[0], (*words[1], *drawn)
    code, whole = call(capsys, *flags, "--out", tmp_path / "whole")
    assert (code, whole["metrics"]["refused"]["repeated"] > 0) == (0, True)
    paid = asked(server.stats(address))
    for shards in (1, 5, 100):
        out = tmp_path / f"shards-{shards}"
        code, found = call(capsys, *flags, "--shards", shards, "--out", out)
        assert code == 0
        assert found["metrics"] == whole["metrics"]
        assert files(out) == files(tmp_path / "whole")
        code, again = call(capsys, *flags, "--shards", "3", "--out", out)
        assert (code, again["metrics"]["asked"], again["metrics"]["reused"]) == (0, 0, paid)
        assert files(out) == files(tmp_path / "whole")
    assert asked(server.stats(address)) == 4 * paid


def test_ranks_write_one_after_the_other(capsys, words, server, tmp_path, monkeypatch):
    assert call(capsys, *words[1], "--out", tmp_path / "whole")[0] == 0
    paid = asked(server.stats(words[0]))
    flags = (*words[1], "--engine", "ranks", "--shards", "5", "--out", tmp_path / "out")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "8")
    found = []
    for number in ("7", "1", "0", "1", "2", "3", "4", "7"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *flags)
        found.append((code, envelope["metrics"].get("waiting"), (tmp_path / "out" / "queries.jsonl").exists()))
    assert found == [(0, n, False) for n in (5, 4, 3, 3, 2, 1)] + [(0, 0, True)] * 2
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert asked(server.stats(words[0])) == 2 * paid


def test_a_limit_is_shared_by_the_shards_and_lifted(capsys, words, tmp_path):
    assert call(capsys, *words[1], "--out", tmp_path / "whole")[0] == 0
    flags = (*words[1], "--shards", "3", "--concurrency", "1", "--price-in", "100", "--price-out", "100")
    code, found = call(capsys, *flags, "--max-usd", "0.18", "--out", tmp_path / "out")
    some = found["metrics"]["asked"]
    assert (code, 3 < some < 2 * COUNT - 8, found["metrics"]["usd"] <= 0.18) == (3, True, True)
    assert found["metrics"]["stopped"]
    code, found = call(capsys, *flags, "--out", tmp_path / "out")
    assert (code, found["metrics"]["reused"], found["metrics"]["stopped"]) == (0, some, None)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.slow
def test_ranks_of_which_one_is_killed_and_started_again(server, tmp_path):
    """Only what was in flight may be paid for twice."""
    count, flight = 216, 4
    corpus = write_corpus(tmp_path / "corpus.jsonl", count)
    address, other = server.scenario(delay=0.04), server.scenario()
    flags = ("generate", "--corpus", corpus, "--shards", "6", "--concurrency", flight, "--server")
    ranked, out = (*flags, address, "--engine", "ranks"), tmp_path / "out"
    ranks = [start(*ranked, "--out", out, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    kill_amid_answers(ranks[1], out / "ledger")
    code, first = ended(ranks[0])
    assert (code, first["waiting"] > 0) == (0, True), first
    code, last = ended(start(*ranked, "--out", out, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_TASK_COUNT="2"))
    assert (code, last["waiting"], last["not_asked"]) == (0, 0, 0)
    assert last["reused"] >= 10
    texts = count - count // 9
    assert texts <= asked(server.stats(address)) <= texts + flight
    assert sum(answers_by_status(out / "ledger").values()) == texts
    assert ended(start(*flags, other, "--out", tmp_path / "whole"))[0] == 0
    assert files(out) == files(tmp_path / "whole")
