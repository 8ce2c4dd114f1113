"""What the probe finds at servers of every kind, over real sockets."""

import numpy as np
import pytest

from bixse.errors import BixseError, InputError
from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judges.server_judge import ServerJudge
from bixse.judging.rubrics import PromptVariant, Rubric
from helpers.chat_server import planted
from helpers.server_questions import GRADE, RUBRIC, SHARES, ask_one


@pytest.mark.parametrize("dialect", ["openai", "marks"])
def test_every_dialect_gives_the_planted_grade(server, dialect):
    with ServerJudge(server.scenario(dialect=dialect), RUBRIC) as judge:
        assert judge.identity["mode"] == "top-logprobs"
        assert judge.identity["parameters"]["max_tokens"] == 1
        assert judge.warnings == []
        answer = ask_one(judge, planted("a", SHARES))
    assert (answer.status, answer.mode, answer.text, answer.judge) == ("graded", "top-logprobs", "2", "judge-model")
    assert answer.grade == pytest.approx(GRADE)
    assert answer.probabilities == pytest.approx(SHARES)
    assert (answer.low, answer.high) == pytest.approx((GRADE, GRADE))  # nothing of weight is left out
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.completion, answer.tries) == (50, 40, 1, 1)


@pytest.mark.parametrize(
    "settings",
    [*({"dialect": name} for name in ("ignore", "null", "zeros", "minus")),
     {"no_logprobs": True}, {"gives_top": 1}, {"most_top": 4}],
)  # fmt: skip
def test_without_probabilities_it_says_which_modes_remain(server, settings):
    with pytest.raises(InputError, match=r"no usable probabilities.*--mode sample.*--mode verbal"):
        ServerJudge(server.scenario(**settings), RUBRIC)


@pytest.mark.parametrize(("most", "found"), [(20, 20), (19, 10), (10, 10), (5, 5)])
def test_the_most_alternatives_that_are_accepted(server, most, found):
    with ServerJudge(server.scenario(most_top=most), RUBRIC) as judge:
        assert judge.identity["parameters"]["top_logprobs"] == found
        answer = ask_one(judge, planted("a", [0.02, 0.3, 0.3, 0.3]))
    true = np.average([0, 1, 2, 3], weights=[0.02, 0.3, 0.3, 0.3])
    assert answer.low is not None and answer.high is not None
    assert answer.low <= true <= answer.high


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"system": False}, {"system_role": False}),
        pytest.param({"system": False, "system_status": 500}, {"system_role": False}, marks=pytest.mark.slow),
        ({"system": False, "system_says": "no"}, {"system_role": False, "top_logprobs": 20}),
        ({"options": {"max_tokens": 64}, "prefix": "well, " * 20 + "\nAnswer: "}, {"max_tokens": 64}),
        ({"thinking": "tags"}, {"thinking_off": True, "max_tokens": 1}),
        ({"thinking": "tags", "thinking_switch": False}, {"thinking_off": False, "max_tokens": 16}),
        ({"thinking": "separate", "thinking_switch": False}, {"thinking_off": False, "max_tokens": 16}),
        ({"prefix": "Answer: "}, {"max_tokens": 16, "thinking_off": False}),
        ({"prefix": "\n"}, {"max_tokens": 16}),
        ({"limit_name": True}, {"max_tokens": 1}),
        ({"no_temperature": True}, {"temperature": None}),
        ({"most_top": 5, "system": False, "limit_name": True, "no_temperature": True},
         {"top_logprobs": 5, "system_role": False, "temperature": None, "max_tokens": 1}),
        ({"suffix": ". It says so"}, {"max_tokens": 1}),
    ],
)  # fmt: skip
def test_the_form_of_requests_fits_the_server(server, settings, parameters):
    options = JudgeOptions(**settings.pop("options", {}))
    with ServerJudge(server.scenario(**settings), RUBRIC, options) as judge:
        assert parameters.items() <= judge.identity["parameters"].items()
        if "most_top" not in settings:
            answer = ask_one(judge, planted("a", SHARES))
            assert answer.status == "graded"
            assert "temperature" in parameters or answer.grade == pytest.approx(GRADE)


@pytest.mark.parametrize("kind", ["structured_outputs", "grammar", "regex"])
def test_constrained_where_only_that_answers(server, kind):
    with ServerJudge(server.scenario(known_end="none", constraint=kind), RUBRIC) as judge:
        assert judge.identity["mode"] == "constrained"
        assert judge.identity["parameters"]["constraint"] == kind
        answer = ask_one(judge, planted("a", SHARES, end="none"))
    assert (answer.status, answer.mode) == ("graded", "constrained")
    assert answer.grade == pytest.approx(GRADE)


