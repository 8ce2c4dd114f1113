"""Grading from questions to files, with a judge whose answers are known."""

import json
import logging
import os
import signal
import threading

import pyarrow.parquet as pq
import pytest

from bixse.data.graded_pairs import Pair
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError, InterruptedRunError, OutputExistsError, StorageError
from bixse.judging.grade import estimate
from bixse.judging.judge import Answer, Usage
from helpers.scripted_judge import ScriptedJudge, config_of, graded, some_pairs

PRICES = (10.0, 0.0)  # an answer of 100 tokens costs 0.001


def rows(out, name="judgements"):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def test_every_pair_gets_the_grade_the_judge_gave_it(tmp_path):
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


def test_no_pairs_is_told(tmp_path):
    with pytest.raises(InputError, match="expected at least one"):
        graded([], ScriptedJudge(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unusable_answer_has_a_status_and_no_relevance(tmp_path):
    statuses = ["refused", "truncated", "off-scale", "no-probabilities", "ambiguous", "graded"]

    def rule(question):
        status = statuses[int(question.document_id[1:]) % len(statuses)]
        return Answer(status, "verbal", grade=2.0 if status == "graded" else None, low=2.0, high=2.0, text="...")

    result = graded(some_pairs(12), ScriptedJudge(rule=rule), tmp_path / "out")
    assert not result.complete
    assert result.summary.statuses == dict.fromkeys(
        ["graded", "refused", "truncated", "ambiguous", "off-scale", "no-probabilities"], 2
    )
    for row in rows(tmp_path / "out"):
        assert (row["relevance"] is None) == (row["status"] != "graded")
        assert (row["grade"] is None) == (row["status"] != "graded")
    assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet")) == 2


def test_retry_failed_asks_those_without_a_grade_and_only_those(tmp_path):
    def moody(question):
        number = int(question.document_id[1:])
        return Answer("refused", "verbal") if number % 3 == 0 else Answer("graded", "verbal", grade=1.0)

    pairs = some_pairs(12)
    graded(pairs[:9], ScriptedJudge(rule=moody), tmp_path / "out", ledger=tmp_path / "ledger")
    again = ScriptedJudge()
    graded(pairs[:9], again, tmp_path / "out", ledger=tmp_path / "ledger")
    assert not again.asked, "a refusal is an answer"
    retry = ScriptedJudge()
    result = graded(pairs, retry, tmp_path / "out", ledger=tmp_path / "ledger", retry_failed=True)
    assert sorted(question.document_id for question in retry.asked) == ["d0", "d3", "d6"]
    assert result.summary.statuses == {"graded": 9}
    assert result.summary.not_asked == 3


def test_a_question_that_nothing_came_back_for_is_asked_again(tmp_path):
    judge = ScriptedJudge(rule=lambda question: Answer("failed", "verbal"))
    assert "pairs" not in graded(some_pairs(3), judge, tmp_path / "out").artifacts
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    judge = ScriptedJudge()
    assert graded(some_pairs(3), judge, tmp_path / "out").complete
    assert len(judge.asked) == 3


def test_a_folder_goes_on_with_the_ledger_it_had(tmp_path):
    pairs = some_pairs(10)
    graded(pairs, ScriptedJudge(), tmp_path / "out", ledger=tmp_path / "shared")
    judge = ScriptedJudge()
    result = graded(pairs, judge, tmp_path / "out", max_pairs=2)
    assert not judge.asked
    assert result.summary.statuses == {"graded": 10}


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


def test_one_order_without_a_grade_leaves_the_pair_without_one(tmp_path):
    def rule(question):
        unusable = question.variant == "query-document" and question.document_id == "d1"
        return Answer("off-scale", "verbal", text="7") if unusable else Answer("graded", "verbal", grade=3.0)

    graded(some_pairs(2), ScriptedJudge(rule=rule), tmp_path / "o", rubric="relatedness-1-5")
    assert [row["status"] for row in rows(tmp_path / "o")] == ["graded", "off-scale"]
    assert rows(tmp_path / "o")[1]["text"] == "7"


def test_equal_questions_are_asked_once(tmp_path):
    pairs = [Pair(f"q{i}", "the same", f"d{i}", "text") for i in range(5)]
    judge = ScriptedJudge()
    result = graded(pairs, judge, tmp_path / "out")
    assert len(judge.asked) == 1
    assert result.summary.pairs == 5
    assert result.complete


def test_a_budget_of_dollars_stops_before_it_is_passed(tmp_path):
    judge = ScriptedJudge(ahead=4)
    result = graded(some_pairs(50), judge, tmp_path / "out", per_million=PRICES, max_usd=0.0205)
    assert "0.0205 US dollars" in result.summary.stopped
    assert result.summary.usd_of_this_run <= 0.0205
    assert len(judge.asked) == 20
    assert result.summary.not_asked == 30
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    on = ScriptedJudge()
    assert graded(some_pairs(50), on, tmp_path / "out", per_million=PRICES).complete
    assert len(on.asked) == 30


def test_a_budget_counts_what_is_in_flight(tmp_path):
    """Many questions taken ahead: those not yet answered are counted too."""
    judge = ScriptedJudge(ahead=40)
    result = graded(some_pairs(200), judge, tmp_path / "out", per_million=PRICES, max_usd=0.05)
    assert result.summary.usd_of_this_run <= 0.05 + 1e-9
    assert len(judge.asked) >= 25


def test_a_budget_of_0_asks_nothing_and_reads_the_ledger(tmp_path):
    graded(some_pairs(5), ScriptedJudge(), tmp_path / "out")
    judge = ScriptedJudge()
    result = graded(some_pairs(9), judge, tmp_path / "out", per_million=PRICES, max_usd=0.0)
    assert not judge.asked
    assert result.summary.statuses == {"graded": 5}
    with pytest.raises(ValueError, match="max_usd"):
        config_of(per_million=PRICES, max_usd=-1.0)


def test_several_samples_a_question_are_counted_before_they_are_asked(tmp_path):
    class Sampling(ScriptedJudge):
        identity = {"model": "m", "mode": "sample", "parameters": {"max_tokens": 1, "samples": 10}}  # noqa: RUF012

    judge = Sampling(ahead=64, usage=Usage(prompt=100, completion=10))
    pairs = [
        Pair(f"q{i}", "a query", f"d{i}", f"{i} " + "x" * 20) for i in range(200)
    ]  # about 100 tokens in 10 samples
    result = graded(pairs, judge, tmp_path / "out", per_million=PRICES, max_usd=0.05)
    assert result.summary.usd_of_this_run <= 0.05 + 1e-9


def test_half_a_surrogate_pair_that_a_server_wrote_does_no_harm(tmp_path):
    rule = lambda question: Answer("graded", "verbal", grade=1.0, low=1.0, high=1.0, text="\ud83d", judge="m\ud83d")  # noqa: E731
    assert graded(some_pairs(2), ScriptedJudge(rule=rule), tmp_path / "out").complete
    assert rows(tmp_path / "out")[0]["text"] == "?"


def test_a_limit_loses_no_row_of_an_earlier_run(tmp_path):
    """The first pairs are new, the last ones known: a run that stops early still writes the known ones."""
    pairs = some_pairs(20)
    graded(pairs[10:], ScriptedJudge(), tmp_path / "a", ledger=tmp_path / "ledger")
    result = graded(pairs, ScriptedJudge(), tmp_path / "b", ledger=tmp_path / "ledger", max_pairs=3)
    assert result.summary.statuses == {"graded": 13}
    assert result.summary.not_asked == 7


def test_other_settings_are_another_run(tmp_path):
    graded(some_pairs(3), ScriptedJudge(), tmp_path / "out")
    with pytest.raises(OutputExistsError, match="rubric"):
        graded(some_pairs(3), ScriptedJudge(), tmp_path / "out", rubric="trec-dl-0-3")


def test_ctrl_c_keeps_everything_and_the_same_call_goes_on(tmp_path):
    def press():
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.4, press)
    timer.start()
    with pytest.raises(InterruptedRunError, match="goes on from there"):
        graded(some_pairs(100), ScriptedJudge(pause=0.02), tmp_path / "out")
    known = len(rows(tmp_path / "out"))
    assert 0 < known < 100
    assert len(rows(tmp_path / "out", "pairs")) == known
    judge = ScriptedJudge()
    assert graded(some_pairs(100), judge, tmp_path / "out").complete
    assert len(judge.asked) == 100 - known


def test_a_judge_that_breaks_off_leaves_what_it_answered(tmp_path):
    def rule(question):
        if question.document_id == "d7":
            raise StorageError("the server is gone")
        return Answer("graded", "verbal", grade=1.0, low=1.0, high=1.0)

    with pytest.raises(StorageError, match="gone"):
        graded(some_pairs(20), ScriptedJudge(rule=rule, ahead=1), tmp_path / "out")
    assert len(rows(tmp_path / "out")) == 7
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"


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


class TestAnotherModel:
    """A judge called "scripted" whose answers for some pairs come from "cheap"."""

    @staticmethod
    def judge(*numbers):
        def rule(question):
            name = "cheap" if int(question.document_id[1:]) in numbers else "scripted-2024-08-06"
            return Answer("graded", "verbal", (), 1.0, 1.0, 1.0, "1", Usage(100, 0, 1), judge=name)

        return ScriptedJudge(ahead=1, rule=rule)

    def test_its_answers_are_counted(self, tmp_path):
        result = graded(some_pairs(20), self.judge(3, 5), tmp_path / "out")
        assert result.complete
        assert result.summary.other_models == {"cheap": 2}
        again = graded(some_pairs(20), self.judge(), tmp_path / "out")
        assert (again.summary.asked, again.summary.other_models) == (0, {"cheap": 2})


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


def test_doubts_are_told_before_the_first_question(tmp_path):
    judge = ScriptedJudge()
    judge.doubts = ["it grades the capital of France 0.00"]
    seen = []

    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.getMessage(), len(judge.asked)))
    logging.getLogger("bixse").addHandler(handler)
    try:
        assert graded(some_pairs(3), judge, tmp_path / "out").complete
    finally:
        logging.getLogger("bixse").removeHandler(handler)
    assert seen == [(judge.doubts[0], 0)]


def test_progress_counts_answers_of_the_ledger_apart_and_names_statuses_and_dollars(tmp_path):
    calls = []

    def bars(title, total):
        calls.append((title, total))
        return lambda done, note="", known=0: calls.append((done, note, known))

    graded(some_pairs(2), ScriptedJudge(), tmp_path / "out", per_million=PRICES)
    moody = ScriptedJudge(rule=lambda question: Answer("refused", "verbal", usage=Usage(prompt=100)))
    graded(some_pairs(5), moody, tmp_path / "out", per_million=PRICES, progress=bars)
    assert calls[0] == ("grade", 5)
    assert sum(done for done, *_ in calls[1:]) == 3
    assert sum(known for *_, known in calls[1:]) == 2
    assert calls[-1][1] == "3 refused, 0.0030 US dollars"
