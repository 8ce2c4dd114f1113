"""Training files of FlagEmbedding (BGE): a query with positives and negatives, scored by a teacher or not."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.graded_pairs import text_id
from bixse.data.sources.judgement_files import Judgement, JudgementSource
from bixse.data.sources.reading import RowErrors, json_rows, number_of, stem_of
from bixse.data.sources.score_scale import ScoreMap, check_scores, histogram, parse_score_map, summarise_scores
from bixse.errors import InputError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_SIDES = {"pos": "positive", "neg": "negative"}
"""Key of the documents -> their label."""
_APART = "_no_in_batch_neg"
"""End of the name of a file whose rows must not be one another's negatives."""


@dataclass(frozen=True)
class _Row:
    """One query of a file, checked."""

    number: int
    """Its line."""
    query: str
    """Its text."""
    documents: Mapping[str, Sequence[str]]
    """Texts by key."""
    scores: Mapping[str, Sequence[float]]
    """A score a text by key, or none."""
    extra: Mapping[str, str]
    """`prompt` and `type`, where they are there."""


class FlagEmbeddingFile(JudgementSource):
    """JSONL of FlagEmbedding: `query`, `pos`, `neg`, and from a teacher `pos_scores`, `neg_scores`.

    Files of one and the same project hold probabilities, numbers near 100, and log-odds, so the map to relevance must
    be stated; all scores are looked at before the first row is given. Rows without scores are judgements only where
    the map "binary" says that the labels are meant: 1 for positives, 0 for negatives. A file is a task, named after it
    (without the ending `_no_in_batch_neg`, which forbids in-batch negatives there: it is counted in `warnings`).

    Args:
        path: the file, or a folder of them. The scores of a file (8 bytes each) are held in memory, its texts are not.
        score_map: prob, percent, logit, platt:SLOPE,INTERCEPT or binary.

    Raises:
        InputError: the path is missing, or no map is stated; says what the scores look like.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "nq.jsonl"
        >>> row = {"query": "copy a folder", "pos": ["shutil.copytree"], "neg": ["os.walk"],
        ...        "pos_scores": [87.5], "neg_scores": [25]}
        >>> _ = path.write_text(json.dumps(row))
        >>> [(row.document, row.relevance, row.task) for row in FlagEmbeddingFile(path, "percent").rows()]
        [('shutil.copytree', 0.875, 'nq'), ('os.walk', 0.25, 'nq')]
    """

    name = "flagembedding"
    file_format = "JSONL of FlagEmbedding: query, pos, neg, pos_scores, neg_scores"
    citation = "Chen et al. 2024, BGE M3-Embedding, arXiv:2402.03216; github.com/FlagOpen/FlagEmbedding"
    suffixes = (".jsonl",)
    licence = "that of each part; the repository of the code is MIT"

    def __init__(self, path: str | Path, score_map: ScoreMap | str | None = None) -> None:
        super().__init__(path, GradeScale(0, 1))
        if score_map is None:
            raise InputError(
                f"{path}: got no score map; expected prob, percent, logit, platt:SLOPE,INTERCEPT or binary; "
                f"fix: choose one by what the scores are\n{self.look()}"
            )
        self.score_map = parse_score_map(score_map) if isinstance(score_map, str) else score_map
        self._map_warnings: list[str] = []

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also the map."""
        return {**super().settings, "map": str(self.score_map)}

    def look(self) -> str:
        """What the scores look like, with a histogram, for people.

        Raises:
            InvalidFileError: rows that cannot be read.
        """
        faults = {file: RowErrors(file) for file in self.files}
        found = [_scores(file, None, faults[file]) for file in self.files]
        for kept in faults.values():
            kept.raise_any()
        positive, negative = (np.concatenate([scores[side] for scores in found]) for side in (0, 1))
        crossed, unscored = (sum(scores[side] for scores in found) for side in (2, 3))
        if not len(positive) and not len(negative):
            return "no scores in the file: labels alone (binary)"
        told = [summarise_scores(positive, negative).describe()]
        told += [f"{crossed} rows score a negative above a positive"] if crossed else []
        told += [f"{unscored} rows have no scores"] if unscored else []
        return "\n".join([*told, histogram(np.concatenate([positive, negative]))])

    def prepare(self, faults_of: Callable[[Path], RowErrors]) -> None:
        """Look at all scores of each file under the map.

        Raises:
            InputError: the scores of a file carry no grades under the map.
        """
        self._map_warnings = []
        for file in self.files if self.score_map.kind != "binary" else ():
            faults = faults_of(file)
            positive, negative, crossed, _ = _scores(file, self.score_map, faults)
            if len(positive) or len(negative):
                self._map_warnings += self._looked_at(file, positive, negative, bool(faults.total))
            if crossed:
                self._map_warnings.append(f"{file.name}: {crossed} rows score a negative above a positive")

    def _looked_at(
        self, file: Path, positive: np.ndarray[Any, Any], negative: np.ndarray[Any, Any], faulty: bool
    ) -> list[str]:
        """Warnings; where rows are missing, for their faults, what would be an error is one."""
        try:
            found = check_scores(positive, negative, self.score_map, f"scores of {file.name}")
        except InputError as error:
            if not faulty:
                raise
            found = [str(error)]
        return [f"{file.name}: {warning}" for warning in found]

    def warnings(self) -> list[str]:
        """Also what the scores say against the map or the labels."""
        found = [*super().warnings(), *self._map_warnings]
        if count := self.notes["scores left aside"]:
            found.append(f"{self.path.name}: {count} rows have scores, which the map 'binary' leaves aside")
        if apart := [file.name for file in self.files if _task_of(file) != stem_of(file)]:
            found.append(
                f"{', '.join(apart)}: marked as without in-batch negatives: rows of one file answer each other's "
                "queries; train these tasks apart, with a loss of a query's own documents"
            )
        return found

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        binary = self.score_map.kind == "binary"
        for row in _checked_rows(file, faults, self.score_map):
            self.notes["scores left aside"] += bool(binary and any(row.scores.values()))
            for key, documents in row.documents.items():
                scores = row.scores[key] if row.scores[key] and not binary else [None] * len(documents)
                for document, score in zip(documents, scores, strict=True):
                    yield self._judgement(row, key, document, score, _task_of(file))

    def _judgement(self, row: _Row, key: str, document: str, score: float | None, task: str) -> Judgement:
        """One document of a row; its label is the grade where no score counts."""
        label = 1.0 if key == "pos" else 0.0
        return Judgement(
            text_id(row.query),
            text_id(document),
            self.scale,
            row.query,
            document,
            label if score is None else self.score_map.relevance(score),
            judge="binary labels" if score is None else f"teacher scores ({self.score_map})",
            task=task,
            row_group=str(row.number),
            row=row.number,
            extra={**row.extra, "label": _SIDES[key], **({} if score is None else {"score": score})},
        )


def _scores(
    file: Path, score_map: ScoreMap | None, faults: RowErrors
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int, int]:
    """All positive and all negative scores of a file; how many rows cross, and how many have none."""
    found, crossed, unscored = {"pos": array("d"), "neg": array("d")}, 0, 0
    for row in _checked_rows(file, faults, score_map):
        for key in _SIDES:
            found[key].extend(row.scores[key])
        crossed += bool(all(row.scores.values()) and max(row.scores["neg"]) > min(row.scores["pos"]))
        unscored += not any(row.scores.values())
    return np.array(found["pos"]), np.array(found["neg"]), crossed, unscored


def _task_of(file: Path) -> str:
    """The task of a file: its name without what it says of negatives."""
    return stem_of(file).removesuffix(_APART)


def _checked_rows(file: Path, faults: RowErrors, score_map: ScoreMap | None) -> Iterator[_Row]:
    """The rows that can be used under a map, or at all where there is none."""
    for number, row in json_rows(file, faults):
        before = faults.total
        query = faults.text(number, "query", row)
        documents = {key: _documents(number, key, row, faults) for key in _SIDES}
        if not any(documents.values()) and faults.total == before:
            faults.add(number, "pos", "no document", "at least one positive or negative", "drop the row")
        if query is None or faults.total > before:
            continue
        scores = {key: _scores_of(number, key, row, documents[key], score_map, faults) for key in _SIDES}
        extra = {key: text for key in ("prompt", "type") if (text := faults.optional_text(number, key, row))}
        if faults.total == before:
            yield _Row(number, query, documents, scores, extra)


def _documents(number: int, key: str, row: Mapping[str, Any], faults: RowErrors) -> list[str]:
    value = row.get(key)
    if value is None and key == "neg":
        return []
    if not isinstance(value, list):
        found = "nothing" if key not in row else "null" if value is None else shorten(value)
        faults.add(number, key, found, "a list of texts", f'write it as {{"{key}": ["..."]}}')
        return []
    return [faults.text(number, key, {key: document}) or "" for document in value]


def _scores_of(
    number: int, key: str, row: Mapping[str, Any], documents: list[str], score_map: ScoreMap | None, faults: RowErrors
) -> list[float]:
    """The scores of one side; empty where there are none and none is needed."""
    name = f"{key}_scores"
    value = row.get(name)
    binary = score_map is not None and score_map.kind == "binary"
    if value is None or (value == [] and not documents):
        if documents and score_map is not None and not binary:
            fix = "score the pairs, or use the score map 'binary'"
            faults.add(number, name, "nothing" if name not in row else "null", "a score a text", fix)
        return []
    if not isinstance(value, list) or len(value) != len(documents):
        found = f"{len(value)} scores for {len(documents)} texts" if isinstance(value, list) else shorten(value)
        faults.add(number, name, found, f"a list of scores, one a text of {key!r}", "score the pairs again")
        return []
    scores = [number_of(score) for score in value]
    for score, written in zip(scores, value, strict=True):
        if not math.isfinite(score):
            faults.add(number, name, shorten(written), "a finite number", "score the pair again, or drop it")
        elif score_map is not None and not binary and not score_map.takes(score):
            lowest, highest = score_map.range
            expected = f"{lowest:g} to {highest:g} under the map {score_map}"
            faults.add(number, name, shorten(written), expected, "state another map: see what the scores look like")
    return scores
