"""The pairs of a run folder, indexed once: texts stay in a memory-mapped table, the judge's figures are columns."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from bixse.data.pairs_files import open_pairs
from bixse.errors import InputError
from bixse.files.parquet import read_table
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.data.graded_pairs import GradedPairs, Pair
    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.labels import PairIds
    from bixse.relevance import GradeScale

FIGURES = ("relevance", "relevance_low", "relevance_high")
COLUMNS = ["query_id", "document_id", "repeat", "status", "judge", "grade_probs", *FIGURES]


class RunIndex:
    """The N pairs that have texts, and what the judge said of each."""

    def __init__(self, pairs: GradedPairs, judgements: Any = None) -> None:
        """Join pairs with the table of `judgements.parquet`, or with nothing."""
        self.pairs = pairs
        self.query_ids, self.document_ids = list(pairs.query_ids), list(pairs.document_ids)
        self.row_of: dict[PairIds, int] = {
            pair: row for row, pair in enumerate(zip(self.query_ids, self.document_ids, strict=True))
        }
        self.figures: dict[str, Floats] = {name: np.full(len(pairs), np.nan) for name in FIGURES}
        """The judge's relevance and its bounds in [0, 1]; (N,), NaN where there is none."""
        self.status: list[str | None] = [None] * len(pairs)
        self.without_text = 0
        """Judged pairs whose texts are not known: these are not shown."""
        self.judge = ""
        self._probabilities: Any = None
        self._row_of_judgement = np.full(len(pairs), -1)
        if judgements is not None:
            self._join(judgements)

    def _join(self, judgements: Any) -> None:
        if "repeat" in judgements.column_names:
            judgements = judgements.filter(pc.equal(pc.fill_null(judgements["repeat"], 0), 0))
        ids = zip(judgements["query_id"].to_pylist(), judgements["document_id"].to_pylist(), strict=True)
        rows = np.fromiter((self.row_of.get(pair, -1) for pair in ids), dtype=np.int64, count=len(judgements))
        known = rows >= 0
        self.without_text = int((~known).sum())
        self._row_of_judgement[rows[known]] = np.flatnonzero(known)
        for name in FIGURES:
            if name in judgements.column_names:
                values = judgements[name].to_numpy().astype(np.float64)
                self.figures[name][rows[known]] = values[known]
        for row, status in zip(rows.tolist(), judgements["status"].to_pylist(), strict=True):
            if row >= 0:
                self.status[row] = status
        judges = set(judgements["judge"].unique().to_pylist()) - {None} if "judge" in judgements.column_names else set()
        self.judge = ", ".join(sorted(judges))
        if "grade_probs" in judgements.column_names:
            self._probabilities = judgements["grade_probs"].combine_chunks()

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def rows_of_query(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row, query_id in enumerate(self.query_ids):
            found.setdefault(query_id, []).append(row)
        return found

    def probabilities(self, row: int) -> list[float] | None:
        """Of the options, where the judge told them."""
        place = self._row_of_judgement[row]
        if place < 0 or self._probabilities is None:
            return None
        found: list[float] | None = self._probabilities[int(place)].as_py()
        return found

    def entropies(self) -> Floats:
        """(N,) entropy of the option probabilities as a share of the highest there is; 0 where none are known."""
        if self._probabilities is None:
            return np.zeros(len(self))
        p = self._probabilities.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        terms = -p * np.log(np.where(p > 0, p, 1.0))
        parents = pc.list_parent_indices(self._probabilities).to_numpy()
        sums = np.bincount(parents, weights=terms, minlength=len(self._probabilities))
        options = pc.fill_null(pc.list_value_length(self._probabilities), 0).to_numpy()
        shares = np.append(sums / np.log(np.maximum(options, 2)), 0.0)  # the last for pairs without a judgement
        found: Floats = shares[self._row_of_judgement]
        return found

    def grade(self, row: int, scale: GradeScale) -> float | None:
        """The judge's, on a scale."""
        value = float(self.figures["relevance"][row])
        return None if np.isnan(value) else scale.to_grade(value)

    def bounds(self, row: int, scale: GradeScale) -> tuple[float, float] | None:
        """The least and most that the judge's grade can be, on a scale."""
        low, high = (float(self.figures[name][row]) for name in FIGURES[1:])
        return None if np.isnan(low) or np.isnan(high) else (scale.to_grade(low), scale.to_grade(high))

    def pair(self, row: int) -> Pair:
        """One pair with its texts."""
        from bixse.data.graded_pairs import Pair

        (query,), (document,) = (self.pairs.texts(kind, [row]) for kind in ("query", "document"))
        return Pair(self.query_ids[row], query, self.document_ids[row], document)


def open_index(run: Path, pairs: Path | None = None) -> RunIndex:
    """The pairs of a run folder; those of the file `pairs` where it is given.

    Raises:
        InputError: there are none, or a file is damaged.
    """
    source = pairs or run / PAIRS_NAME
    judgements = run / JUDGEMENTS_NAME
    if not source.is_file():
        found = f"{JUDGEMENTS_NAME}, which holds no texts" if judgements.is_file() else "no pairs"
        raise InputError(
            f"{source}: got {found}; expected pairs with texts; fix: name the output folder of `bixse grade`, or "
            "--pairs FILE with the pairs that were graded"
        )
    return RunIndex(open_pairs(source), read_table(judgements, COLUMNS) if judgements.is_file() else None)
