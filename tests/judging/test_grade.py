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
from bixse.judging.ask import Budget
from bixse.judging.estimate import estimate
from bixse.judging.grade import grade
from bixse.judging.grade_settings import GradeSettings, Prices
from bixse.judging.judge import Answer, Usage
from bixse.judging.rubrics import load_rubric
from helpers.scripted_judge import ScriptedJudge, some_pairs

PRICES = Prices(prompt=1e-5)  # an answer of 100 tokens costs 0.001


def rows(out, name="judgements"):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def test_every_pair_gets_the_grade_the_judge_gave_it(tmp_path):
    pairs = some_pairs(30)
    result = grade(pairs, ScriptedJudge(), tmp_path / "out")
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
        grade([], ScriptedJudge(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unusable_answer_has_a_status_and_no_relevance(tmp_path):
    statuses = ["refused", "truncated", "off-scale", "no-probabilities", "ambiguous", "graded"]

    def rule(question):
        status = statuses[int(question.document_id[1:]) % len(statuses)]
        return Answer(status, "verbal", grade=2.0 if status == "graded" else None, low=2.0, high=2.0, text="...")

    result = grade(some_pairs(12), ScriptedJudge(rule=rule), tmp_path / "out")
    assert not result.complete
    assert result.summary["statuses"] == dict.fromkeys(
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
    grade(pairs[:9], ScriptedJudge(rule=moody), tmp_path / "out", ledger=tmp_path / "ledger")
    again = ScriptedJudge()
    grade(pairs[:9], again, tmp_path / "out", ledger=tmp_path / "ledger")
    assert not again.asked, "a refusal is an answer"
    retry = ScriptedJudge()
    result = grade(pairs, retry, tmp_path / "out", ledger=tmp_path / "ledger", retry_failed=True)
    assert sorted(question.document_id for question in retry.asked) == ["d0", "d3", "d6"]
    assert result.summary["statuses"] == {"graded": 9}
    assert result.summary["not_asked"] == 3


def test_a_question_that_nothing_came_back_for_is_asked_again(tmp_path):
    judge = ScriptedJudge(rule=lambda question: Answer("failed", "verbal"))
    assert "pairs" not in grade(some_pairs(3), judge, tmp_path / "out").artifacts
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    judge = ScriptedJudge()
    assert grade(some_pairs(3), judge, tmp_path / "out").complete
    assert len(judge.asked) == 3


def test_a_folder_goes_on_with_the_ledger_it_had(tmp_path):
    pairs = some_pairs(10)
    grade(pairs, ScriptedJudge(), tmp_path / "out", ledger=tmp_path / "shared")
    judge = ScriptedJudge()
    result = grade(pairs, judge, tmp_path / "out", budget=Budget(max_questions=2))
    assert not judge.asked
    assert result.summary["statuses"] == {"graded": 10}


def test_repeats_that_were_not_asked_leave_the_run_open(tmp_path):
    settings = GradeSettings(ask_twice=1.0)
    result = grade(some_pairs(5), ScriptedJudge(), tmp_path / "out", settings, budget=Budget(max_questions=7))
    assert (result.summary["not_asked"], result.summary["repeats_not_asked"]) == (0, 3)
    assert not result.complete
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"


def test_both_orders_are_asked_and_averaged(tmp_path):
    rubric = load_rubric("relatedness-1-5")
    given = {"document-query": 3.0, "query-document": 2.0}

    def rule(question):
        value = given[question.variant]
        probabilities = (0.0, 0.0, 0.2, 0.2) if value == 3.0 else (0.1, 0.0, 0.3, 0.0)
        return Answer("graded", "top-logprobs", probabilities, value, value - 0.5, value + 0.5)

    judge = ScriptedJudge(rule=rule)
    result = grade(some_pairs(2), judge, tmp_path / "out", GradeSettings(rubric=rubric))
    assert len(judge.asked) == 4
    first = result.judgements[0]
    assert first.grade == 2.5
    assert first.relevance == pytest.approx(2.5 / 3)  # the scripted judge's scale is 0 to 3
    assert first.bounds == (pytest.approx(2 / 3), pytest.approx(1.0))
    assert first.probabilities == pytest.approx([0.125, 0.0, 0.625, 0.25])
    assert first.mass == pytest.approx(0.4)


def test_one_order_without_a_grade_leaves_the_pair_without_one(tmp_path):
    def rule(question):
        unusable = question.variant == "query-document" and question.document_id == "d1"
        return Answer("off-scale", "verbal", text="7") if unusable else Answer("graded", "verbal", grade=3.0)

    result = grade(
        some_pairs(2), ScriptedJudge(rule=rule), tmp_path / "o", GradeSettings(rubric=load_rubric("relatedness-1-5"))
    )
    assert [judgement.status for judgement in result.judgements] == ["graded", "off-scale"]
    assert rows(tmp_path / "o")[1]["text"] == "7"


def test_equal_questions_are_asked_once(tmp_path):
    pairs = [Pair(f"q{i}", "the same", f"d{i}", "text") for i in range(5)]
    judge = ScriptedJudge()
    result = grade(pairs, judge, tmp_path / "out")
    assert len(judge.asked) == 1
    assert result.summary["pairs"] == 5
    assert result.complete


def test_a_budget_of_dollars_stops_before_it_is_passed(tmp_path):
    judge = ScriptedJudge(ahead=4)
    result = grade(some_pairs(50), judge, tmp_path / "out", prices=PRICES, budget=Budget(max_usd=0.0205))
    assert "0.0205 US dollars" in result.stopped
    assert result.summary["usd_of_this_run"] <= 0.0205
    assert len(judge.asked) == 20
    assert result.summary["not_asked"] == 30
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
    on = ScriptedJudge()
    assert grade(some_pairs(50), on, tmp_path / "out", prices=PRICES).complete
    assert len(on.asked) == 30


def test_a_budget_counts_what_is_in_flight(tmp_path):
    """Many questions taken ahead: those not yet answered are counted too."""
    judge = ScriptedJudge(ahead=40)
    result = grade(some_pairs(200), judge, tmp_path / "out", prices=PRICES, budget=Budget(max_usd=0.05))
    assert result.summary["usd_of_this_run"] <= 0.05 + 1e-9
    assert len(judge.asked) >= 25


def test_a_budget_of_0_asks_nothing_and_reads_the_ledger(tmp_path):
    grade(some_pairs(5), ScriptedJudge(), tmp_path / "out")
    judge = ScriptedJudge()
    result = grade(some_pairs(9), judge, tmp_path / "out", prices=PRICES, budget=Budget(max_usd=0.0))
    assert not judge.asked
    assert result.summary["statuses"] == {"graded": 5}
    with pytest.raises(InputError, match="max_usd"):
        Budget(max_usd=-1.0)


def test_several_samples_a_question_are_counted_before_they_are_asked(tmp_path):
    class Sampling(ScriptedJudge):
        identity = {"model": "m", "mode": "sample", "parameters": {"max_tokens": 1, "samples": 10}}  # noqa: RUF012

    judge = Sampling(ahead=64, usage=Usage(prompt=100, completion=10))
    pairs = [
        Pair(f"q{i}", "a query", f"d{i}", f"{i} " + "x" * 20) for i in range(200)
    ]  # about 100 tokens in 10 samples
    result = grade(pairs, judge, tmp_path / "out", prices=PRICES, budget=Budget(max_usd=0.05))
    assert result.summary["usd_of_this_run"] <= 0.05 + 1e-9


def test_half_a_surrogate_pair_that_a_server_wrote_does_no_harm(tmp_path):
    rule = lambda question: Answer("graded", "verbal", grade=1.0, low=1.0, high=1.0, text="\ud83d", judge="m\ud83d")  # noqa: E731
    assert grade(some_pairs(2), ScriptedJudge(rule=rule), tmp_path / "out").complete
    assert rows(tmp_path / "out")[0]["text"] == "?"


def test_a_limit_loses_no_row_of_an_earlier_run(tmp_path):
    """The first pairs are new, the last ones known: a run that stops early still writes the known ones."""
    pairs = some_pairs(20)
    grade(pairs[10:], ScriptedJudge(), tmp_path / "a", ledger=tmp_path / "ledger")
    result = grade(pairs, ScriptedJudge(), tmp_path / "b", ledger=tmp_path / "ledger", budget=Budget(max_questions=3))
    assert result.summary["statuses"] == {"graded": 13}
    assert result.summary["not_asked"] == 7


def test_other_settings_are_another_run(tmp_path):
    grade(some_pairs(3), ScriptedJudge(), tmp_path / "out")
    with pytest.raises(OutputExistsError, match="rubric"):
        grade(some_pairs(3), ScriptedJudge(), tmp_path / "out", GradeSettings(rubric=load_rubric("trec-dl-0-3")))


def test_documents_are_cut_for_the_judge_and_whole_in_the_file(tmp_path):
    judge = ScriptedJudge()
    grade(some_pairs(20), judge, tmp_path / "out", GradeSettings(document_characters=12))
    assert {len(question.document) for question in judge.asked} == {9, 10, 11, 12}
    assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet").documents[19]) == 28


def test_pairs_asked_again_show_how_far_the_judge_agrees_with_itself(tmp_path):
    def rule(question):
        value = 1.0 + 0.3 * question.repeat
        return Answer("graded", "verbal", grade=value, low=value, high=value)

    judge = ScriptedJudge(rule=rule)
    result = grade(some_pairs(200), judge, tmp_path / "out", GradeSettings(ask_twice=0.2))
    again = [judgement for judgement in result.judgements if judgement.repeat]
    assert 20 < len(again) < 60
    assert len(judge.asked) == 200 + len(again)
    assert result.summary["mean_change_of_repeats"] == pytest.approx(0.1)
    assert result.summary["pairs"] == 200
    assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet")) == 200
    later = ScriptedJudge(rule=rule)
    grade(some_pairs(200), later, tmp_path / "out")  # without: the same run, nothing to ask
    assert not later.asked
    fewer = GradeSettings(ask_twice=0.1)
    chosen = {j.pair.document_id for j in again}
    assert {p.document_id for p in some_pairs(200) if fewer.is_repeated(p)} < chosen, "a smaller share is a part"


@pytest.mark.parametrize("setting", [{"ask_twice": 1.5}, {"ask_twice": -0.1}, {"document_characters": 0}])
def test_settings_outside_their_range_are_refused(setting):
    with pytest.raises(InputError, match="fix"):
        GradeSettings.load(None, setting)


def test_ctrl_c_keeps_everything_and_the_same_call_goes_on(tmp_path):
    def press():
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.4, press)
    timer.start()
    with pytest.raises(InterruptedRunError, match="goes on from there"):
        grade(some_pairs(100), ScriptedJudge(pause=0.02), tmp_path / "out")
    known = len(rows(tmp_path / "out"))
    assert 0 < known < 100
    assert len(rows(tmp_path / "out", "pairs")) == known
    judge = ScriptedJudge()
    assert grade(some_pairs(100), judge, tmp_path / "out").complete
    assert len(judge.asked) == 100 - known


def test_a_judge_that_breaks_off_leaves_what_it_answered(tmp_path):
    def rule(question):
        if question.document_id == "d7":
            raise StorageError("the server is gone")
        return Answer("graded", "verbal", grade=1.0, low=1.0, high=1.0)

    with pytest.raises(StorageError, match="gone"):
        grade(some_pairs(20), ScriptedJudge(rule=rule, ahead=1), tmp_path / "out")
    assert len(rows(tmp_path / "out")) == 7
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"


def test_an_estimate_from_a_pilot_whose_answers_are_kept(tmp_path):
    pairs, judge = some_pairs(100), ScriptedJudge(usage=Usage(prompt=50, completion=2))
    found = estimate(pairs, judge, tmp_path / "out", prices=Prices(1e-3, 1e-2), pilot=10)
    assert (found.pairs, found.questions, found.answered, found.pilot) == (100, 100, 10, 10)
    assert found.counted_by == "answers"
    seen = sum(question.characters for question in judge.asked)
    left = sum(len(pair.query + pair.document) for pair in pairs) - seen
    assert found.prompt_tokens == round(left * 500 / seen)
    assert found.completion_tokens == 180
    assert found.usd == pytest.approx(found.prompt_tokens * 1e-3 + 1.8)
    assert found.pilot_usd == pytest.approx(10 * (0.05 + 0.02))
    assert found.seconds is not None
    on = ScriptedJudge()
    assert grade(pairs, on, tmp_path / "out").complete
    assert len(on.asked) == 90


def test_a_pilot_leaves_the_tables_of_an_earlier_run(tmp_path):
    grade(some_pairs(60), ScriptedJudge(), tmp_path / "out", budget=Budget(max_questions=40))
    before = (tmp_path / "out" / "judgements.parquet").read_bytes()
    found = estimate(some_pairs(60), ScriptedJudge(), tmp_path / "out")
    assert (found.pilot, found.answered) == (16, 56)
    assert (tmp_path / "out" / "judgements.parquet").read_bytes() == before


def test_the_pilot_of_few_questions_is_small_and_that_of_many_follows_the_judge(tmp_path):
    judge = ScriptedJudge(ahead=40)
    judge.at_once = 40
    assert estimate(some_pairs(100), judge, tmp_path / "few").pilot == 16
    assert estimate(some_pairs(2000), judge, tmp_path / "many").pilot == 120


def test_the_time_is_that_of_answers_after_the_warm_up_at_the_judges_pace(tmp_path):
    """Of 60 answers the first 40 took long: a server that loads its model, connections that are made."""

    def rule(question):
        seconds = 9.0 if len(judge.asked) <= 40 else 0.5
        return Answer("graded", "verbal", (), 1.0, 1.0, 1.0, "1", Usage(100, 0, 1), seconds=seconds, judge="scripted")

    judge = ScriptedJudge(ahead=1, rule=rule)
    judge.at_once = 20
    found = estimate(some_pairs(1000), judge, tmp_path / "out", pilot=60)
    assert found.seconds == pytest.approx(940 * 0.5 / 20)


def test_answers_without_a_number_of_tokens_count_for_the_budget_at_a_guess(tmp_path):
    judge = ScriptedJudge(ahead=4, usage=Usage())
    result = grade(some_pairs(50), judge, tmp_path / "out", prices=PRICES, budget=Budget(max_usd=0.001))
    assert "US dollars" in result.stopped
    assert 0 < len(judge.asked) < 50
    assert (result.summary["usd"], result.summary["usage_unknown"]) == (0.0, len(judge.asked))


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
        result = grade(some_pairs(20), self.judge(3, 5), tmp_path / "out")
        assert result.complete
        assert result.summary["other_models"] == {"cheap": 2}
        again = grade(some_pairs(20), self.judge(), tmp_path / "out")
        assert (again.summary["asked"], again.summary["other_models"]) == (0, {"cheap": 2})

    def test_strict_stops_there_and_keeps_none_of_them(self, tmp_path):
        with pytest.raises(InputError, match=r"--strict.*'cheap'.*expected scripted"):
            grade(some_pairs(20), self.judge(7), tmp_path / "out", strict=True)
        assert {row["judge"] for row in rows(tmp_path / "out")} == {"scripted-2024-08-06"}
        assert len(rows(tmp_path / "out")) == 7

    def test_strict_asks_again_what_another_model_answered_before(self, tmp_path):
        grade(some_pairs(20), self.judge(3, 5), tmp_path / "out")
        with pytest.raises(InputError, match="--strict"):
            grade(some_pairs(20), self.judge(5), tmp_path / "out", strict=True)
        assert len(rows(tmp_path / "out")) == 19, "d3 is answered anew, d5 is left out"
        judge = self.judge()
        result = grade(some_pairs(20), judge, tmp_path / "out", strict=True)
        assert [question.document_id for question in judge.asked] == ["d5"]
        assert (result.complete, result.summary["other_models"]) == (True, {})


def test_an_estimate_without_a_pilot_asks_and_writes_nothing(tmp_path):
    judge = ScriptedJudge()
    found = estimate(some_pairs(10), judge, tmp_path / "out", pilot=0)
    assert not judge.asked
    assert not (tmp_path / "out").exists()
    assert (found.answered, found.counted_by, found.seconds) == (0, "characters", None)


def test_an_estimate_counts_with_the_judges_tokenizer(tmp_path):
    judge = ScriptedJudge()
    judge.count_tokens = lambda questions: [len(question.document.split()) for question in questions]
    found = estimate(some_pairs(10), judge, tmp_path / "out", pilot=0)
    assert (found.prompt_tokens, found.counted_by) == (19, "tokenizer")  # "document " is one word, and 9 have a second


def test_doubts_are_told_before_the_first_question_and_strict_asks_none(tmp_path):
    judge = ScriptedJudge()
    judge.doubts = ["it grades the capital of France 0.00"]
    seen = []

    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.getMessage(), len(judge.asked)))
    logging.getLogger("bixse").addHandler(handler)
    try:
        with pytest.raises(InputError, match="capital of France"):
            grade(some_pairs(3), judge, tmp_path / "out", strict=True)
        assert judge.asked == []
        assert not (tmp_path / "out").exists()
        assert grade(some_pairs(3), judge, tmp_path / "out").complete
    finally:
        logging.getLogger("bixse").removeHandler(handler)
    assert seen == [(judge.doubts[0], 0)] * 2
    assert grade(some_pairs(3), ScriptedJudge(), tmp_path / "sure", strict=True).complete


def test_progress_counts_answers_of_the_ledger_apart_and_names_statuses_and_dollars(tmp_path):
    calls = []

    def bars(title, total):
        calls.append((title, total))
        return lambda done, note="", known=0: calls.append((done, note, known))

    grade(some_pairs(2), ScriptedJudge(), tmp_path / "out", prices=PRICES)
    moody = ScriptedJudge(rule=lambda question: Answer("refused", "verbal", usage=Usage(prompt=100)))
    grade(some_pairs(5), moody, tmp_path / "out", prices=PRICES, progress=bars)
    assert calls[0] == ("grade", 5)
    assert sum(done for done, *_ in calls[1:]) == 3
    assert sum(known for *_, known in calls[1:]) == 2
    assert calls[-1][1] == "3 refused, 0.0030 US dollars"
