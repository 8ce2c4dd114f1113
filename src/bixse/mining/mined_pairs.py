"""Mined pairs on disk: pairs to grade, without relevance, each with where it was found."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from bixse.data.io.files import read_text, write_atomically
from bixse.data.io.parquet import read_table, save_table
from bixse.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Format: TypeAlias = Literal["parquet", "jsonl", "csv"]
"""How mined pairs are written."""
FORMATS: tuple[str, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class MinedPair:
    """A pair to grade. Its grade becomes its relevance; that it was mined as a negative counts for nothing."""

    query_id: str
    """Id of the query."""
    query: str
    """Its text."""
    document_id: str
    """Id of the document."""
    document: str
    """Its title and text."""
    task: str | None
    """Name of the task, or None."""
    source: str
    """Retrievers that found it and its rank in each: "bm25:3,demo:17"."""
    rank: int
    """Its rank in the fused ranking, from 1."""

    @property
    def retrievers(self) -> list[str]:
        """Labels of the retrievers that found it."""
        return [entry.rpartition(":")[0] or entry for entry in self.source.split(",")]


COLUMNS = tuple(field.name for field in fields(MinedPair))
"""Columns of the file."""


def pairs_path(folder: Path, form: str) -> Path:
    """The file of mined pairs in an output folder.

    Raises:
        InputError: an unknown format.
    """
    if form not in FORMATS:
        raise InputError(
            f"--format: got {form!r}; expected one of {', '.join(FORMATS)}; fix: {did_you_mean(form, FORMATS)}"
        )
    return folder / f"pairs.{form}"


def save_mined_pairs(pairs: Sequence[MinedPair], path: Path) -> None:
    """Write mined pairs as .parquet, .jsonl or .csv; the file appears whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    if path.suffix == ".jsonl":
        write_atomically(path, "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs))
        return
    columns = {name: [getattr(pair, name) for pair in pairs] for name in COLUMNS}
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        writer.writerows(zip(*columns.values(), strict=True))
        write_atomically(path, text.getvalue())
        return
    import pyarrow as pa

    types = [(name, pa.int32() if name == "rank" else pa.string()) for name in COLUMNS]
    save_table(pa.table(columns, schema=pa.schema(types)), path)


def load_mined_pairs(folder: Path) -> list[MinedPair]:
    """Read the mined pairs of an output folder of `bixse mine`.

    Raises:
        InputError: the folder holds none, or the file is damaged.
    """
    path = next((path for form in FORMATS if (path := pairs_path(folder, form)).is_file()), None)
    if path is None:
        raise InputError(
            f"{folder}: got no pairs.parquet, pairs.jsonl or pairs.csv; expected the output folder of `bixse mine`; "
            "fix: name the --out folder of the mining run"
        )
    try:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in read_text(path).split("\n") if line]
        elif path.suffix == ".csv":
            csv.field_size_limit(2**31 - 1)
            rows = list(csv.DictReader(io.StringIO(read_text(path, keep_line_ends=True), newline=""), strict=True))
        else:
            rows = read_table(path).to_pylist()
        return [MinedPair(**{**row, "task": row["task"] or None, "rank": int(row["rank"])}) for row in rows]
    except (csv.Error, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: got no readable mined pairs ({' '.join(str(error).split())[:200]}); expected the file that "
            "`bixse mine` wrote; fix: mine again into another folder"
        ) from error
