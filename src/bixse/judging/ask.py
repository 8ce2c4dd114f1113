"""Asking a judge or a text model through the ledger: nothing twice, nothing beyond the budget, nothing lost."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, get_args

from bixse.errors import InputError, shorten
from bixse.judging.judge import Answer, Completion, Dtype, Question, Usage, same_model
from bixse.judging.ledger import Kept, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bixse.judging.grade_settings import Prices
    from bixse.progress import Step

WAIT = 1.0
"""Seconds between two looks at questions that another process is asking."""
_CHARACTERS_A_TOKEN = 2.0
"""For a first guess of a price, before an answer told the tokens: low, so that the guess is high."""
_FIRST_COMPLETION = 16
"""Tokens written, for that guess, where the judge has no limit of its own."""


@dataclass(frozen=True)
class Budget:
    """Where to stop; what was asked until then is kept.

    Raises:
        InputError: a limit below 0 or not finite.
    """

    max_usd: float | None = None
    """Most to spend in this run, in US dollars; requests in flight are counted at the highest price seen."""
    max_questions: int | None = None
    """Most questions to ask in this run."""

    def __post_init__(self) -> None:
        for name, value in (("max_usd", self.max_usd), ("max_questions", self.max_questions)):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: got {value}; expected 0 or more; fix: leave it out for no limit")


@dataclass
class AskProgress:
    """How far it came, and what this run did; the answers themselves are in the ledger."""

    settled: set[str] = field(default_factory=set)
    """Keys of the questions that have an answer that stands, from the ledger or new."""
    asked: int = 0
    """Questions answered in this run."""
    reused: int = 0
    """Questions whose answer was in the ledger."""
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    last: Answer | Completion | None = None
    """The newest answer of this run."""
    other_precision: Counter[str] = field(default_factory=Counter)
    """Number type -> questions asked although the ledger holds this judge's answer with weights of that type."""
    stopped: str | None = None
    """Why it stopped before the end: the limit that was reached; None where everything is answered."""

    @property
    def note(self) -> str:
        """Answers of this run by status and what they cost, for a progress bar."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        return f"{counts}, {self.usd:.4f} US dollars" if self.usd else counts


def ask(
    questions: Iterable[Question],
    answers: Callable[[Iterable[Question]], Iterator[tuple[Question, Kept]]],
    identity: Mapping[str, Any],
    ledger: Ledger[Kept],
    prices: Prices,
    budget: Budget,
    retry_failed: bool = False,
    strict: bool = False,
) -> Iterator[AskProgress]:
    """Answer questions from the ledger, and ask a judge or a text model for the rest.

    Yields the same `AskProgress` after every new answer, so that the caller can show progress or stop; the answer is in
    the ledger by then. Questions that are equal are asked once. A question whose last answer is "failed" (nothing came
    back) is asked again; one with another status only with `retry_failed`, which then asks nothing else.

    Args:
        questions: taken one by one as there is room.
        answers: `Judge.answers` or `TextModel.complete`.
        identity: of the judge or model.
        ledger: where answers are kept.
        prices: for the budget.
        budget: when to stop.
        retry_failed: ask only questions whose answer has no grade.
        strict: take no answer of another model than the one that was asked, neither from the ledger nor a new one.

    Raises:
        InputError: with `strict`, an answer of another model.
    """
    run = _Run(dict(identity), ledger, prices, budget, retry_failed, strict)
    left, others = questions, 0
    while True:
        for question, answer in answers(run.to_ask(left)):
            run.take(question, answer)
            yield run.state
        if not run.asked_by_others or run.state.stopped is not None:
            break
        if len(run.asked_by_others) == others:
            time.sleep(WAIT)
        left, others = list(run.asked_by_others.values()), len(run.asked_by_others)
        run.asked_by_others.clear()
    yield run.state


def keys_of(questions: Iterable[Question], identity: Mapping[str, Any]) -> Iterator[str]:
    """Every key under which `ask` looks for the answers to these questions."""
    identities = [identity, *({**identity, "dtype": dtype} for dtype in _other_dtypes(identity))]
    return (question.key(one) for question in questions for one in identities)


def _other_dtypes(identity: Mapping[str, Any]) -> list[str]:
    """Number types that the same judge may have answered in."""
    own = identity.get("dtype")
    return sorted(set(get_args(Dtype)) - {own, "auto"}) if own else []


def of_another_model(answer: Answer | Completion, identity: Mapping[str, Any]) -> bool:
    """Whether an answer is of another model than the judge's identity names."""
    if identity.get("kind") == "replay":  # whose answers name the judges of the file
        return False
    return not same_model(str(identity.get("model") or answer.judge), answer.judge)


