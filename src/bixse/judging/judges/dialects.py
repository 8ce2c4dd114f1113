"""The dialects of chat servers: how a request is written, and how a reply becomes a grade or a status."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.judging.judge import TEXT_WIDTH, Answer, Mode, Usage
from bixse.judging.judges.endpoints import reported_usage
from bixse.judging.judges.reading import (
    NOT_AVAILABLE,
    OptionProbabilities,
    TextAnswer,
    answer_token,
    expected_grade,
    find_answer,
    option_probabilities,
)

if TYPE_CHECKING:
    from bixse.judging.rubrics import Rubric


ANSWER_TOKENS = 16
"""Default limit of tokens if the first token is not the answer."""
TOP_LOGPROBS = (20, 10, 5)
"""Numbers of alternatives per position, tried in this order until a server accepts one."""
WRITTEN: tuple[Mode, ...] = ("sample", "verbal")
"""Modes in which the grade is the written option, not the probability of its token."""
CONSTRAINTS = {"vllm": "structured_outputs", "llama.cpp": "grammar", "sglang": "regex"}
"""Kind of server -> its parameter for a fixed set of answers."""
MANY_LOGPROBS = 1000
"""Number of alternatives from llama.cpp under a constraint: the options can be far from the first 20."""


@dataclass(frozen=True)
class RequestForm:
    """The part that all requests of a judge share."""

    model: str
    mode: Mode
    labels: tuple[str, ...] = ()
    max_tokens: int = ANSWER_TOKENS
    top_logprobs: int = TOP_LOGPROBS[0]
    """Number of alternatives per position; 0 asks for no probabilities."""
    constraint: str = ""  # a value of `CONSTRAINTS`
    samples: int = 0  # answers per request; 0 for one answer without sampling
    temperature: float | None = 0.0  # None for servers that refuse a temperature
    seeded: bool = False
    system_role: bool = True  # False puts the system text before the user's text
    thinking_off: bool = False
    limit_name: str = "max_tokens"

    @property
    def answer_line(self) -> str:
        """The words after the rubric that ask for a readable answer; empty if the text is not read."""
        words = f"Write your answer alone on the last line: one of {', '.join(self.labels)}."
        return words if self.mode in WRITTEN else ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The settings that decide an answer in addition to the model, as JSON values."""
        return {
            "temperature": self.temperature,
            "top_logprobs": self.top_logprobs or None,
            "max_tokens": self.max_tokens,
            "samples": self.samples or None,
            "constraint": self.constraint or None,
            "system_role": self.system_role,
            "thinking_off": self.thinking_off,
            **({"answer_line": self.answer_line} if self.answer_line else {}),
        }


