"""Which files a source consists of, and the rows of those that are not tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text
from bixse.data.row_files.read import files_of, kind_of, raw_rows, stem_of, text_lines
from bixse.data.trec import QRELS_HEADER
from bixse.errors import BixseError, InputError, InvalidFileError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bixse.data.sources.formats import Format

_HALVES = ("_split1", "_split2")
"""E5's files of the symmetric tasks also come in halves, one for each instruction."""
_APART = "_no_in_batch_neg"
"""End of the name of a file of BGE whose rows must not be one another's negatives."""


def of_folder(folder: Path, names: Sequence[str], split: str | None = None) -> Path:
    """The file of a data set's folder that has one of these names; a pattern takes the one that `split` names.

    Raises:
        InputError: there is no such file, or there are several and none is named.
    """
    if "*" not in names[0]:
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise InputError(f"{folder}: got no {' or '.join(names)}; expected it in the folder; fix: check the path")
    available = {file.stem: file for file in sorted(folder.glob(names[0]))}
    if not available:
        found = "no such folder" if not folder.exists() else "a file" if folder.is_file() else f"no {names[0]}"
        raise InputError(f"{folder}: got {found}; expected a folder with {names[0]}; fix: check the path")
    if split is None and len(available) > 1:
        raise InputError(
            f"{folder}: got {len(available)} splits; expected one to be named; fix: --qrels and one of "
            f"{', '.join(available)}"
        )
    name = split or next(iter(available))
    if name not in available:
        raise InputError(
            f"{folder}: got split {name!r}; expected one of {', '.join(available)}; "
            f"fix: {did_you_mean(name, available)}"
        )
    return available[name]


def text_files(path: Path | None) -> list[Path]:
    """A file of texts, or those of a folder, by name.

    Raises:
        InputError: a folder without such files, or no such file.
    """
    if path is None:
        return []
    return files_of(path, what="a file of texts, or a folder of them")


def known_files(form: Format, path: Path, files: list[Path]) -> tuple[list[Path], list[str]]:
    """The files of a format that knows their names, and warnings: halves beside the whole are left aside.

    Raises:
        InputError: none of them is known.
    """
    names = {stem_of(file) for file in files}
    halves = [file for file in files if task_name(file) != stem_of(file) and task_name(file) in names]
    kept = [file for file in files if file not in halves]
    if not any(task_name(file) in form.tasks for file in kept):
        raise InputError(
            f"{path}: got {', '.join(file.name for file in kept[:3])}; expected files of the source {form.name} "
            f"({', '.join(f'{name}.jsonl' for name in form.tasks)}); fix: check the path, or give other triplets to "
            "the source sentence-transformers"
        )
    told = [f"{', '.join(file.name for file in halves)}: left aside, as the whole file lies beside its halves"]
    other = [file.name for file in kept if task_name(file) not in form.tasks]
    unknown = f"{', '.join(other)}: not a file of {form.name}; its name is the task, with the default instruction"
    return kept, [*(told if halves else []), *([unknown] if other else [])]


def task_name(file: Path) -> str:
    """The name of a file without the part it is, and without what it says of negatives."""
    name = stem_of(file)
    return next((name.removesuffix(end) for end in (*_HALVES, _APART) if name.endswith(end)), name)


def rows_of(form: Format, file: Path, errors: InvalidFileError) -> Iterator[tuple[int, dict[str, Any], int]]:
    """The rows of a file with their numbers and the bytes read; those that cannot be read go to `errors`.

    Raises:
        InputError: the file cannot be read at all, or a needed column is missing.
    """
    if form.query_by_id and kind_of(file) != ".parquet":
        return _qrels(file, errors)
    if kind_of(file) == ".json":
        return _json_list(file, errors)
    return raw_rows(file, errors, form.needed, None if form.optional == ("*",) else form.optional)


def _qrels(file: Path, errors: InvalidFileError) -> Iterator[tuple[int, dict[str, Any], int]]:
    """The lines of TREC's qrels (four columns) or BEIR's (a TSV with its header); a pair has one grade."""
    is_beir = None
    given: dict[tuple[str, str], str] = {}
    for number, line, position in text_lines(file, errors):
        if is_beir is None:
            is_beir = tuple(name.strip().lower().replace("_", "-") for name in line.split("\t")) == QRELS_HEADER
            if is_beir:
                continue
        fields = line.split("\t") if is_beir else line.split()
        if len(fields) != (3 if is_beir else 4) or not all(fields):
            expected = "query id, document id, grade, tab-separated" if is_beir else "query id, 0, document id, grade"
            errors.add(number, None, shorten(line), expected, "correct the line, or give BEIR files their header")
            continue
        query, document, grade = fields[0], fields[-2], fields[-1]
        if given.setdefault((query, document), grade) != grade:
            found = f"{grade} where another line has {given[query, document]} for the same pair"
            errors.add(number, "score", found, "one grade per pair", "keep one of the two lines")
            continue
        yield number, {"query-id": query, "corpus-id": document, "score": grade}, position


def _json_list(path: Path, errors: InvalidFileError) -> Iterator[tuple[int, dict[str, Any], int]]:
    """The entries of the list `data` of a JSON file with their places from 1."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: got invalid JSON ({error}); expected one object with a list 'data'; fix: correct the file"
        ) from error
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(f"{path}: got {shorten(content)}; expected an object with a list 'data'; fix: check it")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield number, row, 0
        else:
            errors.add(number, None, shorten(row), "a JSON object", "write {...} with its keys")


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
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> _ = path.write_text(json.dumps({"query": "copy a folder", "pos": ["copytree"], "neg": []}))
        >>> looks_like(path)
        ['flagembedding']
    """
    try:
        _, row, _ = next(raw_rows(path, InvalidFileError(path)), (0, {}, 0))
    except (BixseError, OSError):
        return []
    return [name for name, signs in _SIGNS.items() if signs <= row.keys()]
