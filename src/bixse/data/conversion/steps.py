"""Second stage of a conversion: checks and transforms on numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.conversion.rows import read_columns, rows_at
from bixse.data.io.parquet import column_names, read_table
from bixse.data.transforms.column_transforms import Applied
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.data.transforms.pair_columns import Key, PairColumns

WHOLE = "pairs"
"""Name of the one part where nothing is split."""


@dataclass(frozen=True)
class Chosen:
    """What is to be written."""

    parts: dict[str, PairColumns]
    """Part -> its rows, in the order of the source."""
    applied: list[Applied]
    """What was done, in order."""


def choose_rows(paths: Sequence[Path], settings: ConvertSettings) -> Chosen:
    """Check ids, apply the transforms, and split.

    Args:
        paths: the parts that were read.
        settings: of the conversion.

    Raises:
        InputError: one id stands for two texts, a pair has two relevances (without dedup), or nothing is left.
    """
    with_texts = "query" in column_names(paths[0])
    for kind in ("query", "document"):
        _check_ids(paths, kind, with_texts)
    transforms, split = settings.transforms(), settings.parts()
    keys: list[Key] = ["query_id", "document_id", "task"]
    keys += [key for step in (*transforms, split) if step is not None for key in step.needs]
    columns = read_columns(paths, list(dict.fromkeys(keys)))
    applied: list[Applied] = []
    if not settings.dedup:
        columns, repeats = _once(columns, paths, with_texts)
        applied += [repeats] if repeats.rows_after < repeats.rows_before else []
    for transform in transforms:
        columns, done = transform.apply(columns)
        applied.append(done)
        if not len(columns):
            raise InputError(
                f"{done.name}: got no row of {done.rows_before} that stays; expected at least one; fix: look at "
                "the relevances first (--dry-run)"
            )
    if split is None:
        return Chosen({WHOLE: columns}, applied)
    parts, done = split.apply(columns)
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise InputError(
            f"--split: got no query for {', '.join(empty)} among {len(columns)} pairs; expected some in every part; "
            "fix: other shares, or another --seed"
        )
    return Chosen(parts, [*applied, done])


def _check_ids(paths: Sequence[Path], kind: str, with_texts: bool) -> None:
    """One id, one text: else queries would be joined that are none."""
    ids, texts = (
        np.concatenate([read_table(path, columns=[name])[name].to_numpy() for path in paths])
        for name in (f"key of {kind}_id", f"key of exact {kind}")
    )
    order = np.lexsort((texts, ids))
    ids, texts = ids[order], texts[order]
    clash = np.flatnonzero((ids[1:] == ids[:-1]) & (texts[1:] != texts[:-1]))
    if not len(clash):
        return
    rows = sorted(order[[clash[0], clash[0] + 1]].tolist())
    shown = f"the {kind}s of rows {rows[0] + 1} and {rows[1] + 1}"
    if with_texts:
        found = rows_at(paths, rows, [f"{kind}_id", kind])
        shown = f"{shorten(found[0][f'{kind}_id'])} for {shorten(found[0][kind])} and {shorten(found[1][kind])}"
    raise InputError(
        f"{kind} ids: got {len(np.unique(ids[clash]))} that stand for several texts, first {shown}; expected one text "
        "an id; fix: --text-ids makes ids from the texts, or give each text its own id"
    )


def _once(columns: PairColumns, paths: Sequence[Path], with_texts: bool) -> tuple[PairColumns, Applied]:
    """Rows that repeat a pair with the same relevance are written once; with another they are refused."""
    group = columns.groups("query_id", "document_id", "task")
    order = np.lexsort((columns.rows, group))
    first = np.r_[True, np.diff(group[order]) > 0] if len(order) else np.zeros(0, dtype=bool)
    place = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]  # of each row's first
    differ = columns.relevance[order] != columns.relevance[place]
    if differ.any():
        raise _disagreement(columns, place[differ], order[differ], paths, with_texts)
    kept = columns.take(np.sort(order[first]))
    return kept, Applied("repeats written once", {}, len(columns), len(kept))


def _disagreement(
    columns: PairColumns, firsts: NDArray[np.int64], others: NDArray[np.int64], paths: Sequence[Path], with_texts: bool
) -> InputError:
    rows = sorted((int(firsts[0]), int(others[0])))
    values = " and ".join(f"{columns.relevance[row]:g}" for row in rows)
    shown = f"rows {rows[0] + 1} and {rows[1] + 1}"
    if with_texts:
        found = rows_at(paths, rows[:1], ["query", "document"])[0]
        shown = f"query {shorten(found['query'])} and document {shorten(found['document'])}"
    return InputError(
        f"pairs: got {len(np.unique(firsts))} with several relevances, first {values} for {shown}; expected one "
        "relevance a pair; fix: --dedup takes their mean, or correct the file"
    )
