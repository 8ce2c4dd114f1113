"""Read documents, queries and labels as people have them: files of rows, folders, data sets, frames, dictionaries."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from bixse.data.corpus import DOCUMENT_COLUMNS, QUERY_COLUMNS, JudgedCorpus, by_id, refuse_all_empty, warn_of_empty
from bixse.data.joined import MOST_UNJOINED, Unjoined, warn_of
from bixse.data.trec import one_grade, read_qrels
from bixse.errors import InputError, InvalidFileError, did_you_mean, shorten
from bixse.files.files import read_text
from bixse.files.rows import FORMATS, kind_of, raw_rows, read_blocks
from bixse.files.values import DOCUMENT_IDS, FileColumn, missing_column_hint

LABEL_COLUMNS = (
    FileColumn("query-id", "id", other_names=("query_id", "qid", "topic_id", "question_id")),
    FileColumn("corpus-id", "id", other_names=DOCUMENT_IDS),
    FileColumn("score", "number", other_names=("grade", "relevance", "label", "rating")),
)
KEYS = {
    "documents": dict(zip(("id", "title", "text"), DOCUMENT_COLUMNS, strict=True)),
    "queries": dict(zip(("id", "text"), QUERY_COLUMNS, strict=True)),
    "labels": dict(zip(("query", "document", "grade"), LABEL_COLUMNS, strict=True)),
}
"""Part of a collection -> key -> its column. `documents.id` and so on are the keys that people map."""
ROWS_FOR_NAMES = 100
"""Number of rows of JSONL whose keys are the names of its columns."""
HTML = (".html", ".htm")
SUFFIXES = (".txt", ".md", *HTML)
HIDDEN = {"script", "style", "template", "noscript"}
INLINE = re.compile("a|abbr|b|bdi|bdo|cite|code|em|font|i|kbd|mark|q|s|samp|small|span|strong|sub|sup|u|var|wbr")
"""Elements that do not end a word."""
SHORT = 40
"""Maximum length of a text without white space that looks like an id or a code."""


def read_given(documents: Any, queries: Any, labels: Any, columns: Mapping[str, str], split: str) -> JudgedCorpus:
    """Read the parts of a collection in any form; dictionaries by id stay as they are, and `split` names the labels.

    Warnings name guessed columns and files that were left out. Raise InputError for a form, column or file that cannot
    be used, and InvalidFileError for all wrong rows of a file.
    """
    check_columns(columns)
    notes: list[str] = []
    if not isinstance(documents, Mapping):
        rows = _read_part("documents", documents, columns, notes)
        titles = rows.get("title") or [None] * len(rows["id"])
        texts = [{"title": title, "text": text} for title, text in zip(titles, rows["text"], strict=True)]
        documents = dict(zip(rows["id"], texts, strict=True))
    if not isinstance(queries, Mapping):
        rows = _read_part("queries", queries, columns, notes)
        queries = dict(zip(rows["id"], rows["text"], strict=True))
    if not (labels is None or isinstance(labels, Mapping)):
        labels = _read_labels(labels, columns, notes)
    held = by_id(queries, documents, labels, split, "documents, queries, labels")
    bodies = {name: document.text for name, document in held.corpus.items()}
    notes += [*check_texts(bodies, held.queries), *check_texts(held.queries, bodies, "queries")]
    empty = [name for name, document in held.corpus.items() if not document.content]
    refuse_all_empty(Path("documents"), len(bodies), len(empty))
    return replace(held, warnings=(*notes, *warn_of_empty(empty, len(bodies))))


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse the name of a column for a key that does not exist."""
    known = [f"{part}.{key}" for part, keys in KEYS.items() for key in keys]
    if unknown := [key for key in columns if key not in known]:
        raise InputError(
            f"columns: got {shorten(unknown[0])}; expected {', '.join(known)}; fix: {did_you_mean(unknown[0], known)}"
        )


def check_texts(texts: Mapping[str, str], others: Container[str], part: str = "documents") -> list[str]:
    """Refuse texts most of which are ids of the `others`; warn of texts most of which look like ids or codes."""
    ids = [text for text in texts.values() if text in others]
    if len(ids) > MOST_UNJOINED * len(texts):
        raise InputError(
            f"{part}: got {len(ids):,} of {len(texts):,} texts that are ids of the other part, for example "
            f"{shorten(ids[0])}; expected texts; fix: --columns {part}.text=NAME says which column holds them"
        )
    short = tuple(text for text in texts.values() if len(text) <= SHORT and len(text.split()) == 1)
    what, effect = f"{part} with a short text without white space", "check the column (Chinese and Japanese have none)"
    codes = Unjoined(what, len(short), len(texts), short[:1], effect)
    return warn_of(part, codes) if codes.is_most else []


