"""What requests cost is booked before their answers are used, and one limit holds for all commands."""

import json
import multiprocessing
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError
from bixse.judging.grade_settings import Prices
from bixse.judging.judge import NOTHING, Usage
from bixse.judging.judges import client as client_module
from bixse.judging.spending import LEDGER_NAME, OverBudgetError, Spending
from helpers.chat_server import planted
from helpers.command import call, ended, start
from helpers.row_files import jsonl
from helpers.scripted_judge import ScriptedJudge, graded, some_pairs

SHARES = [0.1, 0.2, 0.3, 0.3]
PRICE = 0.05
"""Dollars of a request: 50 tokens at 1000 dollars a million."""
PRICES = ("--prices", "1000", "0")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.001)


def inputs(verb, folder, errors, count=12):
    """The words of a verb that asks about documents with planted errors."""
    documents = [planted(f"p{number}", SHARES, errors(number)) for number in range(count)]
    if verb == "generate":
        rows = ({"_id": f"d{number}", "text": text} for number, text in enumerate(documents))
        return [verb, "--corpus", jsonl(folder / "corpus.jsonl", *rows), "--server"]
    rows = [
        {"query_id": "q", "query": "a query", "document_id": f"d{number}", "document": text}
        for number, text in enumerate(documents)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet")
    shards = ["--shards", "3"] if verb == "grade in shards" else []
    return ["grade", *shards, "--pairs", folder / "pairs.parquet", "--judge"]


def booked(out):
    lines = (out / "spent.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]  # a line that was seen half written is ended twice


VERBS = ["grade", "grade in shards", "generate"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("concurrency", [1, 16])
def test_paid_replies_without_an_answer_count_and_the_limit_holds_over_commands(
    server, tmp_path, capsys, verb, concurrency
):
    address, out = server.scenario(), tmp_path / "out"
    words = [*inputs(verb, tmp_path, lambda number: ["paid"] * 9), address, "--out", out, *PRICES]
    words += ["--max-usd", 1, "--concurrency", concurrency]
    code, found = call(capsys, *words)
    billed = server.stats(address)["billed"]
    assert (code, "of 1 US dollars" in found["metrics"]["stopped"]) == (3, True)
    assert found["metrics"]["usd_spent"] == pytest.approx(billed / 1000) == pytest.approx(1)
    assert sum(line["usage"]["prompt"] for line in booked(out)) == billed
    for _ in range(2):
        code, again = call(capsys, *words)
        assert (code, server.stats(address)["billed"]) == (3, billed), "the same limit asks nothing more"
        assert str(out / "spent.jsonl") in (again["errors"] or [again["metrics"]["stopped"]])[0]
    words[words.index("--max-usd") + 1] = 1.5
    code, more = call(capsys, *words)
    assert more["metrics"]["usd_spent"] == pytest.approx(server.stats(address)["billed"] / 1000) == pytest.approx(1.5)


def test_known_questions_that_end_badly_are_booked_and_limited(server, tmp_path, capsys):
    address, out = server.scenario(known_errors=["paid"] * 999), tmp_path / "out"
    words = [*inputs("grade", tmp_path, lambda number: []), address, "--out", out, *PRICES, "--max-usd", 0.5]
    code, _ = call(capsys, *words)
    assert (code, server.stats(address)["billed"]) == (3, 500)
    assert call(capsys, *words)[0] == 3
    assert server.stats(address)["billed"] == 500 == sum(line["usage"]["prompt"] for line in booked(out))
    server.change(address, known_errors=[])
    words[-1] = 9
    assert call(capsys, *words)[0] == 0, "a folder with nothing but the costs is a new folder"


@pytest.mark.parametrize(
    ("errors", "costs"),
    [(["500"], PRICE), (["503"], PRICE), (["half"], PRICE), (["garbage"], PRICE), (["429"] * 3, 0.0)],
)
def test_a_request_without_a_report_costs_the_mean_of_the_others(server, tmp_path, capsys, errors, costs):
    address = server.scenario()
    words = [*inputs("grade", tmp_path, lambda number: errors if number == 5 else [], count=8), address]
    code, found = call(capsys, *words, "--out", tmp_path / "out", *PRICES)
    silent = [line for line in booked(tmp_path / "out") if line["usage"] is None]
    assert (code, len(silent)) == (0, 1 if costs else 0)
    reported = server.stats(address)["billed"] / 1000 - (costs if errors == ["half"] else 0)
    assert found["metrics"]["usd_spent"] == found["metrics"]["usd_of_this_run"] == pytest.approx(reported + costs)


def test_a_time_out_costs_and_a_server_that_is_not_there_does_not(server, tmp_path, capsys):
    address, out = server.scenario(), tmp_path / "out"
    words = inputs("grade", tmp_path, lambda number: ["stall"] if number == 1 else [], count=3)
    code, found = call(capsys, *words, address, "--out", out, *PRICES, "--timeout", 0.5)
    assert (code, [line["usage"] for line in booked(out)].count(None)) == (0, 1)
    assert found["metrics"]["usd_spent"] == pytest.approx(server.stats(address)["billed"] / 1000 + PRICE)
    code, _ = call(capsys, *words, "http://127.0.0.1:9", "--model", "m", "--out", tmp_path / "other", *PRICES)
    assert (code, (tmp_path / "other").exists()) == (1, False)


@pytest.mark.parametrize("verb", VERBS)
def test_without_prices_the_cost_is_unknown_and_a_known_sum_is_kept(server, tmp_path, capsys, verb):
    words = [*inputs(verb, tmp_path, lambda number: []), server.scenario(), "--out", tmp_path / "out"]
    _, first = call(capsys, *words)
    metrics = first["metrics"]
    assert (metrics["usd"], metrics["usd_spent"]) == (None, None)
    assert metrics["unpriced"] == len(booked(tmp_path / "out"))
    _, priced = call(capsys, *words, *PRICES)
    requests = booked(tmp_path / "out")
    assert priced["metrics"]["usd_spent"] == pytest.approx(sum(line["usd"] or PRICE for line in requests))
    assert priced["metrics"]["usd_spent"] > 12 * PRICE - 1e-9
    _, after = call(capsys, *words)
    known = [line["usd"] for line in requests if line["usd"] is not None]
    assert after["metrics"]["usd_spent"] == (pytest.approx(sum(known)) if known else None)
    assert after["metrics"]["unpriced"] == len(booked(tmp_path / "out")) - len(known)
    words[-1] = tmp_path / "other"
    _, paid = call(capsys, *words, *PRICES)
    _, after = call(capsys, *words)
    assert after["metrics"]["usd_spent"] == pytest.approx(paid["metrics"]["usd_spent"])


def test_the_summary_says_unknown_and_not_0(server, tmp_path, capsys):
    from bixse.cli.main import main

    words = [*inputs("grade", tmp_path, lambda number: []), server.scenario(), "--out", tmp_path / "out"]
    for dry in (["--dry-run"], []):
        assert main([*map(str, words), *dry]) == 0
        text = capsys.readouterr().out
        assert "unknown" in text and "0.0000" not in text and "US dollars" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_the_answers_of_an_earlier_ledger_count_as_spent(server, tmp_path, capsys, verb):
    address, out = server.scenario(), tmp_path / "out"
    words = [*inputs(verb, tmp_path, lambda number: []), address, "--out", out]
    call(capsys, *words)
    (out / "spent.jsonl").unlink()  # earlier versions wrote none
    before = server.stats(address)["billed"]
    code, found = call(capsys, *words, *PRICES, "--max-usd", 0.6)
    assert server.stats(address)["billed"] == before, "12 answers for 0.6 dollars are there"
    assert sum(line["usage"]["prompt"] for line in booked(out)) == 600
    code, found = call(capsys, *words, *PRICES, "--max-usd", 10)
    assert (code, found["metrics"]["asked"], found["metrics"]["stopped"]) == (0, 0, None)
    assert sum(line.get("requests", 1) for line in booked(out)) * PRICE == pytest.approx(found["metrics"]["usd_spent"])


@pytest.mark.slow
def test_a_killed_run_has_booked_every_answer_and_goes_on(server, tmp_path, capsys):
    address, out = server.scenario(delay=0.03), tmp_path / "out"
    words = [*inputs("grade", tmp_path, lambda number: [], count=60), address, "--out", out, *PRICES]
    process = start(*words, "--concurrency", 2)
    while not (out / "spent.jsonl").exists() or len(booked(out)) < 15:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    ended(process)
    with (out / "spent.jsonl").open("a") as file:
        file.write('{"time": 1, "mod')  # of another process that was killed
    server.change(address, delay=0)
    code, found = call(capsys, *words)
    assert (code, found["metrics"]["pairs"]) == (0, 60)
    whole = [line for line in (out / "spent.jsonl").read_text().splitlines() if line.endswith("}")]
    billed = server.stats(address)["billed"]
    assert found["metrics"]["usd_spent"] == pytest.approx(len(whole) * PRICE)
    assert billed - 2 * 50 <= len(whole) * 50 <= billed, "all but the requests in flight"


@pytest.mark.slow
def test_shards_in_processes_share_one_limit(server, tmp_path, capsys):
    address, out = server.scenario(), tmp_path / "out"
    words = inputs("grade in shards", tmp_path, lambda number: ["paid"] * 2, count=60)
    words += [address, "--out", out, *PRICES, "--max-usd", 2, "--processes", 2, "--concurrency", 2]
    code, found = call(capsys, *words)
    billed = server.stats(address)["billed"] / 1000
    assert (code, "of 2 US dollars" in found["metrics"]["stopped"]) == (3, True)
    assert 2 - PRICE < billed <= 2 + 2 * PRICE, "beyond it are at most the requests in flight of the other process"
    assert found["metrics"]["usd_spent"] == pytest.approx(billed)
    assert call(capsys, *words)[0] == 3
    assert server.stats(address)["billed"] / 1000 == pytest.approx(billed)


def _append(folder, count):
    spending = Spending(folder / LEDGER_NAME, Prices(per_million=(1000.0, 0.0)))
    for _ in range(count):
        spending.book(f"a model of process {os.getpid()}", "replied", Usage(prompt=50))


def test_processes_append_whole_lines(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(tmp_path, 200)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(booked(tmp_path)) == 600
    spending = Spending(tmp_path / LEDGER_NAME, Prices(per_million=(1.0, 1.0), max_usd=30.0))
    assert spending.spent() == pytest.approx(30.0), "a line keeps its price"
    with pytest.raises(OverBudgetError):
        spending.check(NOTHING)


def test_a_judge_that_books_nothing_itself_is_limited_over_runs(tmp_path):
    for limit, asked in ((0.5, 5), (0.5, 0), (0.8, 3)):
        judge = ScriptedJudge(ahead=2)
        result = graded(some_pairs(20), judge, tmp_path / "out", per_million=(1000.0, 0.0), max_usd=limit)
        assert (len(judge.asked), result.summary.usd_spent) == (asked, pytest.approx(limit))
    assert not list((tmp_path / "out" / LEDGER_NAME).glob("*spent*"))


def test_judges_without_a_price_leave_no_file(tmp_path):
    summary = graded(some_pairs(3), ScriptedJudge(), tmp_path / "out").summary
    assert (summary.usd_spent, summary.unpriced, summary.cost) == (None, 0, "")
    assert not (tmp_path / "out" / "spent.jsonl").exists()


def test_a_reply_that_nobody_can_read_ends_the_run_at_once(server, tmp_path, capsys):
    bodies = {
        "data:": {"streams": "always"},
        '{"response": "a"}': {"answers_with": '{"response": "a"}\n{"response": "b"}\n'},
        "<!doctype": {"answers_with": "<!doctype html><title>Login</title>"},
        '{"results"': {"answers_with": '{"results": []}'},
    }
    for fact, settings in bodies.items():
        for verb in ("grade", "generate"):
            address = server.scenario(**settings)
            code, found = call(
                capsys,
                *inputs(verb, tmp_path, lambda number: []),
                address,
                "--concurrency",
                1,
                "--out",
                tmp_path / verb,
            )
            assert (code, server.stats(address)["counts"]["chat"]) == (2, 1)
            error = InputError(found["errors"][0])
            assert error.where.startswith(address) and fact in error.got
