import json

import pyarrow.parquet as pq
import pytest

from bixse.data.graded_pairs import Pair
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import ConfigError, InterruptedRunError, StorageError
from bixse.judging.grade import estimate
from bixse.judging.grade_settings import Prices
from bixse.judging.judge import Answer, Usage, same_model
from helpers.scripted_judge import ScriptedJudge, config_of, graded, some_pairs

PRICES = (10.0, 0.0)  # an answer of 100 tokens costs 0.001


def rows(out, name="judgements"):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def test_every_pair_in_memory_has_the_grade_of_the_judge(tmp_path):
    pairs = some_pairs(30)
    result = graded(pairs, ScriptedJudge(), tmp_path / "out")
    assert result.complete
    table = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
    assert list(table.document_ids) == [pair.document_id for pair in pairs], "in the order of the pairs"
    for pair, relevance, given in zip(pairs, table.relevance, table.extra["grade"], strict=True):
        assert given == len(pair.document) % 7 / 2
        assert relevance == pytest.approx(given / 3)
    assert set(table.extra["judge"]) == {"scripted"}
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["results"]["summary"]["prompt_tokens"] == 3000


def test_an_unusable_answer_has_a_status_and_no_relevance(tmp_path):
    statuses = ["refused", "truncated", "off-scale", "no-probabilities", "failed", "graded"]

    def rule(question):
        status = statuses[int(question.document_id[1:]) % len(statuses)]
        text = "half a surrogate pair: \ud83d"
        return Answer(status, "verbal", grade=2.0 if status == "graded" else None, low=2.0, high=2.0, text=text)

    result = graded(some_pairs(12), ScriptedJudge(rule=rule), tmp_path / "out")
    assert not result.complete
    assert result.summary.statuses == dict.fromkeys(statuses, 2)
    for row in rows(tmp_path / "out"):
        assert (row["relevance"] is None) == (row["status"] != "graded")
        assert (row["grade"] is None) == (row["status"] != "graded")
        assert row["text"].endswith("?")
    assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet")) == 2


def test_a_later_run_asks_failed_pairs_again_and_with_retry_failed_all_without_a_grade(tmp_path):
    def moody(question):
        status = {0: "refused", 1: "failed"}.get(int(question.document_id[1:]) % 3, "graded")
        return Answer(status, "verbal", grade=1.0 if status == "graded" else None)

    def ids_asked(pairs, **settings):
        judge = ScriptedJudge(rule=moody)
        result = graded(pairs, judge, tmp_path / "out", ledger=tmp_path / "ledger", **settings)
        return sorted(question.document_id for question in judge.asked), result.summary

    pairs = some_pairs(12)
    assert ids_asked(pairs[:9])[1].statuses == {"graded": 3, "refused": 3, "failed": 3}
    assert ids_asked(pairs[:9])[0] == ["d1", "d4", "d7"], "a refusal is an answer"
    ids, summary = ids_asked(pairs, retry_failed=True)
    assert (ids, summary.not_asked) == (["d0", "d1", "d3", "d4", "d6", "d7"], 3)


def test_both_orders_are_asked_and_averaged(tmp_path):
    rubric = "relatedness-1-5"
    given = {"document-query": 3.0, "query-document": 2.0}

    def rule(question):
        value = given[question.variant]
        probabilities = (0.0, 0.0, 0.2, 0.2) if value == 3.0 else (0.1, 0.0, 0.3, 0.0)
        return Answer("graded", "top-logprobs", probabilities, value, value - 0.5, value + 0.5)

    judge = ScriptedJudge(rule=rule)
    result = graded(some_pairs(2), judge, tmp_path / "out", rubric=rubric)
    assert len(judge.asked) == 4
    assert result.complete
    first = rows(tmp_path / "out")[0]
    assert first["grade"] == 2.5
    assert first["relevance"] == pytest.approx(2.5 / 3)  # the scripted judge's scale is 0 to 3
    assert (first["relevance_low"], first["relevance_high"]) == (pytest.approx(2 / 3), pytest.approx(1.0))
    assert first["grade_probs"] == pytest.approx([0.125, 0.0, 0.625, 0.25])
    assert first["mass"] == pytest.approx(0.4)


