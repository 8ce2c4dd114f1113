"""The formats that `bixse convert` reads: `formats.toml` as data, the settings, and the files of each format."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from bixse.data.collection import DOCUMENT_COLUMNS, QUERY_COLUMNS
from bixse.errors import BixseError, InputError, InvalidFileError, did_you_mean, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import FORMATS as FILE_FORMATS
from bixse.files.rows import kind_of, other_form, raw_rows, read_blocks, stem_of, text_lines
from bixse.relevance import GradeScale
from bixse.settings import Flag, Settings, named_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from bixse.files.values import FileColumn

TABLE_COLUMNS = ("query", "document", "grade", "query_id", "document_id", "task")
"""Columns of the format "table"; those of ids and task may be absent."""
_PARTS_OF_NAMES = ("_split1", "_split2", "_no_in_batch_neg")
"""Suffixes of file names: halves of E5's symmetric tasks, and BGE's files whose rows must not be in-batch negatives."""
DOCUMENT, QUERY = (
    (replace(identifier, unique=False), *texts) for identifier, *texts in (DOCUMENT_COLUMNS, QUERY_COLUMNS)
)
"""Columns of the texts that rows name by id. A repeated text is read once; an empty one fails if a row names it."""


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
    fields: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Mapping[str, str], ...] = ()
    note: Mapping[str, str] = field(default_factory=dict)

    def with_columns(self, names: Mapping[str, str]) -> Format:
        """Return the format "table" with its columns under other names."""
        columns = {name: names.get(name, name) for name in TABLE_COLUMNS}
        return replace(
            self,
            needed=(columns["query"], columns["document"], columns["grade"]),
            optional=(columns["query_id"], columns["document_id"], columns["task"]),
            query=(columns["query"],),
            query_id=(columns["query_id"],),
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


class SourceSettings(Settings):
    """Settings of the files to read, and facts that the files do not state."""

    source: Annotated[str, Flag(positional=True, metavar="SOURCE")]
    """Name of the format, for example beir, table or sentence-transformers; "pairs" for files of bixse."""
    path: Annotated[Path, Flag(positional=True, metavar="PATH")]
    """File or folder."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """Lowest and highest possible grade, for a source that does not state them."""
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """Map from scores of a teacher to relevance: prob, percent, logit, platt:SLOPE,INTERCEPT, or binary (labels)."""
    corpus: Path | None = None
    """File or folder of the documents that rows name by id."""
    queries: Path | None = None
    """File of the queries that rows name by id."""
    qrels: Annotated[str | None, Flag(metavar="SPLIT")] = None
    """Split of a collection folder; not needed for a folder with a single split."""
    columns: Annotated[dict[str, str], BeforeValidator(named_words), Flag(metavar="COLUMN=NAME")] = Field(default={})
    """Names of the columns of a table, for example query=search grade=stars."""
    text_ids: bool = False
    """Make ids from the texts. The default takes the ids of the source."""
    dedup: bool = False
    """Write one row per pair of texts (NFKC, case folded), with the mean of the relevances."""

    @field_validator("source")
    @classmethod
    def _known(cls, source: str) -> str:
        if source not in FORMATS:
            hint = did_you_mean(source, FORMATS, "docs/reference/convert.md describes them")
            raise ValueError(f"expected one of {', '.join(FORMATS)}; fix: {hint}")
        return source

    @field_validator("columns")
    @classmethod
    def _differ(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        names = [columns.get(name, name) for name in TABLE_COLUMNS]
        if unknown := set(columns) - set(TABLE_COLUMNS):
            hint = did_you_mean(min(unknown), TABLE_COLUMNS)
            raise ValueError(f"expected names for columns among {', '.join(TABLE_COLUMNS)}; fix: {hint}")
        if len(set(names)) < len(names):
            raise ValueError(f"expected different columns, not {', '.join(names)}; fix: name each column once")
        return columns

    @property
    def grade_scale(self) -> GradeScale | None:
        """The stated scale of the grades in the files."""
        return None if self.scale is None else GradeScale(*self.scale)

    @model_validator(mode="after")
    def _suits_the_source(self) -> Self:
        form, path = FORMATS[self.source], self.path
        stated = {"scale": self.grade_scale, "score_map": self.score_map, "corpus": self.corpus,
                 "queries": self.queries, "qrels": self.qrels, "columns": self.columns or None}  # fmt: skip
        for option, value in stated.items():
            if value is not None and option not in form.options:
                owners = ", ".join(other for other, entry in FORMATS.items() if option in entry.options)
                texts = option in ("corpus", "queries")
                raise InputError(
                    f"source {self.source}: got {_flag(option)}; expected none, since "
                    f"{'each row has its texts' if texts else 'the files state it'}; fix: leave it out (it is for "
                    f"{owners}){'; a table gets them with pandas: table.merge(corpus, ...)' if texts else ''}"
                )
        missing = [option for option in ("queries", "corpus") if option in form.options and stated[option] is None]
        if form.query_by_id and missing:
            flags = " and no ".join(map(_flag, missing))
            raise InputError(
                f"{path}: got no {flags}; expected the files of topics and of documents, since rows hold ids alone; "
                f"fix: give {flags.replace(' no ', ' ')}"
            )
        if form.needs_scale and self.grade_scale is None:
            raise InputError(
                f"{path}: got no scale; expected that of its grades (it cannot be inferred: a grade that was never "
                "given leaves no trace); fix: state the lowest and the highest grade, for example --scale 0 3"
            )
        if self.scale is not None and self.score_map is not None:
            raise InputError(f"{path}: got a scale and a score map; expected one of them; fix: leave one out")
        return self


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def file_in_folder(folder: Path, names: Sequence[str], split: str | None = None) -> Path:
    """Return the file with one of these names in a data set's folder; `split` selects among the files of a pattern."""
    available = {file.stem: file for name in names for file in sorted(folder.glob(name))}
    if not available:
        other = other_form(folder / names[0].replace("*", split or "test"))
        got = "no such folder" if not folder.exists() else "a file" if folder.is_file() else "no such file in it"
        raise InputError(
            f"{folder}: got {other[0] if other else got}; expected a folder with {' or '.join(names)}; fix: "
            + (f"write it with `{other[1]}`" if other else "check the path")
        )
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
    complete = [file for file in files if file not in halves]
    other = [file.name for file in complete if task_name(file) not in form.tasks]
    if len(other) == len(complete):
        raise InputError(
            f"{path}: got {', '.join(other[:3])}; expected files of the source {form.name} "
            f"({', '.join(f'{name}.jsonl' for name in form.tasks)}); fix: check the path, or read other triplets as "
            "the source sentence-transformers"
        )
    warnings = []
    if halves:
        warnings.append(f"{', '.join(file.name for file in halves)}: left out, another file has the rows of both")
    if other:
        warnings.append(f"{', '.join(other)}: not a file of {form.name}; its name is the task")
    return complete, warnings


def task_name(file: Path) -> str:
    """Return the name of a file without the suffixes for halves and for in-batch negatives."""
    name = stem_of(file)
    return next((name.removesuffix(end) for end in _PARTS_OF_NAMES if name.endswith(end)), name)


def looks_like(path: Path) -> list[str]:
    """Return the formats whose `signs` the first row of a table has; nothing for a file that is no table."""
    try:
        _, row, _ = next(raw_rows(path, InvalidFileError(path)), (0, {}, 0))
    # This only looks for a hint: an error here must not replace the first error.
    except (BixseError, OSError):
        return []
    return [name for name, form in FORMATS.items() if form.signs and {*form.signs} <= row.keys()]


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
