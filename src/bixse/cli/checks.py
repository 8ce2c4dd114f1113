"""The checks of what a verb reads, before it imports a library that takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bixse.files.run_folder import in_run
from bixse.settings import Reads, Settings, paths_in

if TYPE_CHECKING:
    from bixse.files.files import Use

Kind = TypeVar("Kind", bound=Settings)


def check_inputs(settings: Settings) -> None:
    """Refuse missing files, columns and splits, and names of no model, by the errors of their readers.

    Only the first rows of a file are read.
    """
    # models come last: a name may be looked up on the hub
    for name, use in sorted(uses_of(settings), key=lambda entry: entry[1] in ("model", "system")):
        value = getattr(settings, name)
        values = [] if value is None else value if isinstance(value, tuple) else [value]
        splits = getattr(settings, f"{name}_split", getattr(settings, "split", None))
        splits = splits if isinstance(splits, tuple) else [splits] * len(values)
        for each, split in zip(values, splits, strict=False):
            _check(use, each, split)


def with_files_of_runs(settings: Kind) -> Kind:
    """Return the settings with the file of a run in place of its folder, where the use of the file is known."""
    changed = {}
    for name, use in uses_of(settings):
        value = getattr(settings, name)
        if isinstance(value, tuple):
            changed[name] = tuple(in_run(each, use) for each in value)
        elif value is not None:
            changed[name] = in_run(value, use)
    return settings.model_copy(update=changed)


def inputs_of(settings: Settings) -> list[Path]:
    """Return the files and folders that settings name, those of their sections too."""
    read = {*settings.path_settings(), *(name for name, _ in uses_of(settings))}
    values = vars(settings)
    paths = [path for name in read for path in paths_in(values[name])]
    sections = [value for value in values.values() if isinstance(value, Settings)]
    return paths + [path for section in sections for path in inputs_of(section)]


def uses_of(settings: Settings) -> Iterator[tuple[str, Use]]:
    """Yield the settings that name files to read, with the use of these files."""
    for name, field in type(settings).model_fields.items():
        yield from ((name, mark.use) for mark in field.metadata if isinstance(mark, Reads))


def _check(use: Use, given: Any, split: str | None) -> None:
    if use == "judgements":
        return  # files of several formats, which need no slow library
    if use in ("model", "system", "index"):
        check_model(str(given), use)
        return
    from bixse.data import pairs_files
    from bixse.data.corpus import QUERY_COLUMNS, check_split
    from bixse.files.rows import check_first_rows

    if use == "collection":
        if split is not None:
            check_split(given, split)
        check_corpus_file(given)
        check_first_rows(given / "queries.jsonl", QUERY_COLUMNS)
    elif use == "corpus":
        check_corpus_file(given)
    else:
        columns = {
            "pairs": pairs_files.PAIR_COLUMNS,
            "graded": pairs_files.GRADED_COLUMNS,
            "training": pairs_files.GRADED_COLUMNS,
            "scores": pairs_files.SCORE_COLUMNS,
            "queries": QUERY_COLUMNS,
        }
        check_first_rows(given, columns[use])


def check_corpus_file(path: Path) -> None:
    """Refuse a corpus, or the folder of one, that is missing or whose first rows are invalid."""
    from bixse.data.corpus import DOCUMENT_COLUMNS, check_folder
    from bixse.files.rows import check_first_rows

    if not path.is_file():
        check_folder(path)
        path = path / "corpus.jsonl"
    check_first_rows(path, DOCUMENT_COLUMNS)


def check_model(name: str, use: Use = "model") -> None:
    """Refuse, by a ModelError, a name of no model, which an index, run or bm25 may have for the use "system"."""
    from bixse.encoders.loading.build import STATIC, resolve_model
    from bixse.index.vector_store import PREFIXES

    # an index, a run file and bm25 are opened, and refused, by the verb
    other = name == "bm25" or name.startswith(PREFIXES) or Path(name).exists()
    if use == "model" or (use == "system" and not other):
        resolve_model(name.removeprefix(STATIC))
