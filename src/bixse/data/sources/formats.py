"""The outside formats that `bixse convert` takes, and how each is opened."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.io.parquet import column_names
from bixse.data.sources.corpus import corpus_files
from bixse.data.sources.hub import HUB, hub_folder
from bixse.data.sources.reading import RowErrors, kind_of
from bixse.data.sources.tables import TABLES, table_rows
from bixse.errors import BixseError, InputError, did_you_mean, shorten

if TYPE_CHECKING:
    from bixse.data.sources.judgement_files import JudgementSource
    from bixse.data.sources.table import TableColumns
    from bixse.relevance import GradeScale


@dataclass(frozen=True)
class SourceOptions:
    """What some sources need beside their path."""

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
class SourceKind:
    """One outside format."""

    home: str
    """Module below `bixse.data.sources`, and class."""
    about: str
    """What it is, for people."""
    takes: tuple[str, ...] = ()
    """Options that concern it."""

    @property
    def reader(self) -> type[JudgementSource]:
        """The class."""
        module, _, name = self.home.partition(":")
        found: type[JudgementSource] = getattr(import_module(f"bixse.data.sources.{module}"), name)
        return found


SOURCES = {
    "lightblue": SourceKind("lightblue:LightBlueFiles", "grades of LightBlue's reranker data, 1 to 5"),
    "e5": SourceKind("e5:E5Files", "E5's public training data, 14 tasks, binary"),
    "flagembedding": SourceKind("flagembedding:FlagEmbeddingFile", "BGE's training data, scored or not",
                                ("score_map",)),
    "tevatron": SourceKind("tevatron:TevatronFiles", "tevatron's training data, texts or ids", ("score_map", "corpus")),
    "sentence-transformers": SourceKind("tuples:TupleFiles", "triplets, n-tuples and labelled pairs",
                                        ("scale", "score_map")),
    "arctic": SourceKind("arctic:ArcticFolder", "Arctic Embed's queries, documents and relations", ("scale",)),
    "nvidia": SourceKind("nvidia:NvidiaFile", "NeMo retriever's training files", ("corpus",)),
    "umbrela": SourceKind("umbrela:UmbrelaFile", "judgements of umbrela, 0 to 3"),
    "beir": SourceKind("trec_texts:BeirFolder", "a collection folder, one split", ("scale", "qrels")),
    "trec": SourceKind("trec_texts:TrecFiles", "TREC's qrels, topics and collection", ("scale", "queries", "corpus")),
    "ir_datasets": SourceKind("ir_datasets_source:IrDataset", "a data set of ir_datasets by name", ("scale",)),
    "wands": SourceKind("table:WandsFolder", "Wayfair's product search, grades 0 to 2"),
    "table": SourceKind("table:TableFiles", "your own table with a grade", ("scale", "columns")),
    "pairs": SourceKind("own_pairs:OwnPairs", "graded pairs of bixse, for the transforms"),
}  # fmt: skip
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
"""Source -> keys that its rows have."""


def looks_like(path: Path) -> list[str]:
    """The sources whose keys the first row of a table has; none for what is no table.

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


def open_source(name: str, path: str | Path, options: SourceOptions, download: bool = False) -> JudgementSource:
    """Open a source of graded pairs.

    Args:
        name: one of `SOURCES`.
        path: file or folder, `hub:owner/name` for a data set of the Hugging Face Hub, or a name of ir_datasets.
        options: what some sources need.
        download: whether data may be fetched.

    Raises:
        InputError: no such source or path, an option that the source does not take, or one that it lacks.

    Example:
        >>> open_source("lightblu", "rows.jsonl", SourceOptions())
        Traceback (most recent call last):
        ...
        bixse.errors.InputError: source: got 'lightblu'; expected one of lightblue, e5, flagembedding, tevatron, \
sentence-transformers, arctic, nvidia, umbrela, beir, trec, ir_datasets, wands, table, pairs; fix: did you mean \
'lightblue'?
    """
    if name not in SOURCES:
        hint = did_you_mean(name, SOURCES, "see `bixse convert --list`")
        raise InputError(f"source: got {shorten(name)}; expected one of {', '.join(SOURCES)}; fix: {hint}")
    kind = SOURCES[name]
    for option in fields(SourceOptions):
        if getattr(options, option.name) is not None and option.name not in kind.takes:
            owners = ", ".join(other for other, it in SOURCES.items() if option.name in it.takes)
            raise InputError(
                f"source {name}: got {_flag(option.name)}; expected none, the files say it; fix: leave it out "
                f"(it is for {owners})"
            )
    if name == "ir_datasets":
        from bixse.data.sources.ir_datasets_source import IrDataset

        return IrDataset(path, options.scale, download)
    where = hub_folder(name, str(path), download) if str(path).startswith(HUB) else Path(path)
    arguments: dict[str, Any] = {option: getattr(options, option) for option in kind.takes}
    if "qrels" in arguments:
        arguments["split"] = arguments.pop("qrels")
    if name == "trec":
        arguments["corpus"] = corpus_files(options.corpus)
    return kind.reader(where, **arguments)


def _flag(option: str) -> str:
    return {"columns": "names of columns", "qrels": "--qrels"}.get(option, f"--{option.replace('_', '-')}")
