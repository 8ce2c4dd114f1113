"""The outside formats that `bixse convert` takes: `formats.toml` as data classes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.io.parquet import column_names
from bixse.data.row_files.read import kind_of
from bixse.data.sources.reading import RowErrors
from bixse.data.sources.tables import TABLES, table_rows
from bixse.errors import BixseError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.relevance import GradeScale


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a table; those of ids and task may be absent."""

    query: str = "query"
    document: str = "document"
    grade: str = "grade"
    query_id: str = "query_id"
    document_id: str = "document_id"
    task: str = "task"

    def __post_init__(self) -> None:
        """Refuse one column for two purposes."""
        names = list(vars(self).values())
        if len(set(names)) < len(names):
            raise InputError(f"columns: got {', '.join(names)}; expected a column of its own for each; fix: rename one")


@dataclass(frozen=True)
class SourceOptions:
    """What some formats need beside their path."""

    scale: GradeScale | None = None
    """Of the grades."""
    score_map: str | None = None
    """From a teacher's scores to relevance."""
    corpus: Path | None = None
    """File (or folder) of the documents that rows name by id."""
    queries: Path | None = None
    """File of the queries that rows name by id."""
    qrels: str | None = None
    """Which split of a collection."""
    columns: TableColumns | None = None
    """Names of the columns of a table."""


@dataclass(frozen=True)
class Format:
    """One entry of `formats.toml`, where its fields are explained."""

    name: str
    about: str
    files: str
    citation: str
    documents: str
    licence: str = "that of its texts"
    instructions: str | None = None
    options: tuple[str, ...] = ()
    needs_scale: bool = False
    needs_map: bool = False
    suffixes: tuple[str, ...] = ()
    folder: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    query: tuple[str, ...] = ()
    query_id: tuple[str, ...] = ()
    query_by_id: bool = False
    task: str = "NULL"
    task_from: str = ""
    tasks: Mapping[str, str] = field(default_factory=dict)
    task_shares: Mapping[str, float] = field(default_factory=dict)
    judge: str = "binary labels"
    ids: bool = False
    may_be_empty: str = ""
    python: str = ""
    checks: tuple[Mapping[str, str], ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def with_columns(self, columns: TableColumns) -> Format:
        """The format with the user's names of columns."""
        names = {f"'{name}'": "'" + own.replace("'", "''") + "'" for name, own in vars(columns).items()}
        documents = self.documents
        for name, own in names.items():
            documents = documents.replace(f"get(j, {name})", f"get(j, {own})")
            documents = documents.replace(f"document({name}", f"document({own}")
            documents = documents.replace(f"val_key := {name}", f"val_key := {own}")
        return replace(
            self,
            needed=(columns.query, columns.document, columns.grade),
            optional=(columns.query_id, columns.document_id, columns.task),
            query=(columns.query,),
            query_id=(columns.query_id,),
            task=f"get(j, {names[chr(39) + 'task' + chr(39)]})",
            documents=documents,
        )


def _formats() -> dict[str, Format]:
    def frozen(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    loaded = tomllib.loads(Path(__file__).with_name("formats.toml").read_text(encoding="utf-8"))
    return {
        name: Format(name=name, **{key: frozen(value) for key, value in entry.items()})
        for name, entry in loaded.items()
    }


FORMATS = _formats()
"""Name -> format."""
_SIGNS: dict[str, frozenset[str]] = {
    "lightblue": frozenset({"question", "context", "32B_score_probs"}),
    "e5": frozenset({"query", "positive", "negative"}),
    "flagembedding": frozenset({"query", "pos"}),
    "tevatron": frozenset({"query_id", "positive_passages"}),
    "sentence-transformers": frozenset({"anchor", "positive"}),
    "nvidia": frozenset({"pos_doc"}),
    "umbrela": frozenset({"passage", "judgment"}),
    "pairs": frozenset({"query", "document", "relevance"}),
    "table": frozenset({"query", "document", "grade"}),
}
"""Format -> keys that its rows have."""


def looks_like(path: Path) -> list[str]:
    """The formats whose keys the first row of a table has; none for what is not a table.

    Example:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> _ = path.write_text(json.dumps({"query": "copy a folder", "pos": ["copytree"], "neg": []}))
        >>> looks_like(path)
        ['flagembedding']
    """
    keys: set[str] = set()
    try:
        if kind_of(path) == ".parquet":
            keys = set(column_names(path))
        elif kind_of(path) in TABLES:
            keys = set(next(table_rows(path, (), (), RowErrors(path)), (0, {}))[1])
    except (BixseError, OSError, ValueError):
        pass
    return [name for name, signs in _SIGNS.items() if signs <= keys]
