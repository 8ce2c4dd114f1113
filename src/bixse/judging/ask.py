"""Ask a judge or a text model through the ledger: no question twice, no cost above the budget, no answer lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from bixse.judging.judge import Answer, Completion, Question, Usage, same_model
from bixse.judging.ledger import Ledger, Record
from bixse.judging.spending import Spending, guessed_usage

if TYPE_CHECKING:
    from bixse.progress import Step

WAIT = 1.0
"""Seconds between two looks at questions that another process is asking."""


def keyed(questions: Iterable[Question], identity: Mapping[str, Any]) -> list[tuple[str, Question]]:
    """Return questions with their keys in the ledger."""
    return [(question.key(identity), question) for question in questions]


def of_another_model(answer: Answer | Completion, identity: Mapping[str, Any]) -> bool:
    """Return whether an answer came from another model than the judge's identity names."""
    if identity.get("kind") == "replay":  # replayed answers name the judges of the file
        return False
    return not same_model(str(identity.get("model") or answer.judge), answer.judge)


@dataclass
class Asking(Generic[Record]):
    """Questions to one judge or text model through a ledger, and the figures of this run.

    `asked` counts questions that were answered in this run, `reused` those with an answer in the ledger; `settled` has
    the keys of both, `stopped` the limit that was reached.

    Equal questions are asked once. A question whose last answer is "failed" (nothing came back) is asked again.
    A question with another status but no grade is asked again only with `retry_failed`, which asks nothing else.
    """

    answers: Callable[[Iterable[Question]], Iterator[tuple[Question, Record]]]
    """`Judge.answers` or `ServerTextModel.complete`."""
    identity: Mapping[str, Any]
    ledger: Ledger[Record]
    spending: Spending
    """Prices, and the budget of all runs; questions in flight count at the highest price seen."""
    max_questions: int | None = None
    retry_failed: bool = False

    settled: set[str] = field(default_factory=set)
    asked: int = 0
    reused: int = 0
    usage: Usage = field(default_factory=Usage)
    statuses: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._elsewhere: list[tuple[str, Question]] = []  # other processes are asking these
        self._before, self._in_flight = self.spending.spent(), set[str]()
        self._highest_price, self._highest_guess = 0.0, 0.0
        self._is_short = False  # the budget had no room for a question in addition to the ones in flight

    def run(self, questions: Sequence[tuple[str, Question]], step: Step | None = None) -> None:
        """Answer questions from the ledger, and ask the rest; each answer is written the moment it comes."""
        self.ledger.load(key for key, _ in questions)
        left, before, asked, reused = questions, 0, 0, 0
        while True:
            self._is_short, asked_before = False, self.asked
            for question, answer in self.answers(self._to_ask(left)):
                self._take(question, answer)
                if step is not None:
                    step(self.asked - asked, self.note, self.reused - reused)
                    asked, reused = self.asked, self.reused
            is_idle = self.asked == asked_before and not self._in_flight
            while self._in_flight:  # without an answer, since the limit left no room for a try
                self.ledger.give_back(self._in_flight.pop())
                self._is_short = True
            self._reserve()
            if self._is_short and is_idle:
                self.stopped = self.spending.limit_reached
            if self.stopped is not None or not (self._elsewhere or self._is_short):
                break
            if len(self._elsewhere) == before and not self._is_short:
                time.sleep(WAIT)
            # the questions in flight may have cost less than was reserved: then the budget has room for others
            left, before = (left if self._is_short else self._elsewhere), len(self._elsewhere)
            self._elsewhere = []
        if step is not None:
            step(self.asked - asked, self.note, self.reused - reused)

    @property
    def note(self) -> str:
        """Counts of this run's answers by status, and their price, for a progress bar."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        usd = self.spending.spent() - self._before
        return f"{counts}, {usd:.4f} US dollars" if usd else counts

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
                self._in_flight.add(key)
                self._reserve()
                yield question

    def _take(self, question: Question, answer: Record) -> None:
        key = question.key(self.identity)
        # the client of a server books its requests itself
        if "server" not in self.identity and self.spending.prices.per_million is not None:
            usage = None if answer.usage_unknown else answer.usage
            self.spending.book(answer.judge, answer.status, usage, self._guessed_usage(question))
        self.ledger.write(key, answer, question.query_id, question.document_id, question.variant, question.repeat)
        self._highest_price = max(self._highest_price, self.spending.prices.usd(answer.usage) or 0.0)
        self._in_flight.discard(key)
        self._reserve()
        self.settled.add(key)
        self.asked += 1
        self.usage += answer.usage
        self.statuses[answer.status] += 1

    def _reuse(self, key: str, known: Record | None) -> bool:
        if known is None or (not known.usable and (self.retry_failed or known.status == "failed")):
            return False
        self.settled.add(key)
        self.reused += 1
        return True

    def _guessed_usage(self, question: Question) -> Usage:
        return guessed_usage(question.characters, self.identity.get("parameters", {}).get("max_tokens"))

    def _reserve(self, question: Question | None = None) -> float:
        """Reserve for each question in flight the highest price so far, or a high guess before the first; return it."""
        if question is not None:
            guess = self.spending.prices.usd(self._guessed_usage(question)) or 0.0
            self._highest_guess = max(self._highest_guess, guess)
        samples = 1 if self._highest_price else int(self.identity.get("parameters", {}).get("samples") or 1)
        price = max(self._highest_price, samples * (self.spending.highest or self._highest_guess))
        self.spending.reserved = len(self._in_flight) * price
        return price

    def _affordable(self, question: Question) -> bool:
        """Return whether the limits leave room for one more question; if not, set `stopped` or `_is_short`."""
        if self.max_questions is not None and self.asked + len(self._in_flight) >= self.max_questions:
            self.stopped = f"the limit of {self.max_questions} questions was reached"
        if self.spending.prices.max_usd is not None and self.stopped is None:
            self._is_short = not self.spending.affordable(self._reserve(question))
        return self.stopped is None and not self._is_short
