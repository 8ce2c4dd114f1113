"""A judge that answers from existing judgements: grades somebody paid for before, asked like any other judge's."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bixse.data.collection_files import load_collection
from bixse.data.io.files import file_hash
from bixse.data.sources.formats import SourceOptions
from bixse.data.sources.judgement import Judgement, JudgementRows, on_scale
from bixse.data.sources.source import Source
from bixse.data.trec import read_qrels
from bixse.errors import InputError, InvalidFileError, did_you_mean, shorten
from bixse.grading.judge import Answer
from bixse.grading.reading.expected_grade import OptionProbabilities, expected_grade
from bixse.grading.replay.known_judgements import KnownJudgements
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.grading.judge import Question, Status
    from bixse.grading.rubrics import Rubric

REPLAYED = ("flagembedding", "lightblue", "qrels", "umbrela")
"""Formats of judgements that can be replayed."""


class ReplayJudge:
    """Answers questions from judgements that exist (mode "replay").

    A pair is found by its two texts, or by its two ids where the judgements have no texts; the same ids with other
    texts are another pair. A pair that is not there is answered "failed". Two equal texts with two different grades,
    under whatever ids, are answered "ambiguous": a grade belongs to the texts. Judgements are read once and kept in a
    temporary file without their texts, so that files larger than the memory can be replayed.

    Args:
        source: judgements in a file, or rows.
        rubric: what the questions are asked with, or the scale expected; None takes that of the judgements.

    Raises:
        InputError: the judgements cannot be read or are on another scale.
        StorageError: no room for the temporary file.

    Example:
        >>> from bixse.grading.judge import Question
        >>> rows = [Judgement("q1", "d1", GradeScale(0, 3), "copy a folder", "shutil.copytree", grade=3.0)]
        >>> judge = ReplayJudge(rows)
        >>> [pair.document for pair in judge.pairs()]
        ['shutil.copytree']
        >>> asked = [Question("1", "2", "copy a folder", text) for text in ("shutil.copytree", "os.walk")]
        >>> [(answer.grade, answer.status) for _, answer in judge.answers(asked)]
        [(3.0, 'graded'), (None, 'failed')]
        >>> judge.close()
    """

    def __init__(
        self, source: Source | JudgementRows | Sequence[Judgement], rubric: Rubric | GradeScale | None = None
    ) -> None:
        self.source = source if isinstance(source, (Source, JudgementRows)) else JudgementRows(source)
        wanted = rubric if isinstance(rubric, GradeScale) or rubric is None else rubric.scale
        if wanted is not None and wanted != self.source.scale:
            raise InputError(
                f"{self.source.path}: got judgements on the scale {_shown(self.source.scale)}; expected "
                f"{_shown(wanted)}; fix: leave the scale or rubric out, or state that of the judgements"
            )
        self.scale = self.source.scale
        self.name = f"replay:{self.source.name}:{self.source.path.name}"
        self.identity: Mapping[str, Any] = {
            "kind": "replay",
            **self.source.settings,
            "content": self.source.content_hash(),
        }
        self._known = KnownJudgements(self.source.path)
        try:
            self._known.fill(self.source.rows())
        except BaseException:
            self._known.close()
            raise
        self.at_once = 1
        self.warnings = [*self.source.warnings(), *self._known.warnings()]
        """What people should know about the judgements."""

    def pairs(self) -> Iterator[Pair]:
        """The pairs the judgements are about, each once, in the order of the file; to be graded without a pairs file.

        Raises:
            InputError: the judgements have no texts.
        """
        for place, judgement in enumerate(self.source.rows()):
            pair = judgement.pair
            if pair is None:
                raise InputError(
                    f"{self.source.path}: got judgements without texts; expected pairs to grade; "
                    "fix: name the collection that holds the texts, or give the pairs"
                )
            if self._known.first_place(judgement) == place:
                yield pair

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions one by one, in their order."""
        for question in questions:
            yield question, self._answer(question)

    def _answer(self, question: Question) -> Answer:
        if question.repeat:
            return self._without_grade("existing judgements cannot be asked a second time")
        judgement = self._known.find(question)
        if judgement is None:
            other = self._known.has_ids(question)
            return self._without_grade(
                "not among the judgements" + (": its ids are, with other texts" if other else "")
            )
        answer = answer_of(judgement, question.variant)
        return answer if answer.judge else replace(answer, judge=self.name)

    def _without_grade(self, detail: str) -> Answer:
        return Answer("failed", "replay", judge=self.name, detail=detail)

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        """None: nothing is sent anywhere."""
        return None

    def close(self) -> None:
        """Remove the temporary file."""
        self._known.close()


