"""A judge that answers from existing judgements."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bixse.data.collection import load_collection
from bixse.data.trec import read_qrels
from bixse.errors import InputError, InvalidFileError, did_you_mean, shorten
from bixse.files.files import file_hash
from bixse.judging.judge import Answer
from bixse.judging.judges.reading import OptionProbabilities, expected_grade
from bixse.preparing.formats import SourceSettings
from bixse.preparing.source import Judgement, JudgementRows, Source, on_scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bixse.data.graded_pairs import Pair
    from bixse.judging.judge import Question, Status
    from bixse.relevance import GradeScale

REPLAYED = ("flagembedding", "lightblue", "qrels", "umbrela")
_JITTER = 0.01
"""Maximum distance of equal grades of one pair, as a share of the scale; the first grade counts."""


class ReplayJudge:
    """A judge that answers from existing judgements (mode "replay"), on the expected `scale` or their own.

    A pair is found by its two texts, or by its two ids in judgements without texts; the same ids with other texts are
    another pair. A missing pair is answered "failed". Equal texts with different grades are answered "ambiguous" under
    all ids, since a grade belongs to the texts.
    """

    at_once = 1

    def __init__(self, source: Source | JudgementRows | Sequence[Judgement], scale: GradeScale | None = None) -> None:
        self.source = source if isinstance(source, (Source, JudgementRows)) else JudgementRows(source)
        self.scale = self.source.scale
        if scale is not None and scale != self.scale:
            raise InputError(
                f"{self.source.path}: got judgements on the scale {self.scale.minimum:g} to {self.scale.maximum:g}; "
                f"expected {scale.minimum:g} to {scale.maximum:g}; fix: leave the scale out, or state that of the "
                "judgements"
            )
        self.name = f"replay:{self.source.name}:{self.source.path.name}"
        content = self.source.content_hash()
        self.identity: Mapping[str, Any] = {"kind": "replay", **self.source.settings, "content": content}
        self._known: dict[bytes, Judgement] = {}  # by texts, else by ids; texts are dropped to save memory
        self._first_rows: dict[bytes, tuple[bytes | None, int | None]] = {}  # by ids: key of the texts, and the row
        repeats = self._read_judgements()
        self.warnings = [*self.source.warnings(), *repeats]

    def _read_judgements(self) -> list[str]:
        """Return warnings about repeated judgements."""
        errors = InvalidFileError(self.source.path)
        repeated = contradictory = 0
        for judgement in self.source.rows():
            ids, texts = _ids_key(judgement), _texts_key(judgement)
            known_texts, row = self._first_rows.setdefault(ids, (texts, judgement.row))
            if known_texts != texts:
                where = "in another row" if row is None else f"in row {row}"
                pair = f"query {shorten(judgement.query_id)}, document {shorten(judgement.document_id)}"
                expected = "one pair of texts per pair of ids"
                errors.add(judgement.row, "ids", f"{pair}, other texts {where}", expected, "give each text its own id")
            kept = replace(judgement, query=None, document=None)
            first = self._known.setdefault(texts or ids, kept)
            if first is not kept:
                repeated += 1
                merged = _merged(first, kept)
                contradictory += merged.status == "ambiguous" != first.status
                self._known[texts or ids] = merged
        errors.raise_any()
        if not repeated:
            return []
        words = f"{self.source.path.name}: {repeated} judgements of pairs that were judged before"
        return [f"{words}; {contradictory} pairs have two different grades, and get none"]

    def pairs(self) -> Iterator[Pair]:
        """Yield each pair once, in the order of the file; raise InputError without texts."""
        seen: set[bytes] = set()
        for judgement in self.source.rows():
            pair, ids = judgement.pair, _ids_key(judgement)
            if pair is None:
                raise InputError(
                    f"{self.source.path}: got judgements without texts; expected pairs to grade; "
                    "fix: name the collection that holds the texts, or give the pairs"
                )
            if ids not in seen:
                seen.add(ids)
                yield pair

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        for question in questions:
            yield question, self._answer(question)

    def _answer(self, question: Question) -> Answer:
        ids, texts = _ids_key(question), _texts_key(question)
        found = self._known.get(texts or ids) or self._known.get(ids)
        if found is not None and not question.repeat:
            answer = answer_of(found, question.variant)
            return answer if answer.judge else replace(answer, judge=self.name)
        detail = "not among the judgements" + (": its ids are, with other texts" if ids in self._first_rows else "")
        if question.repeat:
            detail = "existing judgements cannot be asked a second time"
        return Answer("failed", "replay", judge=self.name, detail=detail)

    def count_tokens(self, questions: Sequence[Question]) -> list[int] | None:
        return None

    def close(self) -> None:
        """Do nothing, since no file stays open."""


def open_replay(
    spec: str, collection: Path | None = None, score_map: str | None = None, scale: GradeScale | None = None
) -> ReplayJudge:
    """Open the judge `replay:FORMAT:PATH` with a format of `REPLAYED`.

    `collection` is a BEIR folder with the texts of qrels. `score_map` maps FlagEmbedding's scores (see
    `bixse.preparing.score_scale.MAPS`). Qrels need a `scale`; the scale of another format must equal it.
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
    return ReplayJudge(Source(SourceSettings(source=name, path=Path(path), score_map=score_map)), scale)


