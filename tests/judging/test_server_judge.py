import json
from itertools import cycle

import numpy as np
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError
from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Usage
from bixse.judging.judges.client import REFUSALS
from bixse.judging.judges.endpoints import STAND_IN
from bixse.judging.judges.server_judge import ServerJudge
from bixse.judging.rubrics import PromptVariant, Rubric
from helpers.chat_server import planted
from helpers.command import call
from helpers.row_files import jsonl
from helpers.server_questions import GRADE, RUBRIC, SHARES, ask_all, ask_one, planted_question
from helpers.tiny_judges import save_judge

KEY = "sk/very+secret-0123456789"
LIMIT_NAME = {"max_tokens": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}
TEMPERATURE = {"temperature": "Unsupported value: 'temperature' does not support 0 with this model."}
NO_SEED = {"refuses": {"seed": "Extra inputs are not permitted: seed"}}


@pytest.mark.parametrize(
    "settings", [{"known_end": "null"}, {"zeros": True}, {"no_logprobs": True}, {"gives_top": 1}, {"most_top": 4}]
)
def test_without_probabilities_it_says_which_modes_remain(server, settings):
    with pytest.raises(InputError, match=r"no usable probabilities.*--mode sample.*--mode verbal"):
        ServerJudge(server.scenario(**settings), RUBRIC)


@pytest.mark.parametrize(("most", "found"), [(20, 20), (19, 10), (10, 10), (5, 5)])
def test_the_most_alternatives_that_are_accepted(server, most, found):
    with ServerJudge(server.scenario(most_top=most), RUBRIC) as judge:
        assert judge.identity["parameters"]["top_logprobs"] == found
        answer = ask_one(judge, [0.02, 0.3, 0.3, 0.3])
    true = np.average([0, 1, 2, 3], weights=[0.02, 0.3, 0.3, 0.3])
    assert answer.low is not None and answer.high is not None
    assert answer.low <= true <= answer.high


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"system": False}, {"system_role": False}),
        pytest.param({"system": False, "system_status": 500}, {"system_role": False}, marks=pytest.mark.slow),
        pytest.param({"known_errors": ["500"] * 6}, {"top_logprobs": 20, "max_tokens": 1}, marks=pytest.mark.slow),
        ({"system": False, "system_says": "Conversation roles must alternate user/assistant"}, {"top_logprobs": 20}),
        ({"system": False, "system_says": "no"}, {"system_role": False, "top_logprobs": 20}),
        ({"options": {"max_tokens": 64}, "prefix": "well, " * 20 + "\nAnswer: "}, {"max_tokens": 64}),
        ({"thinks": True}, {"thinking_off": True, "max_tokens": 1}),
        ({"thinks": True, "thinking_switch": False}, {"thinking_off": False, "max_tokens": 16}),
        ({"prefix": "Answer: "}, {"max_tokens": 16, "thinking_off": False}),
        ({"prefix": "\n"}, {"max_tokens": 16}),
        ({"refuses": LIMIT_NAME}, {"max_tokens": 1}),
        ({"refuses": TEMPERATURE}, {"temperature": None}),
        ({"most_top": 5, "system": False, "refuses": LIMIT_NAME | TEMPERATURE},
         {"top_logprobs": 5, "system_role": False, "temperature": None, "max_tokens": 1}),
        ({"suffix": ". It says so"}, {"max_tokens": 1}),
        ({}, {"max_tokens": 1, "top_logprobs": 20, "system_role": True, "temperature": 0.0, "thinking_off": False}),
    ],
)  # fmt: skip
def test_the_form_of_requests_fits_the_server(server, settings, parameters):
    options = JudgeOptions(**settings.pop("options", {}))
    with ServerJudge(server.scenario(**settings), RUBRIC, options) as judge:
        assert parameters.items() <= judge.identity["parameters"].items() and judge.warnings == []
        if "most_top" not in settings:
            answer = ask_one(judge)
            assert answer.status == "graded"
            assert "temperature" in parameters or answer.grade == pytest.approx(GRADE)


@pytest.mark.parametrize("kind", ["structured_outputs", "grammar", "regex"])
def test_constrained_where_only_that_answers(server, kind):
    with ServerJudge(server.scenario(known_end="none", constraint=kind), RUBRIC) as judge:
        assert judge.identity["mode"] == "constrained"
        assert judge.identity["parameters"]["constraint"] == kind
        answer = ask_one(judge, end="none")
    assert (answer.status, answer.mode) == ("graded", "constrained")
    assert answer.grade == pytest.approx(GRADE)


def test_constrained_is_believed_only_where_it_is_obeyed(server):
    with ServerJudge(server.scenario(constraint="grammar"), RUBRIC) as judge:
        assert judge.identity["mode"] == "top-logprobs", "nothing is constrained where the answer is found"
    with pytest.raises(InputError, match=r"no-option.*expected one of 0, 1, 2, 3"):
        ServerJudge(server.scenario(known_end="none"), RUBRIC)