def test_constrained_is_believed_only_where_it_is_obeyed(server):
    with ServerJudge(server.scenario(constraint="grammar"), RUBRIC) as judge:
        assert judge.identity["mode"] == "top-logprobs", "nothing is constrained where the answer is found"
    with pytest.raises(InputError, match=r"no-option.*expected one of 0, 1, 2, 3"):
        ServerJudge(server.scenario(known_end="none"), RUBRIC)


@pytest.mark.parametrize("settings", [{}, {"ignores_n": True}, {"most_n": 2}, {"no_seed": True}])
def test_samples(server, settings):
    address = server.scenario(no_logprobs=True, **settings)
    with ServerJudge(address, RUBRIC, JudgeOptions(mode="sample", samples=40)) as judge:
        assert judge.identity["parameters"]["samples"] == 40
        answer = ask_one(judge, planted("a", [0.5, 0.0, 0.0, 0.3]))
        again = ask_one(judge, planted("a", [0.5, 0.0, 0.0, 0.3]), repeat=1)
    assert (answer.status, answer.mode) == ("graded", "sample")
    shares = np.array(answer.probabilities)
    assert np.allclose(shares * 40, np.round(shares * 40))
    assert shares == pytest.approx([0.5, 0.0, 0.0, 0.3], abs=0.25)
    assert (again.probabilities == answer.probabilities) == ("no_seed" in settings)  # this server draws by the seed
    assert answer.grade == pytest.approx(np.average([0, 1, 2, 3], weights=shares))
    assert answer.low == answer.grade == answer.high
    assert answer.usage.completion >= 40


def test_verbal(server):
    with ServerJudge(server.scenario(no_logprobs=True), RUBRIC, JudgeOptions(mode="verbal")) as judge:
        answer = ask_one(judge, planted("a", [0.1, 0.2, 0.4, 0.3]))
        assert judge.identity["mode"] == "verbal"
        assert "last line" in judge.identity["parameters"]["answer_line"]
    assert (answer.probabilities, answer.grade, answer.mode) == ((0.0, 0.0, 1.0, 0.0), 2.0, "verbal")


def test_options_of_several_letters_must_be_single_tokens(server):
    labels = ["1", "5", "10"]
    variant = PromptVariant(name="o", user="Query: {query}\n\nPassage: {document}")
    rubric = Rubric(name="wide", labels=labels, values=(0.0, 1.0, 2.0), variants=(variant,))
    for scenario in ({"labels": labels, "split_labels": ["10"]}, {"labels": ["1", "5", "7"]}):
        with pytest.raises(InputError, match="label '10'"):
            ServerJudge(server.scenario(**scenario), rubric)
    with ServerJudge(server.scenario(labels=labels), rubric) as judge:  # seen whole among the alternatives
        answer = ask_one(judge, planted("a", [0.1, 0.2, 0.6]), rubric)
    assert answer.text == "10"
    assert answer.grade == pytest.approx(np.average([0, 1, 2], weights=[0.1, 0.2, 0.6]))
    with ServerJudge(server.scenario(labels=labels, split_labels=["10"]), rubric, JudgeOptions(mode="verbal")):
        pass  # needs no tokens


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("off", "no-option"),
        ("refuse", "truncated"),
        ("message-refusal", "refused"),
        ("filter", "filtered"),
        ("null", "no-probabilities"),
        ("no-logprobs", "no-probabilities"),
        ("too-long", "too-long"),
        ("odd-400", "failed"),
        ("think", "truncated"),
    ],
)
def test_every_end_without_a_grade_has_its_status(server, end, status):
    with ServerJudge(server.scenario(), RUBRIC) as judge:
        answer = ask_one(judge, planted("a", SHARES, end=end))
    assert (answer.status, answer.grade, answer.probabilities) == (status, None, ())
    assert answer.detail
    assert answer.mode == "top-logprobs"  # never changed silently


@pytest.mark.parametrize(
    ("settings", "options", "fact"),
    [
        ({"models": ["a", "b"]}, {}, "2 models (a, b)"),
        ({"no_list": True}, {}, "no list of models"),
        ({"known_end": "refuse"}, {}, "expected one of 0, 1, 2, 3"),
        ({"context": 10}, {}, "maximum context length"),
        ({"prefix": "well, " * 20 + "it is clear that the answer is "}, {}, "--max-tokens"),
        ({}, {"model": "judge-mode"}, "judge-model, the model it serves"),
        ({"models": ["a", "b"]}, {"model": "c"}, "The model `c` does not exist"),
    ],
)
def test_a_server_that_cannot_judge_is_refused(server, settings, options, fact):
    with pytest.raises(InputError) as caught:
        ServerJudge(server.scenario(**settings), RUBRIC, JudgeOptions(**options))
    assert fact in str(caught.value)


def test_an_absent_server_is_named():
    with pytest.raises(BixseError, match=r"localhost:1/v1: got no answer"):
        ServerJudge("http://localhost:1", RUBRIC)


@pytest.mark.parametrize(("known", "doubt"), [(0.03, "rest on little"), (0.02, "do not trust")])
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