def _read_labels(given: Any, columns: Mapping[str, str], notes: list[str]) -> Mapping[str, Mapping[str, float]]:
    """Return query id -> document id -> grade; refuse two grades of a pair."""
    if isinstance(given, str | Path) and kind_of(Path(given)) not in FORMATS and not Path(given).is_dir():
        return read_qrels(given)  # TREC's qrels have any suffix
    rows, errors = _read_part("labels", given, columns, notes), InvalidFileError(_name("labels", given))
    qrels: dict[str, dict[str, float]] = {}
    first: dict[tuple[str, str], tuple[int, float]] = {}
    grades = rows.get("grade") or [1.0] * len(rows["query"])
    for row, query, document, grade in zip(rows["row"], rows["query"], rows["document"], grades, strict=True):
        if one_grade(first, row, (query, document), grade, errors):
            qrels.setdefault(query, {})[document] = grade
    errors.raise_any()
    return qrels


def _read_part(part: str, given: Any, stated: Mapping[str, str], notes: list[str]) -> dict[str, list[Any]]:
    """Return key -> one value per row, and the numbers of the rows as "row"; add what was guessed to `notes`."""
    where = _name(part, given)
    table = _table_of(part, given, notes)
    columns = _choose(part, where, _names_in(where) if table is None else list(table), stated, notes)
    rows: dict[str, list[Any]] = {key: [] for key in ("row", *columns)}
    for block in read_blocks(where, list(columns.values()), table=table):
        rows["row"] += block.rows
        for key, column in columns.items():
            rows[key] += block.columns[column.name]
    return rows


def _name(part: str, given: Any) -> Path:
    return Path(given) if isinstance(given, str | Path) else Path(part)


def _table_of(part: str, given: Any, notes: list[str]) -> dict[str, list[Any]] | None:
    """Return name -> values of an object in memory or of a folder; None for a file of rows."""
    if isinstance(given, str | Path):
        if not Path(given).is_dir():
            return None
        if any((Path(given) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            return _data_set(Path(given))
        table, others = _read_text_folder(Path(given))
        notes += others
        return dict(table)
    if isinstance(given, list | tuple) and given and all(isinstance(row, Mapping) for row in given):
        return {
            str(name): [row.get(name) for row in given] for name in dict.fromkeys(key for row in given for key in row)
        }
    from datasets import Dataset
    from pandas import DataFrame

    if isinstance(given, DataFrame):
        return dict(given.astype(object).where(given.notna(), None).rename(columns=str).to_dict("list"))
    if isinstance(given, Dataset | pa.Table):
        return dict(given.to_dict() if isinstance(given, Dataset) else given.to_pydict())
    got = shorten(given) if isinstance(given, list | tuple) else type(given).__name__
    raise InputError(
        f"{part}: got {got}; expected a path, a frame, a Dataset, an Arrow table, a list of dictionaries, or a "
        "dictionary by id; fix: pass one of them"
    )


def _data_set(folder: Path) -> dict[str, list[Any]]:
    """Return the columns of a data set that `datasets` saved."""
    from datasets import Dataset, load_from_disk

    try:
        data = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder}: got a data set that cannot be read ({error}); expected what save_to_disk wrote; fix: save it "
            "again"
        ) from error
    if not isinstance(data, Dataset):
        raise InputError(
            f"{folder}: got a data set of {len(data)} parts; expected a single table; fix: name the folder of a part, "
            f"such as {folder / next(iter(data), '')}"
        )
    return dict(data.to_dict())


def _names_in(path: Path) -> list[str]:
    """Return the names of the columns of a file of rows."""
    errors = InvalidFileError(path)
    rows = [row for _, row, _ in islice(raw_rows(path, errors), ROWS_FOR_NAMES)]
    if not rows:
        errors.raise_any()
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")
    return list(dict.fromkeys(name for row in rows for name in row))