@pytest.mark.parametrize("settings", [{}, {"ignores_n": True}, {"most_n": 2}, NO_SEED])
def test_samples(server, settings):
    address = server.scenario(no_logprobs=True, **settings)
    with ServerJudge(address, RUBRIC, JudgeOptions(mode="sample", samples=40)) as judge:
        assert judge.identity["parameters"]["samples"] == 40
        answer = ask_one(judge, [0.5, 0.0, 0.0, 0.3])
        again = ask_one(judge, [0.5, 0.0, 0.0, 0.3], repeat=1)
    assert (answer.status, answer.mode) == ("graded", "sample")
    shares = np.array(answer.probabilities)
    assert np.allclose(shares * 40, np.round(shares * 40))
    assert shares == pytest.approx([0.5, 0.0, 0.0, 0.3], abs=0.25)
    assert (again.probabilities == answer.probabilities) == (settings == NO_SEED)  # this server draws by the seed
    assert answer.grade == pytest.approx(np.average([0, 1, 2, 3], weights=shares))
    assert answer.low == answer.grade == answer.high
    assert answer.usage.completion >= 40


def test_a_refused_sample_leaves_no_grade_and_the_price_of_the_others(server):
    address = server.scenario(no_logprobs=True, ignores_n=True)
    with ServerJudge(address, RUBRIC, JudgeOptions(mode="sample", samples=10, concurrency=1)) as judge:
        answer = ask_one(judge, errors=["", "", "400"])
    assert (answer.status, answer.tries, answer.usage.prompt) == ("failed", 10, 9 * 50)


def test_options_of_several_letters_must_be_single_tokens(server):
    labels = ["1", "5", "10"]
    variant = PromptVariant(name="o", user="Query: {query}\n\nPassage: {document}")
    rubric = Rubric(name="wide", labels=labels, values=(0.0, 1.0, 2.0), variants=(variant,))
    for scenario in ({"labels": labels, "split_labels": ["10"]}, {"labels": ["1", "5", "7"]}):
        with pytest.raises(InputError, match="label '10'"):
            ServerJudge(server.scenario(**scenario), rubric)
    with ServerJudge(server.scenario(labels=labels), rubric) as judge:  # seen whole among the alternatives
        answer = ask_one(judge, [0.1, 0.2, 0.6], rubric=rubric)
    assert answer.text == "10"
    assert answer.grade == pytest.approx(np.average([0, 1, 2], weights=[0.1, 0.2, 0.6]))
    with ServerJudge(server.scenario(labels=labels, split_labels=["10"]), rubric, JudgeOptions(mode="verbal")) as judge:
        answer = ask_one(judge, [0.1, 0.2, 0.6], rubric=rubric)  # a written option needs no token of its own
    assert (answer.probabilities, answer.grade, answer.mode) == ((0.0, 0.0, 1.0), 2.0, "verbal")


@pytest.mark.parametrize(
    ("settings", "options", "fact"),
    [
        ({"known_end": "refuse"}, {}, "expected one of 0, 1, 2, 3"),
        ({"context": 10}, {}, "maximum context length"),
        ({"prefix": "well, " * 20 + "it is clear that the answer is "}, {}, "--max-tokens"),
        ({"models": ["a", "b"]}, {"model": "c"}, "The model `c` does not exist"),
    ],
)
def test_a_server_that_cannot_judge_is_refused(server, settings, options, fact):
    with pytest.raises(InputError) as caught:
        ServerJudge(server.scenario(**settings), RUBRIC, JudgeOptions(**options))
    assert fact in str(caught.value)


@pytest.mark.parametrize(("known", "doubt"), [(0.03, "grades are unreliable"), (0.02, "do not trust")])
def test_a_judge_without_knowledge_has_doubts(server, known, doubt):
    with ServerJudge(server.scenario(known=known), RUBRIC) as judge:
        assert any(doubt in warning for warning in judge.warnings)


def test_the_identity_does_not_depend_on_address_concurrency_and_timeout(server):
    settings = [{"concurrency": 2}, {"timeout": 60}, {"model": "judge-model"}]
    scenarios = [{}, {}, {"no_list": True}]
    identities = []
    for scenario, options in zip(scenarios, settings, strict=True):
        with ServerJudge(server.scenario(**scenario), RUBRIC, JudgeOptions(**options)) as judge:
            identities.append(dict(judge.identity) | {"server": ""})
    assert identities[0] == identities[1] == identities[2]
    assert identities[0]["labels"] == list(RUBRIC.labels)


ENDS = {  # what is planted -> the status it ends with
    "null": "no-probabilities", "no-logprobs": "no-probabilities", "none": "no-option", "off": "no-option",
    "refuse": "refused", "message-refusal": "refused", "403": "failed", "odd-400": "failed", "filter": "filtered",
    "too-long": "too-long", "cut": "truncated", "think": "graded",
}  # fmt: skip
ERRORS = [["500", "500"], ["503"] * 3, ["half"], ["garbage"], ["reset"] * 2, ["empty"], ["429"], ["429-after-0.05"] * 7]