@pytest.mark.parametrize("ahead", [4, 16])
def test_a_budget_of_dollars_counts_requests_in_flight_and_stops_before_it_is_passed(tmp_path, ahead):
    judge, calls = ScriptedJudge(ahead=ahead), []

    def bars(title, total):
        calls.append((title, total))
        return lambda done, note="", known=0: calls.append((done, note, known))

    result = graded(some_pairs(50), judge, tmp_path / "out", per_million=PRICES, max_usd=0.0205)
    asked = len(judge.asked)
    assert "0.0205 US dollars" in result.summary.stopped
    assert result.summary.usd_of_this_run <= 0.0205
    assert (5 < asked <= 20, result.summary.not_asked) == (True, 50 - asked)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    second = ScriptedJudge()
    assert graded(some_pairs(50), second, tmp_path / "out", bars, per_million=PRICES).complete
    assert len(second.asked) == 50 - asked == sum(done for done, *_ in calls[1:])
    assert (calls[0], sum(known for *_, known in calls[1:])) == (("grade", 50), asked)
    assert calls[-1][1] == f"{50 - asked} graded, {(50 - asked) * 0.001:.4f} US dollars"


def test_samples_of_a_question_count_for_the_budget_before_they_are_asked(tmp_path):
    class Sampling(ScriptedJudge):
        identity = {"model": "m", "mode": "sample", "parameters": {"max_tokens": 1, "samples": 10}}  # noqa: RUF012

    judge = Sampling(ahead=64, usage=Usage(prompt=100, completion=10))
    pairs = [Pair(f"q{i}", "a query", f"d{i}", f"{i} " + "x" * 20) for i in range(200)]  # 100 tokens in 10 samples
    result = graded(pairs, judge, tmp_path / "out", per_million=PRICES, max_usd=0.05)
    assert result.summary.usd_of_this_run <= 0.05 + 1e-9


def test_a_budget_of_0_asks_nothing_and_reads_the_ledger(tmp_path):
    graded(some_pairs(5), ScriptedJudge(), tmp_path / "out")
    judge = ScriptedJudge()
    new_pairs_first = some_pairs(9)[::-1]
    result = graded(new_pairs_first, judge, tmp_path / "out", per_million=PRICES, max_usd=0.0)
    assert not judge.asked
    assert result.summary.statuses == {"graded": 5}
    with pytest.raises(ConfigError, match="max_usd"):
        config_of(per_million=PRICES, max_usd=-1.0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StorageError])
def test_a_stopped_run_keeps_its_answers_and_the_same_call_continues_in_a_moved_folder(tmp_path, stop):
    def rule(question):
        if question.document_id == "d7":
            raise stop("now")
        return Answer("graded", "verbal", grade=1.0, low=1.0, high=1.0)

    with pytest.raises(InterruptedRunError if stop is KeyboardInterrupt else stop):
        graded(some_pairs(20), ScriptedJudge(rule=rule, ahead=1), tmp_path / "out")
    assert len(rows(tmp_path / "out")) == len(rows(tmp_path / "out", "pairs")) == 7
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == ("interrupted" if stop is KeyboardInterrupt else "failed")
    judge, moved = ScriptedJudge(), (tmp_path / "out").rename(tmp_path / "moved")
    assert graded(some_pairs(20), judge, moved).complete
    assert (len(judge.asked), (tmp_path / "out").exists()) == (13, False)


def test_answers_without_a_number_of_tokens_count_for_the_budget_at_a_guess(tmp_path):
    judge = ScriptedJudge(ahead=4, usage=Usage())
    result = graded(some_pairs(50), judge, tmp_path / "out", per_million=PRICES, max_usd=0.001)
    assert "US dollars" in result.summary.stopped
    assert 0 < len(judge.asked) < 50
    assert (result.summary.usd, result.summary.usage_unknown) == (0.0, len(judge.asked))


def test_usage_that_an_older_ledger_holds_makes_no_negative_dollars():
    usage = {"prompt": -3000, "cached": 40, "completion": 1, "reasoning": 5}
    line = json.dumps({"status": "graded", "mode": "verbal", "usage": usage, "probabilities": []})
    assert Answer.from_json(line).usage == Usage(0, 0, 1, 0)