def chat_messages(form: RequestForm, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the messages for the server; without a system role, system texts precede the user's text."""
    asked = [dict(message) for message in messages]
    if asked and form.answer_line:
        asked[-1]["content"] += f"\n\n{form.answer_line}"
    if form.system_role:
        return asked
    system = [message["content"] for message in asked if message["role"] == "system"]
    others = [message for message in asked if message["role"] != "system"]
    if others and system:
        others[0]["content"] = "\n\n".join([*system, others[0]["content"]])
    return others


def request_body(form: RequestForm, messages: Sequence[Mapping[str, str]], seed: int | None = None) -> dict[str, Any]:
    """Return the JSON body of one chat request."""
    body: dict[str, Any] = {
        "model": form.model,
        "messages": chat_messages(form, messages),
        form.limit_name: form.max_tokens,
    }
    if form.temperature is not None:
        body["temperature"] = form.temperature
    if form.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": form.top_logprobs}
    if form.constraint:
        body[form.constraint] = _constraint(form.constraint, form.labels)
    if form.samples > 1:
        body["n"] = form.samples
    if form.seeded and seed is not None:
        body["seed"] = seed  # else a cache before the model could repeat one sample
    if form.thinking_off:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return body


def _constraint(kind: str, labels: Sequence[str]) -> Any:
    if kind == "structured_outputs":
        return {"choice": list(labels)}
    if kind == "grammar":
        return "root ::= " + " | ".join(json.dumps(label, ensure_ascii=False) for label in labels)
    return "(" + "|".join(re.escape(label) for label in labels) + ")"


def simpler_form(form: RequestForm, refusal: str) -> RequestForm | None:
    """Return the form without the part that the server's message refuses; None if nothing is left to drop."""
    message = refusal.lower()
    if "max_completion_tokens" in message and form.limit_name == "max_tokens":
        return replace(form, limit_name="max_completion_tokens")
    if form.thinking_off and ("chat_template" in message or "thinking" in message):
        return replace(form, thinking_off=False)
    if form.temperature is not None and "temperature" in message:
        return replace(form, temperature=None)
    if form.seeded and "seed" in message:
        return replace(form, seeded=False)
    about_roles = ("system role", "system message", "roles must alternate")
    if form.system_role and any(words in message for words in about_roles):
        return replace(form, system_role=False)
    if form.top_logprobs:
        return replace(form, top_logprobs=next((count for count in TOP_LOGPROBS if count < form.top_logprobs), 0))
    if form.system_role:  # the system text was the obstacle, so begin again
        return replace(form, system_role=False, top_logprobs=0 if form.mode in WRITTEN else TOP_LOGPROBS[0])
    return None


class Position(NamedTuple):
    """A written token and its alternatives."""

    token: str
    alternatives: tuple[tuple[str, float | None], ...]
    """(token text, natural log-probability) of returned tokens; a written token that was not returned comes first."""


class Choice(NamedTuple):
    """One answer of a reply."""

    text: str  # without separate reasoning
    finish_reason: str = "stop"  # or "length", "content_filter"
    positions: tuple[Position, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Reply:
    """A complete reply."""

    choices: tuple[Choice, ...]
    usage: Usage
    model: str = ""
    tries: int = 1
    seconds: float = 0.0  # including the wait for a free endpoint


def parse_reply(content: Any, keep: Callable[[str], str] = str) -> Reply:
    """Read a reply; `keep` replaces texts that may not be shown. Raise ValueError for an incomplete reply."""
    raw = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(raw, list) or not raw:
        raise ValueError("no choices")
    choices = tuple(_choice(choice, keep) for choice in raw)
    return Reply(choices, reported_usage(content), keep(str(content.get("model") or "")))


def read_choices(choices: Sequence[Choice], form: RequestForm, rubric: Rubric) -> Answer:
    """Return the answer from one or several samples in the mode of the form, without tokens, time and model."""
    labels = rubric.labels
    text = " | ".join(choice.text for choice in choices)[:TEXT_WIDTH]
    by_position = form.mode not in WRITTEN
    readings = [
        find_answer(choice.text, labels, choice.finish_reason, choice.refusal, by_position) for choice in choices
    ]
    counts = Counter(answer.label for answer in readings if answer.status == "graded")
    if not counts:
        status, _ = Counter(answer.status for answer in readings).most_common(1)[0]
        several = f"none of {len(readings)} samples gives an option"
        detail = several if form.mode == "sample" else readings[0].detail
        return Answer(status, form.mode, text=text, detail=detail[:TEXT_WIDTH])
    if by_position:
        index = _token_of(readings[0], choices[0])
        if index is None:
            why = "no token is the answer alone" if choices[0].positions else "no tokens came with the answer"
            return Answer("no-probabilities", form.mode, text=text, detail=why)
        options = read_position(choices[0].positions[index], form, labels)
        if options is None:
            return Answer("no-probabilities", form.mode, text=text, detail="these are no probabilities")
    else:
        options = OptionProbabilities(tuple(counts[label] / len(readings) for label in labels))
    return Answer("graded", form.mode, options.probabilities, *expected_grade(rubric.values, options), text)


def answer_position(choice: Choice, labels: Sequence[str]) -> int | None:
    """Return the index of the token that is a choice's answer."""
    answer = find_answer(choice.text, labels, choice.finish_reason, choice.refusal, position_only=True)
    return _token_of(answer, choice) if answer.status == "graded" else None


def _token_of(answer: TextAnswer, choice: Choice) -> int | None:
    return answer_token([position.token for position in choice.positions], choice.text, answer)


def read_position(position: Position, form: RequestForm, labels: Sequence[str]) -> OptionProbabilities | None:
    """Return the options' probabilities at one position; None if they are unusable."""
    usable = [(token, value) for token, value in position.alternatives if value is not None and value > NOT_AVAILABLE]
    if len({token for token, _ in usable}) < 2:  # servers without probabilities write -9999 for the others
        return None
    forced = bool(form.constraint) and form.temperature == 0
    options = option_probabilities(labels, position.alternatives, position.token, forced)
    return options if options is not None and options.mass > 0 else None


def _choice(choice: Any, keep: Callable[[str], str]) -> Choice:
    if not isinstance(choice, dict) or choice.get("error") or not isinstance(choice.get("message"), dict):
        raise ValueError("a choice without a message, or with an error")
    message, finish = choice["message"], str(choice.get("finish_reason") or "stop")
    text, refusal = _text(message.get("content")), keep(_text(message.get("refusal")))
    if keep(text) != text:
        text, refusal = "", keep(text)
    return Choice(text, "length" if finish == "max_tokens" else finish, _positions(choice.get("logprobs")), refusal)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _positions(logprobs: Any) -> tuple[Position, ...]:
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    positions = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            text, top = _token_text(entry.get("token")), entry.get("top_logprobs")
            listed = [each for each in top if type(each) is dict] if isinstance(top, list) else []
            alternatives = [(_token_text(each.get("token")), _number(each.get("logprob"))) for each in listed]
            if text not in [name for name, _ in alternatives]:
                alternatives.insert(0, (text, _number(entry.get("logprob"))))
            positions.append(Position(text, tuple(alternatives)))
    return tuple(positions)


def _token_text(token: Any) -> str:
    """Return the text of a token; some servers keep the tokenizer's marks for a space and a newline."""
    if type(token) is not str:
        return ""
    return token if token.isascii() else token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
