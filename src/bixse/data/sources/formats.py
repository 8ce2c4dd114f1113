"""The outside formats that `bixse convert` takes: `formats.toml` as data classes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import model_validator

from bixse.errors import InputError, did_you_mean, shorten
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from bixse.relevance import GradeScale


class TableColumns(Settings):
    """Names of the columns of a table; those of ids and task may be absent.

    Raises:
        InputError: one column for two purposes.
    """

    query: Annotated[str, Flag(name="query-column")] = "query"
    """Column of the query."""
    document: Annotated[str, Flag(name="document-column")] = "document"
    """Column of the document."""
    grade: Annotated[str, Flag(name="grade-column")] = "grade"
    """Column of the grade."""
    query_id: Annotated[str, Flag(name="query-id-column")] = "query_id"
    """Column of the query's id."""
    document_id: Annotated[str, Flag(name="document-id-column")] = "document_id"
    """Column of the document's id."""
    task: Annotated[str, Flag(name="task-column")] = "task"
    """Column of the task."""

    @model_validator(mode="after")
    def _differ(self) -> Self:
        names = list(vars(self).values())
        if len(set(names)) < len(names):
            raise InputError(f"columns: got {', '.join(names)}; expected a column of its own for each; fix: rename one")
        return self


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


def checked_options(name: str, path: str | Path, options: SourceOptions) -> Format:
    """The format of a name, where the options suit it.

    Raises:
        InputError: no such format, an option that it does not take, or one that is missing.
    """
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS, "see `bixse convert --list`")
        raise InputError(f"source: got {shorten(name)}; expected one of {', '.join(FORMATS)}; fix: {hint}")
    form = FORMATS[name]
    for option in fields(SourceOptions):
        if getattr(options, option.name) is not None and option.name not in form.options:
            owners = ", ".join(other for other, it in FORMATS.items() if option.name in it.options)
            raise InputError(
                f"source {name}: got {option_flag(option.name)}; expected none, the files say it; fix: leave it out "
                f"(it is for {owners})"
            )
    missing = [flag for flag in ("queries", "corpus") if flag in form.options and not getattr(options, flag)]
    if form.query_by_id and missing:
        flags = " and no ".join(map(option_flag, missing))
        raise InputError(
            f"{path}: got no {flags}; expected the files of topics and of documents, since rows hold ids alone; "
            f"fix: give {flags.replace(' no ', ' ')}"
        )
    if form.needs_scale and options.scale is None:
        raise InputError(
            f"{path}: got no scale; expected that of its grades (it cannot be inferred: a grade that was never given "
            "leaves no trace); fix: state the lowest and the highest grade, for example --scale 0 3"
        )
    if options.scale is not None and options.score_map is not None:
        raise InputError(f"{path}: got a scale and a score map; expected one of them; fix: leave one out")
    return form


def option_flag(option: str) -> str:
    """How an option is called on the command line."""
    return "names of columns" if option == "columns" else f"--{option.replace('_', '-')}"