def test_in_a_storm_each_question_ends_once_with_its_planted_grade_or_status(server, monkeypatch):
    """Errors before the answer are tried again; a busy server costs no try; no answer holds the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    dice, ends, errors, asked, expected = np.random.default_rng(7), cycle(ENDS), cycle(ERRORS), [], {}
    for number in range(400):
        shares = (dice.uniform(0.6, 0.97) * dice.dirichlet(np.full(4, 3.0))).tolist()
        end = next(ends) if number % 8 == 0 else ""
        before = next(errors) if number % 5 == 1 and not end else []
        grade = np.average([0, 1, 2, 3], weights=shares)
        expected[str(number)] = (ENDS.get(end, "graded"), shares, grade, len(before) + 1)
        asked.append(planted_question(str(number), before, end, shares))
    address = server.scenario(key=KEY)
    with ServerJudge(address, RUBRIC, JudgeOptions(max_tokens=32, concurrency=32)) as judge:
        answers = ask_all(judge, asked)
    for number, answer in answers.items():
        status, shares, grade, tries = expected[number]
        assert (answer.status, answer.tries) == (status, tries), (number, answer)
        assert answer.mode == "top-logprobs", "never changed silently"
        assert KEY not in answer.to_json()
        if status == "graded":
            assert answer.grade == pytest.approx(grade, abs=1e-6)
            assert answer.probabilities == pytest.approx(shares, abs=1e-6)
            assert answer.low - 1e-6 <= grade <= answer.high + 1e-6
            assert answer.usage == Usage(50, 40, answer.usage.completion) and answer.judge == "judge-model"
        else:
            assert (answer.grade, answer.probabilities) == (None, ()) and answer.detail
    assert server.stats(address)["most_in_flight"] <= 32


def pairs_file(folder, count, ends=None):
    """Pairs of which some are planted to end badly."""
    rows = [
        {"query_id": "q", "query": "a query", "document_id": f"d{number}",
         "document": planted(str(number), SHARES, end=(ends or {}).get(number, ""))}
        for number in range(count)
    ]  # fmt: skip
    return jsonl(folder / "pairs.jsonl", *rows)


def test_refused_pairs_fail_alone_and_no_file_holds_the_key(server, tmp_path, capsys, monkeypatch):
    """The server repeats the key in refusals and in messages of errors."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ends = {
        **dict.fromkeys(range(10, 10 + 4 * REFUSALS), "403"),
        **dict.fromkeys((40, 42), "odd-400"),
        **dict.fromkeys((41, 43), "message-refusal"),
    }
    pairs, out = pairs_file(tmp_path, 50, ends), tmp_path / "out"
    statuses = {"graded": 26, "failed": 4 * REFUSALS + 2, "refused": 2}
    for _ in range(2):  # the second run asks the failed pairs alone
        code, found = call(capsys, "grade", "--judge", server.scenario(key=KEY), "--pairs", pairs, "--out", out)
        assert (code, found["metrics"]["statuses"]) == (3, statuses)
    assert found["metrics"]["asked"] == statuses["failed"]
    rows = pq.read_table(out / "judgements.parquet").to_pylist()
    assert sum(STAND_IN in row["detail"] for row in rows) == 4
    stored = [pq.read_table(segment).to_pylist() for segment in (out / "ledger").glob("*.parquet")]
    assert KEY not in json.dumps([found, rows, stored])
    assert not any(KEY.encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_answers_of_another_model_or_without_usage_are_counted_with_a_warning(server, tmp_path, capsys):
    ends = {4: "other-model", 7: "other-model", 9: "usage 1e999", 10: 'usage "many"'}
    words = ["--judge", server.scenario(), "--pairs", pairs_file(tmp_path, 12, ends), "--prices", 1e6, 0]
    for asked in (12, 0):
        code, found = call(capsys, "grade", *words, "--out", tmp_path / "o")
        metrics = found["metrics"]
        assert (code, metrics["asked"], metrics["other_models"]) == (0, asked, {"cheap-model": 2})
        assert (metrics["usage_unknown"], metrics["usd"]) == (2, pytest.approx(10 * 50))
        assert any("cheap-model" in warning and "judge-model" in warning for warning in found["warnings"])
        assert any("2 answers came without" in warning for warning in found["warnings"])


def test_a_local_judge_is_not_loaded_if_nothing_is_left_to_ask(tmp_path, capsys, monkeypatch):
    import transformers

    judge = ["--judge", save_judge(tmp_path / "judge"), "--pairs", pairs_file(tmp_path, 3), "--rubric", "binary-0-1"]
    words = ["grade", *judge, "--out", tmp_path / "o"]
    call(capsys, *words)
    monkeypatch.delattr(transformers.AutoModelForCausalLM, "from_pretrained")
    _, again = call(capsys, *words)
    assert (again["errors"], again["metrics"]["asked"]) == ([], 0)
    code, dry = call(capsys, *words, "--dry-run")
    assert (code, dry["metrics"]["answered"]) == (0, 3)
    code, plan = call(capsys, "grade", *judge, "--out", tmp_path / "new", "--dry-run")
    assert (code, plan["metrics"]["counted_by"]) == (0, "tokenizer")
