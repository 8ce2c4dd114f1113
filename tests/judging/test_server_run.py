"""Thousands of questions through a storm: each ends once, with the grade that was planted or with its status."""

import csv
import json
import random
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bixse.cli.main import main
from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Usage, same_model
from bixse.judging.judges.client import REFUSALS
from bixse.judging.judges.endpoints import RUN, STAND_IN, Secret
from bixse.judging.judges.server_judge import ServerJudge
from helpers.chat_server import chat_server, planted, spellings_of, urlsafe_b64
from helpers.server_questions import RUBRIC, SHARES, ask_all, holds_key, planted_question
from helpers.tiny_judges import save_judge

QUESTIONS = 3_000
ENDS = {  # what is planted -> the status it ends with
    **dict.fromkeys(["", "think", "left-out", "left-out-of-few", "twice", "other-model", "usage 1e999", "usage -3000",
                     "usage NaN", "usage 12.5", "usage 1e15"], "graded"),
    **dict.fromkeys(["9999", "null", "no-logprobs", "written-nan", "written-null", "written-9999"], "no-probabilities"),
    **dict.fromkeys(["none", "negated", "compared", "ambiguous", "off"], "no-option"),
    **dict.fromkeys(["refuse", "message-refusal", "echo-text"], "refused"),
    **dict.fromkeys(["403", "django", "no-such", "402", "echo-error"], "failed"),
    "filter": "filtered", "too-long": "too-long",
}  # fmt: skip
BOUNDED = ("left-out-of-few", "twice")
"""Ends whose grade is not that of all that is known, but has it within its bounds."""
NO_BODY = {"no-logprobs", "too-long", "403", "django", "no-such", "402", "echo-error"}
KEY = "sk/very+secret-0123456789"
ERRORS = ["500", "half", "garbage", "reset", "empty", "null-choices", "429-quota"]


def storm(dice, count=QUESTIONS, ends=tuple(ENDS)):
    """Shares, errors and end of every question."""
    plans = []
    for number in range(count):
        weights = [dice.uniform(0.05, 1.0) for _ in range(4)]
        mass = dice.uniform(0.6, 0.97)
        shares = [mass * weight / sum(weights) for weight in weights]
        errors = [dice.choice(ERRORS) for _ in range(dice.choice([0] * 27 + [1, 1, 2]))]
        if number % 1000 in range(40):  # bursts of refusals, each of which asks to wait
            errors = [dice.choice(["429", "429-date"]), *errors]
        if number % 1000 == 500:
            errors = ["stall"]
        end = dice.choice(ends) if dice.random() < 0.1 else ""
        if end in NO_BODY:  # refused before there is a body to cut in half
            errors = [error for error in errors if error != "half"]
        plans.append((shares, errors, end))
    return plans


def questions(plans):
    return [planted_question(str(number), errors, end, shares) for number, (shares, errors, end) in enumerate(plans)]


