"""Ask a judge or a text model through the ledger: no question twice, no cost above the budget, no answer lost."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from bixse.judging.judge import Answer, Completion, Question, Usage, same_model
from bixse.judging.ledger import Ledger, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bixse.judging.grade_settings import Prices
    from bixse.progress import Step

WAIT = 1.0
"""Seconds between two looks at questions that another process is asking."""
_CHARACTERS_A_TOKEN = 2.0  # for the price before any answer reports its tokens; low, so that the guess is high
_FIRST_COMPLETION = 16  # written tokens in that guess if the judge has no limit of its own


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
    prices: Prices
    """Prices and budget of this run; requests in flight count at the highest price seen."""
    max_questions: int | None = None
    retry_failed: bool = False

    settled: set[str] = field(default_factory=set)
    asked: int = 0
    reused: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._elsewhere: list[tuple[str, Question]] = []  # other processes are asking these
        self._in_flight: dict[str, float] = {}  # key -> dollars that the answer is expected to cost
        self._started, self._highest_price = 0, 0.0
        self._guessed = 0.0  # dollars of answers that came without a number of tokens

    def run(self, questions: Sequence[tuple[str, Question]], step: Step | None = None) -> None:
        """Answer questions from the ledger, and ask the rest; each answer is written the moment it comes."""
        self.ledger.load(key for key, _ in questions)
        left, before, asked, reused = questions, 0, 0, 0
        while True:
            for question, answer in self.answers(self._to_ask(left)):
                self._take(question, answer)
                if step is not None:
                    step(self.asked - asked, self.note, self.reused - reused)
                    asked, reused = self.asked, self.reused
            if not self._elsewhere or self.stopped is not None:
                break
            if len(self._elsewhere) == before:
                time.sleep(WAIT)
            left, before, self._elsewhere = self._elsewhere, len(self._elsewhere), []
        if step is not None:
            step(self.asked - asked, self.note, self.reused - reused)

    @property
    def note(self) -> str:
        """Counts of this run's answers by status, and their price, for a progress bar."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        return f"{counts}, {self.usd:.4f} US dollars" if self.usd else counts

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
                self._in_flight[key] = self._guess(question)
                self._started += 1
                yield question

    def _take(self, question: Question, answer: Record) -> None:
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

    def _reuse(self, key: str, known: Record | None) -> bool:
        if known is None or (not known.usable and (self.retry_failed or known.status == "failed")):
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
        if self.max_questions is not None and self._started >= self.max_questions:
            self.stopped = f"the limit of {self.max_questions} questions was reached"
        in_flight = math.fsum(max(guess, self._highest_price) for guess in self._in_flight.values())
        spent, most = self.usd + self._guessed + in_flight, self.prices.max_usd
        if most is not None and spent + self._guess(question) > most:
            self.stopped = f"the limit of {most:g} US dollars was reached"
        return self.stopped is None
