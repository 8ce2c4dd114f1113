"""What would make a table readable that is nearly right."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "vertical bars"}
"""What may stand between columns, in words."""
PACKED = {
    b"\x1f\x8b": ("gzip", "unpack it with `gunzip < FILE > NEW`"),
    b"\xff\xfe": ("UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
    b"\xfe\xff": ("UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
    b"PK\x03\x04": ("a ZIP archive or a spreadsheet", "unpack it, or save the sheet as .csv"),
    b"PAR1": ("Parquet", "name it with the suffix .parquet"),
    b"BZh": ("bzip2", "unpack it with `bunzip2 < FILE > NEW`"),
    b"\xfd7zXZ": ("xz", "unpack it with `unxz < FILE > NEW`"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unpack it with `unzstd < FILE > NEW`"),
}
"""First bytes of a file -> what it holds instead of UTF-8 text, and how to make that text."""
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
OTHER_NAMES = {
    "query": ("search", "search_query", "search_term", "question", "query_text", "anchor", "sentence1", "text1"),
    "document": ("passage", "doc", "document_text", "passage_text", "text", "title", "content", "body", "answer",
                 "positive", "product", "sentence2", "text2"),
    "relevance": ("grade", "label", "score", "rating", "stars", "judgement", "judgment", "relevance_score", "rel"),
}  # fmt: skip
"""Column of graded pairs -> what others call it."""


def not_text(start: bytes) -> str | None:
    """Say what the first bytes of a file tell of its format, and how to make it text; None where it may be text.

    Example:
        >>> not_text(b"BZh91AY")
        'got bzip2; expected UTF-8 text; fix: unpack it with `bunzip2 < FILE > NEW`'
    """
    for magic, (name, fix) in PACKED.items():
        if start.startswith(magic):
            return f"got {name}; expected UTF-8 text; fix: {fix}"
    if b"\0" in start[:6]:
        return "got bytes of 0; expected UTF-8 text; fix: if it is UTF-16, convert it with `iconv -f utf-16le -t utf-8`"
    return None


def number_hint(value: object, otherwise: str) -> str:
    """How to fix what is not a number.

    Example:
        >>> number_hint("0,5", "drop the row"), number_hint("good", "drop the row")
        ('write decimals with a point: 0.5', 'drop the row')
    """
    if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value):
        return f"write decimals with a point: {value.strip().replace(',', '.')}"
    return otherwise


def column_hint(column: str, names: Sequence[object], otherwise: str) -> str:
    """How to get a column that is missing: its name in other letters, or a header with another separator.

    Example:
        >>> column_hint("relevance", ["query", "Relevance "], "add it")
        "rename 'Relevance ' to 'relevance': names are compared letter by letter"
        >>> column_hint("query", ["query;document;relevance"], "add it")
        'the header is separated by semicolons: save the file with commas as .csv, or with tabs as .tsv'
    """
    found = [name for name in names if isinstance(name, str)]
    for name in found:
        if name != column and _plain(name) == column:
            return f"rename {name!r} to {column!r}: names are compared letter by letter"
    if len(found) == 1:
        for separator, words in SEPARATORS.items():
            if separator in found[0]:
                return f"the header is separated by {words}: save the file with commas as .csv, or with tabs as .tsv"
    return otherwise


@lru_cache
def missing_column_hint(path: Path, column: str, names: tuple[str, ...], needed: tuple[str, ...]) -> str:
    """How to get a column that is missing: as `column_hint`, or by a command that maps the columns of graded pairs.

    Args:
        path: the file.
        column: the missing column.
        names: the columns, or the keys of a row, that are there.
        needed: the columns that have to be.

    Example:
        >>> from pathlib import Path
        >>> wanted = ("query", "document", "relevance")
        >>> print(missing_column_hint(Path("clicks.csv"), "query", ("search", "title", "stars"), wanted))
        with the lowest and highest possible grade for LOW HIGH: bixse convert table clicks.csv --query-column search \
--document-column title --grade-column stars --scale LOW HIGH
    """
    otherwise = f"rename or add {column!r}"
    hint = column_hint(column, names, "")
    if hint or not {*OTHER_NAMES} <= {*needed}:
        return hint or otherwise
    plain = {_plain(name): name for name in names}
    flags = {}
    for wanted, others in OTHER_NAMES.items():
        name = next((plain[one] for one in (wanted, *others) if one in plain), None)
        if name is None:
            return otherwise
        flags["grade" if wanted == "relevance" else wanted] = name
    words = [word for flag, name in flags.items() if name != flag for word in (f"--{flag}-column", shlex.quote(name))]
    command = " ".join(["bixse convert table", shlex.quote(str(path)), *words, "--scale LOW HIGH"])
    return f"with the lowest and highest possible grade for LOW HIGH: {command}"


def _plain(name: str) -> str:
    return "_".join(name.strip().casefold().replace("-", " ").split())
