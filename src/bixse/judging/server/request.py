"""How a request to a chat server is formed, and what to leave out when a server refuses a part of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.judging.judge import Mode

ANSWER_TOKENS = 16
"""Tokens a judge may write where its first one is not the answer and nothing else is asked for."""
TOP_LOGPROBS = (20, 10, 5)
"""How many alternatives are asked for per position: the most that a server accepts."""
WRITTEN: tuple[Mode, ...] = ("sample", "verbal")
"""Modes whose grade is the option that is written, and not the probability of its token."""
CONSTRAINTS = ("structured_outputs", "guided_choice", "grammar", "regex")
"""Names under which servers take a fixed set of answers: vLLM, vLLM before 0.12, llama.cpp, SGLang."""
OWN_CONSTRAINT = {"vllm": "structured_outputs", "llama.cpp": "grammar", "sglang": "regex"}
"""Kind of server -> the name it takes now."""

Logprobs = Literal["flag", "number", "none"]
"""How probabilities are asked for: OpenAI's `logprobs: true`, Together's number, not at all."""


@dataclass(frozen=True)
class RequestForm:
    """What every request of a judge has in common."""

    model: str
    mode: Mode
    labels: tuple[str, ...] = ()
    """For a constraint, and for `answer_line`."""
    max_tokens: int = ANSWER_TOKENS
    logprobs: Logprobs = "flag"
    top_logprobs: int = TOP_LOGPROBS[0]
    token_ids: tuple[int, ...] = ()
    constraint: str = ""
    """One of `CONSTRAINTS`, or empty."""
    samples: int = 0
    """Answers asked for in one request; 0 for one without sampling."""
    temperature: float | None = 0.0
    """None where the server takes none."""
    seeded: bool = False
    system_role: bool = True
    """False: the system text stands before the user's."""
    thinking_off: bool = False
    """Ask the chat template to leave out reasoning."""
    limit_name: str = "max_tokens"

    @property
    def answer_line(self) -> str:
        """Our words after the rubric's, in which an answer is asked for that can be read; empty where none is read."""
        words = f"Write your answer alone on the last line: one of {', '.join(self.labels)}."
        return words if self.mode in WRITTEN else ""

    @property
    def parameters(self) -> dict[str, Any]:
        """What decides an answer besides the model, as plain JSON values."""
        return {
            "temperature": self.temperature,
            "top_logprobs": self.top_logprobs if self.logprobs != "none" else None,
            "max_tokens": self.max_tokens,
            "samples": self.samples or None,
            "constraint": self.constraint or None,
            "system_role": self.system_role,
            "thinking_off": self.thinking_off,
            **({"answer_line": self.answer_line} if self.answer_line else {}),
        }


def chat_messages(form: RequestForm, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The messages as the server takes them: system texts merged into the user's where it has no such role."""
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
    """The JSON body of one chat request.

    The seed is sent where the form says so: no cache between here and the model may then give one sample several times.

    Example:
        >>> form = RequestForm("qwen", "top-logprobs", max_tokens=1)
        >>> body = request_body(form, [{"role": "user", "content": "hello"}])
        >>> body["logprobs"], body["top_logprobs"], body["max_tokens"]
        (True, 20, 1)
    """
    body: dict[str, Any] = {
        "model": form.model,
        "messages": chat_messages(form, messages),
        form.limit_name: form.max_tokens,
    }
    if form.temperature is not None:
        body["temperature"] = form.temperature
    if form.logprobs == "flag":
        body |= {"logprobs": True, "top_logprobs": form.top_logprobs}
    elif form.logprobs == "number":
        body["logprobs"] = form.top_logprobs
    if form.token_ids:
        body["logprob_token_ids"] = list(form.token_ids)
    if form.constraint:
        body[form.constraint] = _constraint(form.constraint, form.labels)
    if form.samples > 1:
        body["n"] = form.samples
    if form.seeded and seed is not None:
        body["seed"] = seed
    if form.thinking_off:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return body


def _constraint(kind: str, labels: Sequence[str]) -> Any:
    if kind == "structured_outputs":
        return {"choice": list(labels)}
    if kind == "guided_choice":
        return list(labels)
    if kind == "grammar":
        return "root ::= " + " | ".join(json.dumps(label, ensure_ascii=False) for label in labels)
    return "(" + "|".join(re.escape(label) for label in labels) + ")"


def next_logprobs(form: RequestForm, refused: bool) -> RequestForm:
    """The next way to ask; fewer alternatives may help where a server refused, not where it gave none."""
    fewer = [count for count in TOP_LOGPROBS if count < form.top_logprobs]
    if refused and fewer and form.logprobs != "none":
        return replace(form, top_logprobs=fewer[0])
    order: tuple[Logprobs, ...] = ("flag", "number", "none")
    following = order[order.index(form.logprobs) + 1]
    return replace(form, logprobs=following, top_logprobs=TOP_LOGPROBS[0])


def simpler_form(form: RequestForm, refusal: str) -> RequestForm | None:
    """The same request without what the server refused, as its message says, or None where nothing is left to drop.

    Example:
        >>> form = RequestForm("gemma", "verbal", logprobs="none")
        >>> simpler_form(form, "System role not supported").system_role
        False
    """
    said = refusal.lower()
    if "max_completion_tokens" in said and form.limit_name == "max_tokens":
        return replace(form, limit_name="max_completion_tokens")
    if form.thinking_off and ("chat_template" in said or "thinking" in said):
        return replace(form, thinking_off=False)
    if form.token_ids and "logprob_token_ids" in said:
        return replace(form, token_ids=())
    if form.temperature is not None and "temperature" in said:
        return replace(form, temperature=None)
    if form.seeded and "seed" in said:
        return replace(form, seeded=False)
    if form.system_role and ("system role" in said or "system message" in said or "roles must alternate" in said):
        return replace(form, system_role=False)
    if form.logprobs != "none":
        return next_logprobs(form, refused=True)
    if form.system_role:
        asks: Logprobs = "none" if form.mode in WRITTEN else "flag"
        return replace(form, system_role=False, logprobs=asks)  # the system text was in the way, so begin again
    return None
