"""The external formats that `bixse convert` reads: `formats.toml` as data classes, and the files of each format."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import model_validator

from bixse.errors import BixseError, InputError, InvalidFileError, did_you_mean, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import FORMATS as FILE_FORMATS
from bixse.files.rows import kind_of, raw_rows, read_blocks, stem_of, text_lines
from bixse.files.values import FileColumn
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from bixse.relevance import GradeScale

HUB = "hub:"
"""Prefix of the name of a data set on the Hugging Face Hub."""
_PARTS_OF_NAMES = ("_split1", "_split2", "_no_in_batch_neg")
"""Suffixes of file names: halves of E5's symmetric tasks, and BGE's files whose rows must not be in-batch negatives."""
DOCUMENT = (
    # MS MARCO 2 has two ids for a passage: `docid` is that of its document
    FileColumn("_id", "id", other_names=("pid", "docid", "doc_id", "document_id", "id")),
    FileColumn("title", needed=False),
    FileColumn("text", may_be_empty=True, other_names=("contents", "passage", "segment", "body", "document")),
)
"""Columns of a document, under the names that tools use. An empty document is an error only if a row names it."""
QUERY = (
    FileColumn("_id", "id", other_names=("qid", "query_id", "id", "topic_id", "question_id")),
    FileColumn("text", other_names=("query", "question", "title", "query_text")),
)


class TableColumns(Settings):
    """The names of the columns of a table; columns of ids and task may be absent."""

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
    """The settings of a conversion that only some formats need; see `ConvertSettings`."""

    scale: GradeScale | None = None
    score_map: str | None = None
    corpus: Path | None = None
    queries: Path | None = None
    qrels: str | None = None
    columns: TableColumns | None = None


@dataclass(frozen=True)
class Format:
    """An entry of `formats.toml`; that file explains the fields."""

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
    signs: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    query: tuple[str, ...] = ()
    query_id: tuple[str, ...] = ()
    query_value: str = "get(j, query_key)"
    query_id_value: str = "get(j, id_key)"
    query_by_id: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    task: str = "NULL"
    task_from: str = ""
    tasks: Mapping[str, str] = field(default_factory=dict)
    task_shares: Mapping[str, float] = field(default_factory=dict)
    judge: str = "binary labels"
    ids: bool = False
    may_be_empty: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Mapping[str, str], ...] = ()
    note: Mapping[str, str] = field(default_factory=dict)

    def with_columns(self, columns: TableColumns) -> Format:
        return replace(
            self,
            needed=(columns.query, columns.document, columns.grade),
            optional=(columns.query_id, columns.document_id, columns.task),
            query=(columns.query,),
            query_id=(columns.query_id,),
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


def checked_options(name: str, path: str | Path, options: SourceOptions) -> Format:
    """Return the format of a name; raise InputError for options that do not suit it."""
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


def describe_formats() -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the sources as text, and as plain data by name."""
    rows: dict[str, dict[str, Any]] = {}
    lines = []
    for name, form in FORMATS.items():
        options = [option_flag(option) for option in form.options if option != "columns"]
        rows[name] = {"about": form.about, "files": form.files, "options": options, "licence": form.licence,
                      "citation": form.citation}  # fmt: skip
        lines += [name, f"  {form.about}", f"  files: {form.files}"]
        lines += [f"  options: {', '.join(options)}"] if options else []
        lines += [f"  licence: {form.licence}"]
        lines += [f"  cite: {form.citation}"] if form.citation else []
    return "\n".join(lines), rows


def option_flag(option: str) -> str:
    """Return the name of an option on the command line."""
    return "names of columns" if option == "columns" else f"--{option.replace('_', '-')}"


def file_in_folder(folder: Path, names: Sequence[str], split: str | None = None) -> Path:
    """Return the file with one of these names in a data set's folder; `split` selects among the files of a pattern."""
    available = {file.stem: file for name in names for file in sorted(folder.glob(name))}
    if not available:
        found = "no such folder" if not folder.exists() else "a file" if folder.is_file() else "no such file in it"
        raise InputError(f"{folder}: got {found}; expected a folder with {' or '.join(names)}; fix: check the path")
    if "*" not in names[0] or (split is None and len(available) == 1):
        return next(iter(available.values()))
    if split not in available:
        got = f"{len(available)} splits" if split is None else f"split {split!r}"
        raise InputError(
            f"{folder}: got {got}; expected one of {', '.join(available)}; fix: --qrels and one of them"
            + (f" ({did_you_mean(split, available)})" if split else "")
        )
    return available[split]


