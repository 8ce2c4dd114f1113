"""The official files of TREC Deep Learning passages, 2019 to 2023: names, addresses, and how they are read."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.data.io.files import write_atomically
from bixse.data.row_files.read import read_rows
from bixse.data.row_files.values import FileColumn
from bixse.errors import InputError, InvalidFileError, StorageError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

NIST = "https://trec.nist.gov/data/deep"
MSMARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
CORPUS_V1 = "collection.tsv"
"""The corpus of 2019 and 2020: id, tab, passage."""
CORPUS_V2_FOLDER = "msmarco_v2_passage"
"""The corpus of 2021 to 2023: 70 files msmarco_passage_00 to 69, one JSON object {pid, passage, ...} a line."""
SHARDS_V2 = 70
"""Files of that corpus."""
PASSAGES_FILE = "passages.jsonl"
"""Passages that were looked up already, {_id, text} a line: with it, the corpora need not be there."""
DUPLICATES_FILE = "msmarco-v2-passage-neardupes.txt"
"""Classes of near-duplicates of the second corpus: class, passage, beginning of its text."""
DUPLICATES_URL = f"https://ir.nist.gov/{DUPLICATES_FILE}.gz"
CORPUS_URLS = {
    1: f"curl -LO {MSMARCO}/collection.tar.gz && tar xzf collection.tar.gz",
    2: f"curl -LO {MSMARCO}/msmarco_v2_passage.tar && tar xf msmarco_v2_passage.tar",
}
"""Version of the corpus -> the command that brings it."""
CORPUS_SIZES = {1: 8_841_823, 2: 138_364_198}
"""Version of the corpus -> passages."""


@dataclass(frozen=True)
class Year:
    """The files of one year, each as it is named or with .gz."""

    year: str
    """The year."""
    version: int
    """Of the corpus."""
    queries: str
    """Query id, tab, text."""
    qrels: str
    """TREC judgements."""
    candidates: str
    """The list to be put in a new order: a TREC run, or for 2019 and 2020 lines of query id, id, query, passage."""
    judged_queries: int
    """Queries in the official judgements."""
    propagated: bool = False
    """The judgements were copied to all near-duplicates of a judged passage."""

    @property
    def commands(self) -> dict[str, str]:
        """File -> the command that brings it."""
        packed = {name: f"{MSMARCO}/{name}.gz" for name in (self.queries, self.candidates)}
        if self.version == 2:
            packed[self.queries] = f"{MSMARCO}/{self.queries}"
        addresses = {**packed, self.qrels: f"{NIST}/{self.qrels}"}
        return {name: f"curl -LO {address}" for name, address in addresses.items()}


YEARS = {
    **{
        year: Year(
            year, 1, f"msmarco-test{year}-queries.tsv", f"{year}qrels-pass.txt",
            f"msmarco-passagetest{year}-top1000.tsv", judged,
        )
        for year, judged in (("2019", 43), ("2020", 54))
    },
    "2021": Year("2021", 2, "2021_queries.tsv", "2021.qrels.pass.final.txt", "2021_passage_top100.txt", 53),
    **{
        year: Year(
            year, 2, f"{year}_queries.tsv", f"{year}.qrels.pass.withDupes.txt", f"{year}_passage_top100.txt", judged,
            propagated=True,
        )
        for year, judged in (("2022", 76), ("2023", 82))
    },
}  # fmt: skip
"""Year -> its files."""


def find_file(data: Path, name: str) -> Path | None:
    """A file by its name, packed or not; None where it is not there."""
    return next((path for path in (data / name, data / f"{name}.gz") if path.is_file()), None)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, packed by gzip or not.

    Raises:
        InputError: the file cannot be read, is damaged or not UTF-8.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: got {type(error).__name__} ({error}); expected the official file; fix: fetch it again"
        ) from error


def read_columns(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The tab-separated columns of each line that is not blank.

    Raises:
        InvalidFileError: a line of too few columns.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            fields = tuple(line.split("\t", len(names) - 1))
            if len(fields) != len(names):
                error = InvalidFileError(path)
                expected = f"{', '.join(names)}, tab-separated"
                error.add(number, None, shorten(line), expected, "fetch the file again")
                raise error
            yield fields


def read_duplicates(path: Path, wanted: frozenset[str] | None = None) -> dict[str, str]:
    """Passage -> the passage that stands for its class, of passages that are not that one themselves.

    Args:
        path: the file of classes.
        wanted: only these passages; None: all.
    """
    stands_for: dict[str, str] = {}
    for line in read_lines(path):
        fields = line.split(maxsplit=2)
        if len(fields) >= 2 and fields[0] != fields[1] and (wanted is None or fields[1] in wanted):
            stands_for[fields[1]] = fields[0]
    return stands_for


def stream_corpus(data: Path, version: int) -> Iterator[tuple[str, str]]:
    """Id and text of every passage of a full corpus."""
    if version == 1:
        path = find_file(data, CORPUS_V1)
        if path is not None:
            yield from ((name, text) for name, text in read_columns(path, ("passage id", "passage")))
        return
    for shard in range(SHARDS_V2):
        path = find_shard(data, shard)
        if path is not None:
            for line in read_lines(path):
                row = json.loads(line)
                yield row["pid"], row["passage"]


def find_shard(data: Path, shard: int) -> Path | None:
    """A file of the second corpus, in its own folder or beside the others."""
    name = f"msmarco_passage_{shard:02d}"
    return find_file(data / CORPUS_V2_FOLDER, name) or find_file(data, name)


def missing_corpus(data: Path, version: int, wanted: Iterable[str] | None = None) -> list[str]:
    """The files of a corpus that are not there, with their command; of `wanted` passages only those that hold them."""
    if version == 1:
        return [] if find_file(data, CORPUS_V1) else [f"{CORPUS_V1}: {CORPUS_URLS[1]}"]
    shards = set(range(SHARDS_V2)) if wanted is None else {_place(name)[0] for name in wanted}
    lacking = sorted(shard for shard in shards if find_shard(data, shard) is None)
    if not lacking:
        return []
    which = ", ".join(f"{shard:02d}" for shard in lacking) if len(lacking) < SHARDS_V2 else f"00 to {SHARDS_V2 - 1}"
    return [f"{CORPUS_V2_FOLDER}/msmarco_passage_<number>.gz, numbers {which}: {CORPUS_URLS[2]}"]


def load_known_passages(data: Path) -> dict[str, str]:
    """The passages of passages.jsonl, {} where it is not there.

    Raises:
        InvalidFileError: every line that is no {_id, text}.
    """
    path = find_file(data, PASSAGES_FILE)
    if path is None or not path.stat().st_size:
        return {}
    columns = [FileColumn("_id", "id"), FileColumn("text", may_be_empty=True)]
    return {row["_id"]: row["text"] for _, row in read_rows(path, columns)}


def look_up_passages(data: Path, wanted: dict[int, set[str]]) -> dict[str, str]:
    """The texts of some passages, from passages.jsonl or the corpora; what had to be looked up is added to the file.

    Args:
        data: folder of the files.
        wanted: version of the corpus -> ids.

    Raises:
        InputError: a passage is not in its corpus.
    """
    known = load_known_passages(data)
    before = len(known)
    lacking = {version: ids - known.keys() for version, ids in wanted.items()}
    if lacking.get(1):
        known.update((name, text) for name, text in stream_corpus(data, 1) if name in lacking[1])
    by_shard: dict[int, dict[int, str]] = {}
    for name in lacking.get(2, ()):
        shard, offset = _place(name)
        by_shard.setdefault(shard, {})[offset] = name
    for shard, by_offset in by_shard.items():
        path = find_shard(data, shard)
        if path is not None:
            known.update(_passages_of_shard(path, by_offset))
    absent = sorted(name for ids in wanted.values() for name in ids if name not in known)
    if absent:
        raise InputError(
            f"{data}: got no text of {len(absent)} passages, such as {absent[0]!r}; expected all in {PASSAGES_FILE} "
            "or the corpora; fix: fetch corpora and judgements of one release"
        )
    if len(known) > before:
        _keep(data, known)
    return {name: known[name] for ids in wanted.values() for name in sorted(ids)}


def _keep(data: Path, known: dict[str, str]) -> None:
    """Write passages.jsonl; a folder that cannot be written only costs the next look-up."""
    lines = (json.dumps({"_id": name, "text": text}, ensure_ascii=False) + "\n" for name, text in known.items())
    with suppress(StorageError):
        write_atomically(data / PASSAGES_FILE, "".join(lines))


def _place(name: str) -> tuple[int, int]:
    """File and byte offset that the id of a passage of the second corpus holds.

    Raises:
        InputError: the id is of another kind.
    """
    try:
        shard, offset = name.removeprefix("msmarco_passage_").split("_")
        return int(shard), int(offset)
    except ValueError as error:
        raise InputError(
            f"passage id: got {name!r}; expected one such as msmarco_passage_20_838723280; fix: check the qrels"
        ) from error


def _passages_of_shard(path: Path, by_offset: dict[int, str]) -> Iterator[tuple[str, str]]:
    """Id and text of the lines that begin at given offsets of the unpacked file."""

    def read(file: BinaryIO | gzip.GzipFile) -> Iterator[tuple[str, str]]:
        for offset in sorted(by_offset):
            file.seek(offset)  # in a packed file this reads on to there
            try:
                row = json.loads(file.readline())
                name, text = str(row["pid"]), str(row["passage"])
            except (ValueError, KeyError, TypeError):
                continue
            if name == by_offset[offset]:
                yield name, text

    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                yield from read(packed)
        else:
            with path.open("rb") as plain:
                yield from read(plain)
    except (OSError, EOFError) as error:
        raise InputError(
            f"{path}: got {type(error).__name__} ({error}); expected the official file; fix: fetch it again"
        ) from error