def _qrels(path: Path, scale: GradeScale | None, collection: Path | None) -> JudgementRows:
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
            grade, status, detail = on_scale(stated, scale)
            row = Judgement(query_id, document_id, scale, grade=grade, status=status, judge=path.stem, detail=detail)
            row = replace(row, text=f"{stated:g}")
            if texts is not None:
                query, document = texts.queries.get(query_id), texts.corpus.get(document_id)
                for column, identifier, text in (("query-id", query_id, query), ("corpus-id", document_id, document)):
                    if text is None:
                        fix = "add it, drop its judgements, or leave the collection out to look pairs up by id"
                        errors.add(None, column, shorten(identifier), "an id of the collection", fix)
                row = replace(row, query=query, document=document and document.content)
            rows.append(row)
    errors.raise_any()
    return JudgementRows(rows, "qrels", path, file_hash(path), {"texts": texts is not None})


def answer_of(judgement: Judgement, order: str = "") -> Answer:
    """Return the answer of a judgement in one `order` of a rubric, else the mean of all its orders."""
    status = cast("Status", judgement.status)
    answer = Answer(status, "replay", text=judgement.text, judge=judgement.judge, detail=judgement.detail)
    if judgement.status != "graded" or judgement.grade is None:
        return answer
    orders = dict(judgement.orders)
    asked = [orders[order]] if order in orders else list(orders.values())
    asked = asked or ([judgement.probabilities] if judgement.probabilities else [])
    if not asked:
        low, high = (judgement.grade if end is None else end for end in (judgement.low, judgement.high))
        return replace(answer, grade=judgement.grade, low=low, high=high)
    ends = judgement.scale.minimum, judgement.scale.maximum
    found = [expected_grade(np.linspace(*ends, len(shares)).tolist(), _bounded(shares)) for shares in asked]
    grade, low, high = (math.fsum(column) / len(found) for column in zip(*found, strict=True))
    probabilities = asked[0] if len(asked) == 1 else judgement.probabilities
    return replace(answer, probabilities=probabilities, grade=grade, low=low, high=high)


def _bounded(probabilities: Sequence[float]) -> OptionProbabilities:
    # grades without a probability share the rest up to 1; each is at most the least probable returned grade
    unseen = max(0.0, 1.0 - math.fsum(probabilities))
    most = min(unseen, min(share for share in probabilities if share > 0))
    hidden = tuple(0.0 if share > 0 else most for share in probabilities)
    raw = tuple(probabilities)
    return OptionProbabilities(raw, hidden, unseen) if unseen > 1e-9 else OptionProbabilities(raw)


def _merged(old: Judgement, new: Judgement) -> Judgement:
    """Return one judgement of two: a grade replaces a missing one, and different grades leave none."""
    if old.status == "ambiguous" or new.grade is None:
        return old
    if old.grade is None:
        return new
    if abs(old.grade - new.grade) <= _JITTER * (new.scale.maximum - new.scale.minimum):
        return old
    rows = f" (rows {old.row} and {new.row})" if old.row is not None else ""
    detail = f"graded {old.grade:g} and {new.grade:g} for the same texts{rows}"
    return replace(old, status="ambiguous", grade=None, probabilities=(), orders=(), detail=detail)


def _ids_key(pair: Judgement | Question) -> bytes:
    return _digest("ids", pair.query_id, pair.document_id)


def _texts_key(pair: Judgement | Question) -> bytes | None:
    return None if pair.query is None or pair.document is None else _digest("texts", pair.query, pair.document)


def _digest(kind: str, first: str, second: str) -> bytes:
    # the length of the first separates ("a", "bc") from ("ab", "c")
    content = f"{kind} {len(first)} {first}{second}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:16]
