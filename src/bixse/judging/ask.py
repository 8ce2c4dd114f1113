"""Ask a judge or a text model through the ledger: nothing twice, nothing beyond the budget, nothing lost."""

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
_CHARACTERS_A_TOKEN = 2.0  # for the price before any answer reports its tokens; low, so that the guess is high
_FIRST_COMPLETION = 16  # written tokens in that guess if the judge has no limit of its own


@dataclass(frozen=True)
class Budget:
    """Limits of a run. Answers that came before a limit was reached are kept."""

    max_usd: float | None = None
    """US dollars of this run. Requests in flight count at the highest price seen."""
    max_questions: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_usd", self.max_usd), ("max_questions", self.max_questions)):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: got {value}; expected 0 or more; fix: leave it out for no limit")


def keyed(questions: Iterable[Question], identity: Mapping[str, Any]) -> list[tuple[str, Question]]:
    """Return questions with their keys in the ledger."""
    return [(question.key(identity), question) for question in questions]


def of_another_model(answer: Answer | Completion, identity: Mapping[str, Any]) -> bool:
    """Return whether an answer came from another model than the judge's identity names."""
    if identity.get("kind") == "replay":  # replayed answers name the judges of the file
        return False
    return not same_model(str(identity.get("model") or answer.judge), answer.judge)


@dataclass
class Asking(Generic[Kept]):
    """Questions to one judge or text model through a ledger, and the figures of this run.

    Equal questions are asked once. A question whose last answer is "failed" (nothing came back) is asked again.
    A question with another status but no grade is asked again only with `retry_failed`, which asks nothing else.
    """

    answers: Callable[[Iterable[Question]], Iterator[tuple[Question, Kept]]]
    """`Judge.answers` or `TextModel.complete`."""
    identity: Mapping[str, Any]
    ledger: Ledger[Kept]
    prices: Prices
    budget: Budget = field(default_factory=Budget)
    retry_failed: bool = False
    strict: bool = False
    """Refuse answers of a model that was not asked, both in the ledger and new."""

    settled: set[str] = field(default_factory=set)
    """Keys of answered questions, from the ledger or this run."""
    asked: int = 0
    """Questions answered in this run."""
    reused: int = 0
    """Questions with an answer in the ledger."""
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    other_precision: Counter[str] = field(default_factory=Counter)
    """Dtype -> questions asked although the ledger has this judge's answer with weights of that dtype."""
    stopped: str | None = None
    """The limit that was reached, or None."""

    def __post_init__(self) -> None:
        own = self.identity.get("dtype")
        others = sorted(set(get_args(Dtype)) - {own, "auto"}) if own else []
        self._other_dtypes = {dtype: {**self.identity, "dtype": dtype} for dtype in others}
        self._elsewhere: list[tuple[str, Question]] = []  # other processes are asking these
        self._in_flight: dict[str, float] = {}  # key -> dollars that the answer is expected to cost
        self._started, self._highest_price = 0, 0.0
        self._guessed = 0.0  # dollars of answers that came without a number of tokens

    def run(self, questions: Iterable[tuple[str, Question]], step: Step | None = None) -> None:
        """Answer questions from the ledger, and ask the rest; each answer is written the moment it comes."""
        asked = reused = 0
        for _ in self.each(questions):
            if step is not None:
                step(self.asked - asked, self.note, self.reused - reused)
                asked, reused = self.asked, self.reused
        if step is not None:
            step(self.asked - asked, self.note, self.reused - reused)

    @property
    def note(self) -> str:
        """Counts of this run's answers by status, and their price, for a progress bar."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        return f"{counts}, {self.usd:.4f} US dollars" if self.usd else counts

    def load(self, questions: Iterable[tuple[str, Question]]) -> None:
        others = self._other_dtypes.values()
        self.ledger.load(key for own, one in questions for key in (own, *(one.key(other) for other in others)))

    def each(self, questions: Iterable[tuple[str, Question]]) -> Iterator[Kept]:
        """Do the same as `run`, take questions one by one as there is room, and yield the new answers."""
        left, before = questions, 0
        while True:
            for question, answer in self.answers(self._to_ask(left)):
                self._take(question, answer)
                yield answer
            if not self._elsewhere or self.stopped is not None:
                return
            if len(self._elsewhere) == before:
                time.sleep(WAIT)
            left, before, self._elsewhere = self._elsewhere, len(self._elsewhere), []

    def _to_ask(self, questions: Iterable[tuple[str, Question]]) -> Iterator[Question]:
        """Yield the questions to ask, each once, until the budget is reached."""
        elsewhere: set[str] = set()
        for key, question in questions:
            if key in self.settled or key in self._in_flight or key in elsewhere:
                continue
            known = self.ledger.find(key)
            if self._reuse(key, known) or (known is None and self.retry_failed):
                continue
            if not self._affordable(question):
                return
            if not self.ledger.claim(key):
                elsewhere.add(key)
                self._elsewhere.append((key, question))
            elif self._reuse(key, self.ledger.find(key)):  # another process answered between the find and the claim
                self.ledger.give_back(key)
            else:
                for dtype, identity in self._other_dtypes.items():
                    if self.ledger.find(question.key(identity)) is not None:
                        self.other_precision[dtype] += 1
                self._in_flight[key] = self._guess(question)
                self._started += 1
                yield question

    def _take(self, question: Question, answer: Kept) -> None:
        if self.strict and of_another_model(answer, self.identity):
            raise InputError(
                f"--strict: got an answer of {shorten(answer.judge)}; expected {self.identity.get('model')}, the model "
                "that was asked; fix: name the model that answers with --model, or leave --strict out"
            )
        key = question.key(self.identity)
        self.ledger.write(key, answer, question.query_id, question.document_id, question.variant, question.repeat)
        price, guess = self.prices.usd(answer.usage), self._in_flight.pop(key, 0.0)
        if answer.usage_unknown:
            self._guessed += max(guess, self._highest_price)
        self._highest_price = max(self._highest_price, price)
        self.settled.add(key)
        self.asked += 1
        self.usage += answer.usage
        self.usd += price
        self.statuses[answer.status] += 1

    def _reuse(self, key: str, known: Kept | None) -> bool:
        if known is None or (not known.usable and (self.retry_failed or known.status == "failed")):
            return False
        if self.strict and of_another_model(known, self.identity):
            return False
        self.settled.add(key)
        self.reused += 1
        return True

    def _guess(self, question: Question) -> float:
        if self._highest_price:
            return self._highest_price
        parameters = self.identity.get("parameters", {})
        written, samples = parameters.get("max_tokens") or _FIRST_COMPLETION, parameters.get("samples") or 1
        prompt = int(question.characters / _CHARACTERS_A_TOKEN)
        return self.prices.usd(Usage(prompt=prompt, completion=written)) * int(samples)

    def _affordable(self, question: Question) -> bool:
        """Return whether the budget covers one more question; if not, set `stopped`."""
        if self.budget.max_questions is not None and self._started >= self.budget.max_questions:
            self.stopped = f"the limit of {self.budget.max_questions} questions was reached"
        in_flight = math.fsum(max(guess, self._highest_price) for guess in self._in_flight.values())
        spent = self.usd + self._guessed + in_flight
        if self.budget.max_usd is not None and spent + self._guess(question) > self.budget.max_usd:
            self.stopped = f"the limit of {self.budget.max_usd:g} US dollars was reached"
        return self.stopped is None
