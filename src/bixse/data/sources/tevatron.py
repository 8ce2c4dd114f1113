"""Training files of tevatron: a query with positive and negative passages, as texts or as ids of a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.collection import Document
from bixse.data.graded_pairs import text_id
from bixse.data.sources.binary_labels import BINARY, labelled
from bixse.data.sources.corpus import CorpusSource, corpus_files, listed
from bixse.data.sources.reading import RowErrors, json_rows, stem_of
from bixse.data.sources.score_scale import ScoreMap, parse_score_map
from bixse.errors import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.data.sources.judgement_files import Judgement

_SIDES = {
    "positive_passages": ("positive_document_ids", True),
    "negative_passages": ("negative_document_ids", False),
}
"""Key of the passages -> the key of ids in their place, and whether they are relevant."""


class TevatronFiles(CorpusSource):
    r"""JSONL of tevatron: `query_id`, `query`, `positive_passages`, `negative_passages`.

    A passage is `{"docid", "title", "text"}`; without a text, or as a bare id in `positive_document_ids` and
    `negative_document_ids` (tevatron 2), it is looked up in the corpus. Passages are labels, 1 and 0. Where they have a
    `score` of a teacher, the map to relevance must be stated, and all of them must have one; the map "binary" leaves
    scores aside.

    Args:
        path: the file or a folder; a file is a task, named after it.
        score_map: prob, percent, logit, platt:SLOPE,INTERCEPT or binary, where passages have scores.
        corpus: file or folder of documents, where rows hold ids.

    Raises:
        InputError: a path is missing, or there is no such map.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.jsonl"
        >>> row = {"query_id": "7", "query": "copy a folder",
        ...        "positive_passages": [{"docid": "d1", "title": "shutil", "text": "copytree"}],
        ...        "negative_passages": [{"docid": "d2", "title": "", "text": "walk"}]}
        >>> _ = path.write_text(json.dumps(row))
        >>> [(row.document_id, row.document, row.relevance) for row in TevatronFiles(path).rows()]
        [('d1', 'shutil copytree', 1.0), ('d2', 'walk', 0.0)]
    """

    name = "tevatron"
    file_format = "JSONL of tevatron: query_id, query, positive_passages, negative_passages"
    citation = "Gao et al. 2022, Tevatron, arXiv:2203.05765; github.com/texttron/tevatron"
    suffixes = (".jsonl",)

    def __init__(self, path: str | Path, score_map: ScoreMap | str | None = None, corpus: Path | None = None) -> None:
        super().__init__(path, BINARY, corpus_files(corpus))
        self.score_map = parse_score_map(score_map) if isinstance(score_map, str) else score_map

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also the map."""
        return {**super().settings, "map": str(self.score_map) if self.score_map else None}

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        for number, row in json_rows(file, faults):
            before = faults.total
            query = faults.text(number, "query" if "query" in row else "query_text", row)
            query_id = faults.identifier(number, "query_id", row)
            passages = [
                found
                for key, (id_key, relevant) in _SIDES.items()
                for passage in (*listed(number, key, row, faults), *listed(number, id_key, row, faults))
                if (found := self._passage(number, key, passage, relevant, faults)) is not None
            ]
            if not passages and faults.total == before:
                keys = f"keys {shorten(', '.join(map(str, row)), 80)}"
                faults.add(number, "positive_passages", keys, "at least one passage", "drop the row")
            if query is None or faults.total > before:
                continue
            for document_id, text, relevant, relevance in passages:
                judged = labelled(
                    query, text, relevant, number, query_id=query_id, document_id=document_id, task=stem_of(file)
                )
                yield judged if relevance is None else _scored(judged, relevance, self.score_map)

    def _passage(
        self, number: int, key: str, passage: Any, relevant: bool, faults: RowErrors
    ) -> tuple[str, str, bool, float | None] | None:
        """Id, text, label and teacher's relevance of one passage; a fault and None where it cannot be used."""
        row = passage if isinstance(passage, dict) else {"docid": passage}
        identifier = faults.identifier(number, "docid", row)
        title = faults.optional_text(number, "title", row) or ""
        if row.get("text") in (None, "") and identifier is not None and not title:
            text = self.document_text(number, key, identifier, faults)
        elif row.get("text") in (None, "") and title:
            text = title
        elif "text" not in row and identifier is None:
            faults.add(number, key, shorten(passage), "a passage {docid, title, text}, or an id", "correct the passage")
            return None
        else:
            body = faults.text(number, "text", row)
            text = None if body is None else Document(title, body).content
        if text is None:
            return None
        relevance = self._relevance(number, row, faults)
        return identifier or text_id(text), text, relevant, relevance

    def _relevance(self, number: int, row: Mapping[str, Any], faults: RowErrors) -> float | None:
        """What the teacher's score stands for; None where labels count."""
        if self.score_map is not None and self.score_map.kind == "binary":
            self.notes["scores left aside"] += row.get("score") is not None
            return None
        if row.get("score") is None:
            if self.score_map is not None:
                fix = "score the passage, or take the labels: --score-map binary"
                faults.add(number, "score", "nothing", "a score of every passage", fix)
            return None
        if self.score_map is None:
            fix = "state what the scores mean: --score-map prob, percent, logit, platt:SLOPE,INTERCEPT or binary"
            faults.add(number, "score", shorten(row["score"]), "a stated score map", fix)
            return None
        score = faults.number(number, "score", row["score"])
        if score is None:
            return None
        if not self.score_map.takes(score):
            lowest, highest = self.score_map.range
            expected = f"{lowest:g} to {highest:g} under the map {self.score_map}"
            faults.add(number, "score", f"{score:g}", expected, "state another map")
            return None
        return self.score_map.relevance(score)

    def warnings(self) -> list[str]:
        """Also how many scores were left aside."""
        found = super().warnings()
        if count := self.notes["scores left aside"]:
            found.append(f"{self.path.name}: {count} passages have scores, which the map 'binary' leaves aside")
        return found


def _scored(judged: Judgement, relevance: float, score_map: ScoreMap | None) -> Judgement:
    from dataclasses import replace

    return replace(judged, grade=relevance, judge=f"teacher scores ({score_map})")
