"""A judge that grades by a rule over the texts, logs every question, and answers out of order, as servers do."""

import sys
import time
from pathlib import Path

from bixse.data.graded_pairs import Pair
from bixse.judging.grade import grade_into
from bixse.judging.judge import Answer, AnyJudge, Question, Usage
from bixse.judging.open_judge import GradeConfig
from bixse.relevance import GradeScale

SCALE = GradeScale(0, 3)


def planted(question):
    """The grade of a question: from 0 to 3 by its document's length."""
    return len(question.document) % 7 / 2


class ScriptedJudge(AnyJudge):
    scale, closed = SCALE, False

    def __init__(self, log=None, ahead=4, pause=0.0, rule=None, name="scripted", usage=None):
        self.log, self.ahead, self.pause, self.rule, self.name = log, ahead, pause, rule, name
        self.usage = usage or Usage(prompt=100, completion=1)
        self.asked: list[Question] = []
        self.warnings: list[str] = []

    @property
    def identity(self):
        return {"model": self.name, "mode": "verbal"}

    def answers(self, questions):
        source, flight = iter(questions), []
        while True:
            while len(flight) < self.ahead and (question := next(source, None)) is not None:
                flight.append(question)
                self.asked.append(question)
                if self.log is not None:
                    with self.log.open("a") as file:
                        file.write(f"{question.query_id} {question.document_id} {question.variant} {question.repeat}\n")
            if not flight:
                return
            time.sleep(self.pause)
            question = flight.pop()  # the last one taken is answered first
            yield question, self._answer(question)

    def _answer(self, question):
        if self.rule is not None:
            return self.rule(question)
        grade = planted(question)
        return Answer("graded", "verbal", (), grade, grade, grade, str(grade), self.usage, judge=self.name)

    def close(self):
        self.closed = True


class ScriptedModel(ScriptedJudge):
    def complete(self, prompts):
        return self.answers(prompts)


def some_pairs(count):
    return [Pair(f"q{i % 10}", f"query {i % 10}", f"d{i}", "document " + "x" * i) for i in range(count)]


def config_of(rubric=None, per_million=None, max_usd=None, **settings):
    """Settings for a judge that reads the two texts, or a rubric if there is one."""
    if rubric:
        settings["rubric"] = rubric
    judge = {"name": "scripted" if rubric else "cross-encoder:scripted"}
    return GradeConfig(judge=judge, prices={"per_million": per_million, "max_usd": max_usd}, **settings)


def graded(pairs, judge, out, progress=None, **settings):
    return grade_into(config_of(**settings), judge, out, pairs, progress)


def main():
    """`python -m scripted OUT LEDGER LOG COUNT PAUSE`: grade in a process of its own."""
    out, ledger, log, count, pause = sys.argv[1:]
    graded(some_pairs(int(count)), ScriptedJudge(Path(log), pause=float(pause)), out, ledger=ledger)


if __name__ == "__main__":
    main()
