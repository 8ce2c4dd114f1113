"""Data sets of Arctic Embed: `queries.parquet`, `documents.parquet` and `relations.parquet` in a folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.sources.binary_labels import BINARY, JUDGE, labelled
from bixse.data.sources.corpus import CorpusSource
from bixse.data.sources.judgement_files import Judgement, placed
from bixse.data.sources.reading import RowErrors, number_of, parquet_rows
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bixse.relevance import GradeScale

_RELATIONS = ("relations.parquet", "labels.parquet")
_FIXED = {1.0: True, 0.0: False, -1.0: False}
"""What a relation means where no scale is stated: 1 is positive, -1 (and 0) a mined negative."""


class ArcticFolder(CorpusSource):
    """A folder of Arctic Embed; it is a task, named after it.

    `relations.parquet` (or `labels.parquet`) has `QUERY_ID`, `DOCUMENT_ID` and maybe `RELEVANCE`: 1 for a positive
    pair, -1 for a mined negative; without the column all pairs are positive. Other values need a scale.

    Args:
        path: the folder.
        scale: of `RELEVANCE`, where it holds grades.

    Raises:
        InputError: a file is missing.
    """

    name = "arctic"
    file_format = "folder of Arctic Embed: queries.parquet, documents.parquet, relations.parquet"
    citation = "Merrick et al. 2024, Arctic-Embed, arXiv:2405.05374; github.com/snowflakedb/ArcticTraining"

    def __init__(self, path: str | Path, scale: GradeScale | None = None) -> None:
        relations = next((file for name in _RELATIONS if (file := Path(path) / name).is_file()), None)
        if relations is None:
            raise InputError(
                f"{path}: got no {' or '.join(_RELATIONS)}; expected a folder with it, queries.parquet and "
                "documents.parquet; fix: give the folder"
            )
        texts = [relations.with_name(f"{name}.parquet") for name in ("documents", "queries")]
        super().__init__(relations, scale or BINARY, texts[:1], texts[1:])
        self.stated = scale is not None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also whether the scale was stated."""
        return {**super().settings, "stated": self.stated}

    def inputs(self) -> dict[str, Path]:
        """Every file, by its place in the folder."""
        return {file.name: file for file in (*self.files, *self.corpus, *self.query_files)}

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        task = file.resolve().parent.name
        for number, row in parquet_rows(file, ("QUERY_ID", "DOCUMENT_ID"), ("RELEVANCE",), faults):
            before = faults.total
            ids = [faults.identifier(number, key, row) for key in ("QUERY_ID", "DOCUMENT_ID")]
            for key, found in zip(("QUERY_ID", "DOCUMENT_ID"), ids, strict=True):
                if found is None and faults.total == before:
                    faults.add(number, key, "nothing", "an id", "fill it in or drop the row")
            value = number_of(row["RELEVANCE"]) if "RELEVANCE" in row else 1.0
            if not math.isfinite(value):
                faults.add(number, "RELEVANCE", shorten(row["RELEVANCE"]), "a finite number", "drop the row")
            elif not self.stated and value not in _FIXED:
                fix = "state the scale of the grades: --scale LOW HIGH"
                faults.add(number, "RELEVANCE", f"{value:g}", "1 or -1, or a stated scale", fix)
            query_id, document_id = ids
            if query_id is None or document_id is None or faults.total > before:
                continue
            query = self.query_text(number, "QUERY_ID", query_id, faults)
            document = self.document_text(number, "DOCUMENT_ID", document_id, faults)
            if query is None or document is None:
                continue
            if not self.stated:
                yield labelled(
                    query, document, _FIXED[value], number, query_id=query_id, document_id=document_id, task=task
                )
                continue
            grade, status, detail = placed(value, self.scale)
            yield Judgement(
                query_id, document_id, self.scale, query, document, grade, status,
                judge=JUDGE, task=task, text=f"{value:g}", detail=detail, row=number,
            )  # fmt: skip