def _choose(
    part: str, where: Path, names: Sequence[str], stated: Mapping[str, str], notes: list[str]
) -> dict[str, FileColumn]:
    """Return key -> column under its name in the file: the stated one, or the only one with a usual name."""
    errors, chosen, guessed = InvalidFileError(where), dict[str, FileColumn](), []
    if len(names) == 1 and "separated" in (hint := missing_column_hint(where, "", tuple(names), ())):
        errors.add(None, None, f"the column {shorten(names[0])}", "several columns", hint)
        errors.raise_any()
    free = [name for name in names if name not in {stated.get(f"{part}.{key}") for key in KEYS[part]}]
    for key, column in KEYS[part].items():
        title, word = stated.get(f"{part}.{key}"), f"{part}.{key}"
        alike = _alike(column, free)
        if title is None and len(alike) == 1:
            (title,) = alike
            guessed += [f"{word} = {title!r}"] if _plain(title) != _plain(column.name) else []
        if title is not None and title in names:
            if title in (other.name for other in chosen.values()):
                errors.add(None, word, f"{title!r} again", "a column of its own", "name another column")
            chosen[key] = replace(column, name=title, other_names=())
        elif title is not None:
            hint = did_you_mean(title, names, "name one of them")
            errors.add(None, word, shorten(title), f"one of {shorten(', '.join(names), 120)}", hint)
        elif key == "grade" and len(names) == len(chosen) == 2:
            guessed.append("no column of grades: each row counts as relevant, grade 1")
        elif column.needed or alike:
            got = " and ".join(map(repr, alike)) or f"columns {shorten(', '.join(names), 120)}"
            fix = f"say which one it is, as in --columns {word}={(*alike, *names, 'NAME')[0]!r}"
            errors.add(None, word, got, "a column that is unmistakable (the first line has the names)", fix)
    errors.raise_any()
    if guessed:
        notes.append(f"{where.name}: guessed {', '.join(guessed)}; --columns says it otherwise")
    return chosen


def _alike(column: FileColumn, names: Iterable[str]) -> list[str]:
    """Return the names that are usual ones of a column, in any case and with any separator; its first one alone."""
    usual = {_plain(name) for name in column.names}
    alike = [name for name in names if _plain(name) in usual]
    return [column.name] if column.name in alike else alike


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()


class _Page(HTMLParser):
    """The title and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.parts: list[str] = []
        """The text; joined at the end, as `+=` on a text is quadratic."""
        self._inside = ""
        """The hidden element that the parser is in, or "title"."""
        self._pictures = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._break(tag)
        self._pictures += tag == "svg"
        if not self._inside and (tag in HIDDEN or (tag == "title" and not self.title and not self._pictures)):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._break(tag)
        self._pictures = max(self._pictures - (tag == "svg"), 0)
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.title += data
        elif not self._inside:
            self.parts.append(data)

    def _break(self, tag: str) -> None:
        self.parts.append("" if INLINE.fullmatch(tag) else " ")


def page_text(html: str) -> tuple[str, str]:
    """Return title and text of an HTML page, with white space as one space.

    Example:
        >>> page_text("<title>Copy</title><style>p {}</style><p>Copy a <b>fol</b>der.</p><p>Then stop.")
        ('Copy', 'Copy a folder. Then stop.')
    """
    page = _Page()
    page.feed(html)
    page.close()
    return " ".join(page.title.split()), " ".join("".join(page.parts).split())


def _read_text_folder(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return columns of one row per text file below a folder, and a warning that counts the other files.

    The id is the path below the folder, with _ for white space, since ids have none.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    visible = [file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts)]
    texts = [file for file in visible if file.suffix.lower() in SUFFIXES]
    if not texts:
        raise InputError(
            f"{folder}: got a folder without {', '.join(SUFFIXES)} files; expected texts, a data set that `datasets` "
            "saved, or a file of rows; fix: name the file instead of its folder"
        )
    rows = []
    for file in texts:
        name = "_".join(file.relative_to(folder).as_posix().split())
        title, text = page_text(read_text(file)) if file.suffix.lower() in HTML else ("", read_text(file))
        rows.append((name, title, text.strip()))
    names = [str(file.relative_to(folder)) for file in visible]
    known = {str(file.relative_to(folder)) for file in texts}
    others = Unjoined.of("files of other kinds", names, known, "they are left out")
    return dict(zip(("_id", "title", "text"), map(list, zip(*rows, strict=True)), strict=True)), warn_of(folder, others)