@pytest.mark.slow
def test_thousands_of_questions_in_a_storm(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plans = storm(random.Random(7))
    with chat_server() as server:
        address = server.scenario()
        with ServerJudge(address, RUBRIC, JudgeOptions(max_tokens=32, timeout=3.0, concurrency=32)) as judge:
            answers = {int(identifier): answer for identifier, answer in ask_all(judge, questions(plans)).items()}
        stats = server.stats(address)
    wrong = []
    for number, answer in answers.items():
        shares, errors, end = plans[number]
        grade = np.average([0, 1, 2, 3], weights=shares) if ENDS[end] == "graded" else None
        expected = answer.grade if end in BOUNDED else grade
        right = answer.status == ENDS[end] and (expected is None or answer.grade == pytest.approx(expected, abs=1e-6))
        if not right or (grade is not None and not answer.low - 1e-6 <= grade <= answer.high + 1e-6):
            wrong.append((number, end, errors, answer))
        assert (answer.grade is None) == (grade is None)
        assert not holds_key(answer.to_json(), KEY)
        assert (end == "other-model") == (not same_model("judge-model", answer.judge))
        if ENDS[end] == "graded":
            read = (0, 0) if end.startswith("usage") else (50, 40)
            assert answer.usage == Usage(*read, answer.usage.completion)
    assert wrong == []
    assert {answer.mode for answer in answers.values()} == {"top-logprobs"}
    seen = stats["counts"]
    for error, times in Counter(error for _, errors, _ in plans for error in errors).items():
        assert times <= seen[error] <= times + 5, error  # each was met; a time-out of ours may meet one again
    assert stats["most_in_flight"] <= 32 + 2


def pairs_file(folder, count, ends=None):
    """Pairs of which some are planted to end badly."""
    path = folder / f"pairs{count}.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["query_id", "query", "document_id", "document"])
        for number in range(count):
            document = planted(str(number), SHARES, end=(ends or {}).get(number, ""))
            table.writerow(["q", "a query", f"d{number}", document])
    return path


def bixse(capsys, *words):
    capsys.readouterr()
    code = main(["grade", *map(str, words), "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, found


def statuses(out):
    return {row["document_id"]: row["status"] for row in pq.read_table(out / "judgements.parquet").to_pylist()}


class TestPoisonedPairs:
    @pytest.mark.parametrize(
        ("end", "count"), [("403", 1), ("django", 1), ("no-such", 1), ("402", 1), ("403", 4 * REFUSALS)]
    )
    def test_refused_pairs_fail_alone(self, server, tmp_path, capsys, end, count):
        pairs = pairs_file(tmp_path, 40 + count, dict.fromkeys(range(10, 10 + count), end))
        for _ in range(2):  # the second run asks these pairs alone
            code, found = bixse(capsys, "--judge", server.scenario(), "--pairs", pairs, "--out", tmp_path / "o")
            assert (code, found["metrics"]["statuses"]) == (3, {"graded": 40, "failed": count})
            assert statuses(tmp_path / "o")["d10"] == "failed"

    def test_a_key_that_ends_stops_the_run_within_a_few_questions(self, server, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        address = server.scenario(key=KEY, key_until=50)
        pairs = pairs_file(tmp_path, 2000)
        code, found = bixse(capsys, "--judge", address, "--pairs", pairs, "--out", tmp_path / "o", "--concurrency", 8)
        assert code == 2
        assert "OPENAI_API_KEY" in found["errors"][0]
        assert server.stats(address)["counts"]["chat"] < 50 + 8 + 4 * REFUSALS
        server.change(address, key_until=10**9)
        assert bixse(capsys, "--judge", address, "--pairs", pairs, "--out", tmp_path / "o")[0] == 0


class TestKey:
    def test_no_spelling_of_it_is_written(self, server, tmp_path, capsys, monkeypatch):
        """The server repeats it in texts and in messages of errors; all files are searched as text and decoded."""
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        count = 4 * len(spellings_of(KEY))
        ends = {number: ("echo-text", "echo-error")[number % 2] for number in range(count)}
        pairs = pairs_file(tmp_path, count + 1, ends)
        code, found = bixse(capsys, "--judge", server.scenario(key=KEY), "--pairs", pairs, "--out", tmp_path / "o")
        assert code == 3
        assert Counter(statuses(tmp_path / "o").values()) == {"refused": count / 2, "failed": count / 2, "graded": 1}
        assert not holds_key(json.dumps(found), KEY)
        rows = pq.read_table(tmp_path / "o" / "judgements.parquet").to_pylist()
        assert sum(STAND_IN in row["detail"] for row in rows) == count
        (segment,) = (tmp_path / "o" / "ledger").glob("*.parquet")
        kept = pq.read_table(segment)["answer"].to_pylist()
        for text in [*kept, *(str(row) for row in rows)]:
            assert not holds_key(text, KEY), text
        for path in (path for path in (tmp_path / "o").rglob("*") if path.is_file()):
            assert KEY.encode() not in path.read_bytes()

    @given(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=RUN, max_size=60),
        st.data(),
        st.sampled_from([str, str.upper, str.lower]),
    )
    def test_a_run_of_it_drops_a_text_and_a_shorter_part_does_not(self, key, data, case):
        start = data.draw(st.integers(0, len(key) - RUN))
        run = key[start : start + RUN]
        for spelled in (*spellings_of(run), urlsafe_b64(f"{key[:start]}{run}, and more")):
            assert Secret(key).keep(f"it was {case(spelled)}, said the server") == STAND_IN
        assert Secret(key).keep(key[: RUN - 1]) == key[: RUN - 1]

    def test_placeholders_and_other_words_stay(self):
        assert Secret("EMPTY").keep("EMPTY") == "EMPTY"
        assert Secret(KEY).keep("sk/very long secret words") == "sk/very long secret words"


def test_answers_of_another_model_or_without_usage_are_counted_with_a_warning(server, tmp_path, capsys):
    ends = {4: "other-model", 7: "other-model", 9: "usage 1e999", 10: 'usage "many"'}
    words = ["--judge", server.scenario(), "--pairs", pairs_file(tmp_path, 12, ends), "--prices", 1e6, 0]
    for asked in (12, 0):
        code, found = bixse(capsys, *words, "--out", tmp_path / "o")
        metrics = found["metrics"]
        assert (code, metrics["asked"], metrics["other_models"]) == (0, asked, {"cheap-model": 2})
        assert (metrics["usage_unknown"], metrics["usd"]) == (2, pytest.approx(10 * 50))
        assert any("cheap-model" in warning and "judge-model" in warning for warning in found["warnings"])
        assert any("2 answers came without" in warning for warning in found["warnings"])


def test_a_local_judge_is_not_loaded_if_nothing_is_left_to_ask(tmp_path, capsys, monkeypatch):
    import transformers

    judge = ["--judge", save_judge(tmp_path / "judge"), "--pairs", pairs_file(tmp_path, 3), "--rubric", "binary-0-1"]
    words = [*judge, "--out", tmp_path / "o"]
    bixse(capsys, *words)
    monkeypatch.delattr(transformers.AutoModelForCausalLM, "from_pretrained")
    _, again = bixse(capsys, *words)
    assert (again["errors"], again["metrics"]["asked"]) == ([], 0)
    code, dry = bixse(capsys, *words, "--dry-run")
    assert (code, dry["metrics"]["answered"]) == (0, 3)
    code, plan = bixse(capsys, *judge, "--out", tmp_path / "new", "--dry-run")
    assert (code, plan["metrics"]["counted_by"]) == (0, "tokenizer")