def shown_by(step: Step | None) -> Callable[[AskProgress], None]:
    """Tells a progress callback what is new in each state of `ask`."""
    asked = reused = 0

    def show(state: AskProgress) -> None:
        nonlocal asked, reused
        if step is not None:
            step(state.asked - asked, state.note, state.reused - reused)
            asked, reused = state.asked, state.reused

    return show


@dataclass
class _Run(Generic[Kept]):
    """The state behind `ask`."""

    identity: dict[str, Any]
    ledger: Ledger[Kept]
    prices: Prices
    budget: Budget
    retry_failed: bool
    strict: bool
    state: AskProgress = field(default_factory=AskProgress)
    asked_by_others: dict[str, Question] = field(default_factory=dict)
    """Questions that other processes are asking."""
    in_flight: dict[str, float] = field(default_factory=dict)
    """Key -> dollars that the answer is expected to cost."""
    highest_price: float = 0.0
    guessed: float = 0.0
    """Dollars of answers that came without a number of tokens."""
    started: int = 0

    def to_ask(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Those to ask, each once, until the budget is reached; those that other processes ask are put aside."""
        for question in questions:
            key = question.key(self.identity)
            if key in self.state.settled or key in self.in_flight or key in self.asked_by_others:
                continue
            known = self.ledger.find(key)
            if self._reuse(key, known) or (known is None and self.retry_failed):
                continue
            if not self._affordable(question):
                return
            if not self.ledger.claim(key):
                self.asked_by_others[key] = question
            elif self._reuse(key, self.ledger.find(key)):  # another process has answered it just before
                self.ledger.give_back(key)
            else:
                self._look_beside(question)
                self.in_flight[key] = self._guess(question)
                self.started += 1
                yield question

    def take(self, question: Question, answer: Kept) -> None:
        if self.strict and of_another_model(answer, self.identity):
            raise InputError(
                f"--strict: got an answer of {shorten(answer.judge)}; expected {self.identity.get('model')}, the model "
                "that was asked; fix: name the model that answers with --model, or leave --strict out"
            )
        key = question.key(self.identity)
        self.ledger.write(key, answer, question.query_id, question.document_id, question.variant, question.repeat)
        price, guess = self.prices.usd(answer.usage), self.in_flight.pop(key, 0.0)
        if answer.usage_unknown:
            self.guessed += max(guess, self.highest_price)
        self.highest_price = max(self.highest_price, price)
        self.state.settled.add(key)
        self.state.asked += 1
        self.state.last = answer
        self.state.usage += answer.usage
        self.state.usd += price
        self.state.statuses[answer.status] += 1

    def _reuse(self, key: str, known: Kept | None) -> bool:
        if known is None or (not known.usable and (self.retry_failed or known.status == "failed")):
            return False
        if self.strict and of_another_model(known, self.identity):
            return False
        self.state.settled.add(key)
        self.state.reused += 1
        return True

    def _look_beside(self, question: Question) -> None:
        """Count a question that was answered with weights of another number type."""
        for dtype in _other_dtypes(self.identity):
            if self.ledger.find(question.key({**self.identity, "dtype": dtype})) is not None:
                self.state.other_precision[dtype] += 1

    def _guess(self, question: Question) -> float:
        if self.highest_price:
            return self.highest_price
        parameters = self.identity.get("parameters", {})
        written, samples = parameters.get("max_tokens") or _FIRST_COMPLETION, parameters.get("samples") or 1
        prompt = int(question.characters / _CHARACTERS_A_TOKEN)
        return self.prices.usd(Usage(prompt=prompt, completion=written)) * int(samples)

    def _affordable(self, question: Question) -> bool:
        """Whether there is budget for one more question; says in the state which limit was reached."""
        if self.budget.max_questions is not None and self.started >= self.budget.max_questions:
            self.state.stopped = f"the limit of {self.budget.max_questions} questions was reached"
        in_flight = math.fsum(max(guess, self.highest_price) for guess in self.in_flight.values())
        spent = self.state.usd + self.guessed + in_flight
        if self.budget.max_usd is not None and spent + self._guess(question) > self.budget.max_usd:
            self.state.stopped = f"the limit of {self.budget.max_usd:g} US dollars was reached"
        return self.state.stopped is None