def test_an_estimate_from_the_answers_of_an_earlier_run_asks_and_writes_nothing(tmp_path):
    def rule(question):
        usage = Usage(prompt=50, completion=2)
        return Answer("graded", "verbal", (), 1.0, 1.0, 1.0, "1", usage, seconds=0.5, judge="scripted")

    pairs, judge = some_pairs(100), ScriptedJudge(rule=rule)
    judge.at_once = 20
    config = config_of(per_million=(1000.0, 10_000.0))
    graded(pairs, judge, tmp_path / "out", max_pairs=10)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.*")}
    found = estimate(config, judge, tmp_path / "out", pairs)
    assert (found.pairs, found.questions, found.answered, len(judge.asked)) == (100, 100, 10, 10)
    assert found.counted_by == "answers"
    seen = sum(question.characters for question in judge.asked)
    left = sum(len(pair.query + pair.document) for pair in pairs) - seen
    assert found.prompt_tokens == round(left * 500 / seen)
    assert found.completion_tokens == 180
    assert found.usd == pytest.approx(found.prompt_tokens * 1e-3 + 1.8)
    assert found.seconds == pytest.approx(90 * 0.5 / 20)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.*")} == before


def test_an_estimate_without_answers(tmp_path):
    judge = ScriptedJudge()
    found = estimate(config_of(), judge, tmp_path / "out", some_pairs(10))
    assert not judge.asked
    assert not (tmp_path / "out").exists()
    assert (found.answered, found.counted_by, found.seconds) == (0, "characters", None)
    judge.count_tokens = lambda questions: [len(question.document.split()) for question in questions]
    found = estimate(config_of(), judge, tmp_path / "out", some_pairs(10))
    assert (found.prompt_tokens, found.counted_by) == (19, "tokenizer")  # "document " is one word, and 9 have a second


def test_doubts_are_told_before_the_first_question(tmp_path, caplog):
    judge = ScriptedJudge(rule=lambda _: Answer("graded", "verbal", grade=float(judge.doubts[0] in caplog.text)))
    judge.doubts = ["it grades the capital of France 0.00"]
    graded(some_pairs(3), judge, tmp_path / "out")
    assert [row["grade"] for row in rows(tmp_path / "out")] == [1.0] * 3


SAME = [
    ("gpt-4o", ""),
    ("gpt-4", "gpt-4-0613"),
    ("openai/gpt-4o", "gpt-4o-2024-08-06"),
    ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
    ("gemini-1.5-pro", "models/gemini-1.5-pro-002"),
    ("gemini-2.0-flash-05-06", "gemini-2.0-flash"),
    ("llama3.1", "llama3.1:latest"),
    ("deepseek/deepseek-r1", "deepseek/deepseek-r1:free"),
    ("qwen2.5-7b-instruct", r"C:\\models\\Qwen2.5-7B-Instruct.gguf"),
]
OTHER = [
    ("gpt-4o", "gpt-4o-mini-2024-07-18"),
    ("gpt-4", "gpt-4o"),
    ("gpt-4-0613", "gpt-4-0314"),
    ("llama3:8b", "llama3:70b"),
    ("llama-3", "llama-3-70b"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
]


@pytest.mark.parametrize(("names", "same"), [(names, names in SAME) for names in SAME + OTHER])
def test_a_date_a_folder_or_an_alias_does_not_make_another_model(names, same):
    assert same_model(*names) == same


def test_every_kind_of_token_has_its_price():
    usage = Usage(prompt=1_000_000, cached=400_000, completion=10_000, reasoning=4_000)
    assert Prices(per_million=(2.0, 8.0, 0.5)).usd(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.01 * 8.0)
    assert Prices(per_million=(2.0, 8.0)).usd(usage) == pytest.approx(2.08), "cached tokens cost as others"
    assert Prices().usd(usage) is None


@pytest.mark.parametrize("prices", [[-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [1.0], [1.0] * 4, None])
def test_impossible_prices_are_refused(prices):
    with pytest.raises(ConfigError, match="fix"):
        Prices.load(None, {"per_million": prices, "max_usd": 1 if prices is None else None})