def known_files(form: Format, path: Path, files: list[Path]) -> tuple[list[Path], list[str]]:
    """Return the files of a format with known file names, and warnings."""
    names = {stem_of(file) for file in files}
    # A data set may hold a file and its halves, whose rows would be read twice.
    halves = [file for file in files if task_name(file) != stem_of(file) and task_name(file) in names]
    kept = [file for file in files if file not in halves]
    other = [file.name for file in kept if task_name(file) not in form.tasks]
    if len(other) == len(kept):
        raise InputError(
            f"{path}: got {', '.join(other[:3])}; expected files of the source {form.name} "
            f"({', '.join(f'{name}.jsonl' for name in form.tasks)}); fix: check the path, or give other triplets to "
            "the source sentence-transformers"
        )
    told = []
    if halves:
        told.append(f"{', '.join(file.name for file in halves)}: left aside, as the whole file lies beside its halves")
    if other:
        told.append(f"{', '.join(other)}: not a file of {form.name}; its name is the task")
    return kept, told


def task_name(file: Path) -> str:
    """Return the name of a file without the suffixes for halves and for in-batch negatives."""
    name = stem_of(file)
    return next((name.removesuffix(end) for end in _PARTS_OF_NAMES if name.endswith(end)), name)


def looks_like(path: Path) -> list[str]:
    """Return the formats whose `signs` the first row of a table has; nothing for a file that is no table.

    Example:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> _ = path.write_text(json.dumps({"query": "copy a folder", "pos": ["copytree"], "neg": []}))
        >>> looks_like(path)
        ['flagembedding']
    """
    try:
        _, row, _ = next(raw_rows(path, InvalidFileError(path)), (0, {}, 0))
    except (BixseError, OSError):
        return []
    return [name for name, form in FORMATS.items() if form.signs and {*form.signs} <= row.keys()]


def hub_folder(source: str, name: str, download: bool) -> Path:
    """Return the folder with the files of `hub:owner/name@revision`; the error message names the format `source`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.removeprefix(HUB).partition("@")
    try:
        return Path(
            snapshot_download(repository, repo_type="dataset", revision=revision or None, local_files_only=not download)
        )
    except HFValidationError as error:
        raise InputError(f"{name}: got {repository!r}; expected hub:owner/name; fix: correct the name") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if isinstance(error, LocalEntryNotFoundError) and not download:
            raise InputError(
                f"{name}: got a data set that is not on this machine; expected its files; fix: "
                f"bixse convert {source} {name} --download"
            ) from error
        raise InputError(
            f"{name}: got {str(error).splitlines()[0]}; expected a data set of the Hub; fix: check the name, the "
            "network, and that HF_HUB_OFFLINE is not set"
        ) from error


def texts_in(
    path: Path, columns: tuple[FileColumn, ...], errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, id, title and text per row of a file; `columns` is `DOCUMENT` or `QUERY`.

    The file is a table: .jsonl, .parquet, or .csv and .tsv with a header. A .tsv or .txt without a header holds id and
    text, or MS MARCO's id, address, title and body. `errors` takes the unreadable rows.
    """
    kind = kind_of(path)
    if kind in (".tsv", ".txt") and not _has_header(path, columns[0]):
        yield from _plain(path, columns is DOCUMENT, errors, reached)
        return
    if kind not in FILE_FORMATS:
        expected = ", ".join((*FILE_FORMATS, ".txt"))
        raise InputError(f"{path}: got suffix {kind!r}; expected one of {expected}; fix: rename or convert it")
    for block in read_blocks(path, columns, errors):
        reached(block.position)
        titles = block.columns.get("title", [None] * len(block))
        for number, name, title, text in zip(
            block.rows, block.columns["_id"], titles, block.columns["text"], strict=True
        ):
            yield number, name, title or "", text


def _has_header(path: Path, identifier: FileColumn) -> bool:
    for _, line, _ in text_lines(path, InvalidFileError(path)):
        return bool({name.strip() for name in line.split("\t")} & {identifier.name, *identifier.other_names})
    return False


def _plain(
    path: Path, documents: bool, errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Yield tab-separated lines of id and text, or of id, address, title and body."""
    for number, line, position in text_lines(path, errors):
        reached(position)
        fields = line.split("\t")
        is_long = documents and len(fields) == 4
        identifier, title, text = fields[0].strip(), fields[2].strip() if is_long else "", fields[-1]
        if len(fields) != 2 and not is_long:
            expected = "id and text, or id, address, title, body" if documents else "id and text"
            fix = "write them with one tab between"
            errors.add(number, None, f"{len(fields)} columns in {shorten(line)}", expected, fix)
        elif not identifier or not (title or text.strip()) or not is_unicode(line):
            errors.add(number, None, shorten(line), "an id and a text", "fill it in or drop the line")
        else:
            yield number, identifier, title, text