def open_replay(
    spec: str,
    collection: Path | None = None,
    score_map: str | None = None,
    scale: GradeScale | None = None,
) -> ReplayJudge:
    """The judge that `replay:FORMAT:PATH` stands for.

    Args:
        spec: `replay:umbrela:FILE`, `replay:qrels:FILE`, `replay:lightblue:FILE_OR_FOLDER` or
            `replay:flagembedding:FILE`.
        collection: folder in the BEIR layout with the texts of qrels.
        score_map: of FlagEmbedding's scores, see `bixse.data.sources.score_scale.MAPS`.
        scale: needed for qrels; elsewhere checked against that of the format.

    Raises:
        InputError: no such format or file, an option that the format does not take, or one that it lacks.
        InvalidFileError: every row that cannot be read.
    """
    word, _, rest = spec.partition(":")
    name, _, path = rest.partition(":")
    if word != "replay" or name not in REPLAYED or not path:
        hint = did_you_mean(name, REPLAYED, "name the format and the file, as in replay:umbrela:judged.jsonl")
        raise InputError(
            f"judge: got {shorten(spec)}; expected replay:FORMAT:PATH with a format of {', '.join(REPLAYED)}; "
            f"fix: {hint}"
        )
    for option, value, owner in (("collection", collection, "qrels"), ("score map", score_map, "flagembedding")):
        if value is not None and name != owner:
            raise InputError(
                f"judge {shorten(spec)}: got a {option}; expected none: {name} files hold what it is for; "
                f"fix: leave it out, it belongs to replay:{owner}"
            )
    if name == "qrels":
        return ReplayJudge(_qrels(Path(path), scale, collection), scale)
    return ReplayJudge(Source(name, path, SourceOptions(score_map=score_map)), scale)


def _qrels(path: Path, scale: GradeScale | None, collection: Path | None) -> JudgementRows:
    """The judgements of qrels, with their texts where a collection holds them."""
    if scale is None:
        raise InputError(
            f"{path}: got no scale; expected that of its grades (it cannot be inferred: a grade that was never given "
            "leaves no trace); fix: state the lowest and the highest grade, for example 0 and 3"
        )
    texts = None if collection is None else load_collection(collection, splits=[])
    errors = InvalidFileError(path)
    rows = []
    for query_id, judged in read_qrels(path).items():
        for document_id, stated in judged.items():
            query, document = None, None
            if texts is not None:
                query, found = texts.queries.get(query_id), texts.corpus.get(document_id)
                document = None if found is None else found.content
                for column, identifier, text in (("query-id", query_id, query), ("corpus-id", document_id, document)):
                    if text is None:
                        fix = "add it, drop its judgements, or leave the collection out to look pairs up by id"
                        errors.add(None, column, shorten(identifier), "an id of the collection", fix)
            grade, status, detail = on_scale(stated, scale)
            rows.append(
                Judgement(query_id, document_id, scale, query, document, grade, status, judge=path.stem,
                          text=f"{stated:g}", detail=detail)
            )  # fmt: skip
    errors.raise_any()
    return JudgementRows(rows, "qrels", path, file_hash(path), {"texts": texts is not None})


def answer_of(judgement: Judgement, order: str = "") -> Answer:
    """The answer that a judgement stands for.

    Where its probabilities are known, the expected grade has the bounds of what the judge did not return: a grade
    without probability can have at most that of the least probable grade that has some, and all such together at most
    1 minus the sum.

    Args:
        judgement: graded or not.
        order: name of a rubric's order. A judgement of that order answers it alone, any other one the mean of all.

    Example:
        >>> answer_of(Judgement("q", "d", GradeScale(1, 5), grade=4.0, probabilities=(0, 0, 0, 0.9, 0))).high
        4.1
    """
    answer = Answer(
        cast("Status", judgement.status),
        "replay",
        text=judgement.text,
        judge=judgement.judge,
        detail=judgement.detail,
    )
    if judgement.status != "graded" or judgement.grade is None:
        return answer
    orders = dict(judgement.orders)
    asked = [orders[order]] if order in orders else list(orders.values())
    asked = asked or ([judgement.probabilities] if judgement.probabilities else [])
    if not asked:
        low = judgement.grade if judgement.low is None else judgement.low
        high = judgement.grade if judgement.high is None else judgement.high
        return replace(answer, grade=judgement.grade, low=low, high=high)
    found = [expected_grade(_values(judgement.scale, len(shares)), _with_bounds(shares)) for shares in asked]
    grade, low, high = (
        math.fsum(getattr(one, name) for one in found) / len(found) for name in ("grade", "low", "high")
    )
    probabilities = asked[0] if len(asked) == 1 else judgement.probabilities
    return replace(answer, probabilities=probabilities, grade=grade, low=low, high=high)


def _values(scale: GradeScale, count: int) -> list[float]:
    """Grades evenly spaced on a scale."""
    return [scale.minimum + (scale.maximum - scale.minimum) * place / (count - 1) for place in range(count)]


def _with_bounds(probabilities: Sequence[float]) -> OptionProbabilities:
    unseen = max(0.0, 1.0 - math.fsum(probabilities))
    most = min(unseen, min(share for share in probabilities if share > 0))
    hidden = tuple(0.0 if share > 0 else most for share in probabilities)
    raw = tuple(probabilities)
    return OptionProbabilities(raw, hidden, unseen) if unseen > 1e-9 else OptionProbabilities(raw)


def _shown(scale: GradeScale) -> str:
    return f"{scale.minimum:g} to {scale.maximum:g}"
