"""TREC Deep Learning passages, 2019 to 2023: the official files, and three protocols to search them."""

from __future__ import annotations

import gzip
import hashlib
import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, cast

from bixse.data.trec import read_qrels
from bixse.errors import InputError, InvalidFileError, StorageError, did_you_mean, shorten
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.tasks import QuerySet, Task, TaskSource
from bixse.files.files import file_hash, write_atomically
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn
from bixse.lab.suites.known_suites import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.evaluate import Evaluation
    from bixse.relevance import Qrels

Protocol: TypeAlias = Literal["judged", "full", "rerank"]
"""The corpus: the judged passages of all years (as in the BiXSE paper), the official corpora, or the official lists."""
TREC_MIN_RELEVANT_GRADE = 2.0
"""Grade 1 means "on topic, does not answer", so the track's binary metrics count grades from 2."""
WITHOUT = " without duplicates"
"""Suffix of a year's name if its propagated judgements are removed."""
INSTRUCTION_NAMES = ("TREC-DL", "msmarco_passage")
NIST = "https://trec.nist.gov/data/deep"
MSMARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
CORPUS_V1 = "collection.tsv"
"""The corpus of 2019 and 2020: id, tab, passage."""
CORPUS_V2_FOLDER = "msmarco_v2_passage"
"""The corpus of 2021 to 2023: 70 files msmarco_passage_00 to 69, one JSON object {pid, passage, ...} per line."""
SHARDS_V2 = 70
PASSAGES_FILE = "passages.jsonl"
"""Passages from earlier look-ups, {_id, text} per line. They replace the corpora."""
DUPLICATES_FILE = "msmarco-v2-passage-neardupes.txt"
"""Classes of near-duplicates in the second corpus: class, passage, beginning of its text."""
DUPLICATES_URL = f"https://ir.nist.gov/{DUPLICATES_FILE}.gz"
CORPUS_SIZES = {1: 8_841_823, 2: 138_364_198}


@dataclass(frozen=True)
class Year:
    """The files of one year, as described in `suites.toml`."""

    year: str
    corpus: int
    queries: str
    qrels: str
    candidates: str
    judged: int
    propagated: bool = False

    @property
    def commands(self) -> dict[str, str]:
        """File -> its download command."""
        queries = self.queries if self.corpus == 2 else f"{self.queries}.gz"
        return {
            self.queries: f"curl -LO {MSMARCO}/{queries}",
            self.candidates: f"curl -LO {MSMARCO}/{self.candidates}.gz",
            self.qrels: f"curl -LO {NIST}/{self.qrels}",
        }


YEARS = {year: Year(year, **files) for year, files in TABLES["years"].items()}


def chosen_years(names: Sequence[str] | None) -> list[Year]:
    """Return the named years, or all."""
    for name in names or ():
        if name not in YEARS:
            raise InputError(
                f"task: got {name!r}; expected one of {', '.join(YEARS)}; fix: {did_you_mean(name, YEARS)}"
            )
    return [YEARS[name] for name in (YEARS if names is None else dict.fromkeys(names))]


def missing_files(data: Path, years: Sequence[Year], protocol: Protocol) -> list[str]:
    """Return every missing file of a protocol with its download command."""
    missing = []
    for year in years:
        names = [year.queries, year.qrels, *([year.candidates] if protocol == "rerank" else [])]
        missing += [f"{name}: {year.commands[name]}" for name in names if _find_file(data, name) is None]
    known = _load_known_passages(data).keys() if protocol != "full" else set()
    for version in _versions(years):
        if protocol == "rerank" and version == 1:  # the lists of the first corpus contain the passages
            continue
        own = [year for year in years if year.corpus == version]
        sources = [year.candidates if protocol == "rerank" else year.qrels for year in own]
        if protocol == "full" or any(_find_file(data, name) is None for name in sources):
            missing += _missing_corpus(data, version)
        elif lacking := {name for year in own for name in _passages_of(data, year, protocol)} - known:
            missing += _missing_corpus(data, version, lacking)
    return missing


def trec_sources(data: Path, years: Sequence[Year], protocol: Protocol) -> list[TaskSource]:
    """Return the tasks of a protocol. Each corpus is read and encoded once for all its years."""
    reads = [partial(judged_pool, data, years)]
    if protocol == "full":
        reads = [partial(full_corpus, data, years, version) for version in _versions(years)]
    if protocol == "rerank":
        reads = [partial(candidate_lists, data, year) for year in years]
    return [TaskSource(read, INSTRUCTION_NAMES) for read in reads]


def judged_pool(data: Path, years: Sequence[Year]) -> Task:
    """Return the task with the judged passages of all years as corpus, and years without duplicates if known."""
    judged = {year.year: _judged(data, year) for year in years}
    wanted: dict[int, set[str]] = {version: set() for version in _versions(years)}
    for year in years:
        wanted[year.corpus].update(name for found in judged[year.year][1].values() for name in found)
    passages = look_up_passages(data, wanted)
    sets = [QuerySet(year, queries, qrels) for year, (queries, qrels) in judged.items()]
    files = [name for year in years for name in (year.queries, year.qrels)]
    path = _find_file(data, DUPLICATES_FILE)
    propagated = [year.year for year in years if year.propagated]
    if path is not None:
        files.append(DUPLICATES_FILE)
        stands_for = _stands_for(passages, read_duplicates(path, frozenset(passages)) if propagated else {})
        for name in propagated:
            queries, qrels = judged[name]
            alone = collapse_duplicates(qrels, stands_for)
            sets.append(QuerySet(name + WITHOUT, queries, alone, frozenset(stands_for)))
    return _pool_task("judged-passages", data, sets, files, passages)


def full_corpus(data: Path, years: Sequence[Year], version: int) -> Task:
    """Return a full corpus with the queries of its years."""
    own = [year for year in years if year.corpus == version]
    return Task(
        f"msmarco-v{version}",
        lambda: _stream_corpus(data, version),
        CORPUS_SIZES[version],
        tuple(QuerySet(year.year, *_judged(data, year)) for year in own),
        min_relevant_grade=TREC_MIN_RELEVANT_GRADE,
        inputs=_hashes(data, [name for year in own for name in (year.queries, year.qrels)]),
    )


def candidate_lists(data: Path, year: Year) -> Task:
    """Return the official candidate lists of a year: 1,000 passages per query in 2019 and 2020, 100 since."""
    queries, qrels = _judged(data, year)
    candidates, passages = _candidates(data, year, qrels)
    if not candidates:
        raise InputError(
            f"{data / year.candidates}: got no list for any judged query of {year.year}; expected one for each; fix: "
            "fetch the file again"
        )
    if not passages:
        passages = look_up_passages(data, {year.corpus: {name for names in candidates.values() for name in names}})
    sets = [QuerySet(year.year, queries, qrels, candidates=candidates)]
    return _pool_task(f"{year.year}-candidates", data, sets, [year.queries, year.qrels, year.candidates], passages)


def _pool_task(
    name: str, data: Path, sets: Sequence[QuerySet], files: Sequence[str], passages: Mapping[str, str]
) -> Task:
    """Return a task with a corpus that is small enough to hold in memory and to hash."""
    content = hashlib.sha256(repr(list(passages.items())).encode("utf-8", "replace")).hexdigest()
    return Task(
        name,
        lambda: iter(passages.items()),
        len(passages),
        tuple(sets),
        min_relevant_grade=TREC_MIN_RELEVANT_GRADE,
        inputs={**_hashes(data, files), "passages": content},
    )


def collapse_duplicates(qrels: Qrels, stands_for: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return judgements with one passage per class (as in `stands_for`), with the class's highest grade."""
    collapsed: dict[str, dict[str, float]] = {query_id: {} for query_id in qrels}
    for query_id, judged in qrels.items():
        for name, grade in judged.items():
            stays = stands_for.get(name, name)
            collapsed[query_id][stays] = max(grade, collapsed[query_id].get(stays, grade))
    return collapsed


def trec_means(scores: Mapping[str, Evaluation]) -> dict[str, float]:
    """Return the means over years, over all queries, and over years without duplicates."""
    years = [score for name, score in scores.items() if not name.endswith(WITHOUT)]
    # the BiXSE paper evaluates all years' judgements as one file, which gives the mean over queries
    values = [value for score in years for value in score.per_query[PRIMARY_METRIC].values()]
    means = {
        "mean over years": sum(score.metrics[PRIMARY_METRIC] for score in years) / len(years),
        "mean over queries": sum(values) / len(values),
    }
    if len(years) < len(scores):
        without = [scores.get(score.task + WITHOUT, score).metrics[PRIMARY_METRIC] for score in years]
        means["mean over years" + WITHOUT] = sum(without) / len(without)
    return means


def trec_notes(data: Path, years: Sequence[Year], protocol: Protocol) -> list[str]:
    """Return notes on duplicates that could not be removed and on incomplete judgements."""
    notes = []
    if protocol == "judged" and any(year.propagated for year in years) and _find_file(data, DUPLICATES_FILE) is None:
        notes.append(
            f"figures without propagated duplicates are left out: got no {DUPLICATES_FILE}; fix: curl -LO "
            f"{DUPLICATES_URL}"
        )
    for year in years:
        judged = len(read_qrels(data / year.qrels))
        if judged != year.judged:
            notes.append(
                f"{year.year}: got {judged} judged queries in {year.qrels}; the official file has {year.judged}"
            )
    return notes


def _versions(years: Sequence[Year]) -> list[int]:
    return sorted({year.corpus for year in years})


def _judged(data: Path, year: Year) -> tuple[dict[str, str], Qrels]:
    qrels = read_qrels(data / year.qrels)
    texts = {fields[0]: fields[1] for fields in read_columns(_find_file(data, year.queries), ("query id", "query"))}
    missing = [query_id for query_id in qrels if query_id not in texts]
    if missing:
        raise InputError(
            f"{data / year.queries}: got no text of {len(missing)} judged queries, such as {missing[0]!r}; expected "
            "all; fix: fetch queries and judgements of one year"
        )
    return {query_id: texts[query_id] for query_id in qrels}, qrels


def _candidates(data: Path, year: Year, qrels: Qrels) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the list per judged query, and the texts if the file holds them (2019 and 2020)."""
    path = _find_file(data, year.candidates)
    found: dict[str, list[str]] = {}
    passages: dict[str, str] = {}
    if year.corpus == 1:
        for query_id, name, _, text in read_columns(path, ("query id", "passage id", "query", "passage")):
            if query_id in qrels:
                found.setdefault(query_id, []).append(name)
                passages[name] = text
        return found, passages
    for fields in map(str.split, _read_lines(path)):
        if len(fields) == 6 and fields[0] in qrels:
            found.setdefault(fields[0], []).append(fields[2])
    return found, passages


def _passages_of(data: Path, year: Year, protocol: Protocol) -> set[str]:
    qrels = read_qrels(data / year.qrels) if (data / year.qrels).is_file() else {}
    if protocol == "judged":
        return {name for judged in qrels.values() for name in judged}
    return {name for names in _candidates(data, year, qrels)[0].values() for name in names}


def _stands_for(passages: Mapping[str, str], classes: Mapping[str, str]) -> dict[str, str]:
    """Return removed passage of the pool -> the passage that stays for its class."""
    members: dict[str, list[str]] = {}
    for name in passages:
        members.setdefault(classes.get(name, name), []).append(name)
    return {
        name: stays
        for representative, names in members.items()
        for stays in [representative if representative in names else min(names)]
        for name in names
        if name != stays
    }


def _hashes(data: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: file_hash(path) for name in names if (path := _find_file(data, name)) is not None}


def _find_file(data: Path, name: str) -> Path | None:
    """Return the file or its packed form. None if neither exists."""
    return next((path for path in (data / name, data / f"{name}.gz") if path.is_file()), None)


def _read_lines(path: Path | None) -> Iterator[str]:
    """Read the lines of a file. A missing file has no lines: `missing_files` reports it."""
    if path is not None:
        with _opened(path) as file:
            for line in file:
                yield line.decode("utf-8").rstrip("\r\n")


def read_columns(path: Path | None, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Read the tab-separated columns of each line that is not blank."""
    for number, line in enumerate(_read_lines(path), start=1):
        if line.strip():
            fields = tuple(line.split("\t", len(names) - 1))
            if len(fields) != len(names):
                assert path is not None  # the file has lines
                error = InvalidFileError(path)
                expected = f"{', '.join(names)}, tab-separated"
                error.add(number, None, shorten(line), expected, "fetch the file again")
                raise error
            yield fields


def read_duplicates(path: Path, wanted: frozenset[str]) -> dict[str, str]:
    """Return wanted passage -> the passage that represents its class, without passages that represent themselves."""
    rows = (line.split(maxsplit=2) for line in _read_lines(path))
    return {row[1]: row[0] for row in rows if len(row) >= 2 and row[0] != row[1] and row[1] in wanted}


def _stream_corpus(data: Path, version: int) -> Iterator[tuple[str, str]]:
    if version == 1:
        rows = read_columns(_find_file(data, CORPUS_V1), ("passage id", "passage"))
        yield from ((name, text) for name, text in rows)
        return
    for shard in range(SHARDS_V2):
        for line in _read_lines(_find_shard(data, shard)):
            row = json.loads(line)
            yield row["pid"], row["passage"]


def _missing_corpus(data: Path, version: int, wanted: Iterable[str] | None = None) -> list[str]:
    """Return the missing corpus files with the command, limited to the files of the `wanted` passages."""
    if version == 1:
        command = f"curl -LO {MSMARCO}/collection.tar.gz && tar xzf collection.tar.gz"
        return [] if _find_file(data, CORPUS_V1) else [f"{CORPUS_V1}: {command}"]
    shards = set(range(SHARDS_V2)) if wanted is None else {_place(name)[0] for name in wanted}
    lacking = sorted(shard for shard in shards if _find_shard(data, shard) is None)
    if not lacking:
        return []
    which = ", ".join(f"{shard:02d}" for shard in lacking) if len(lacking) < SHARDS_V2 else f"00 to {SHARDS_V2 - 1}"
    command = f"curl -LO {MSMARCO}/msmarco_v2_passage.tar && tar xf msmarco_v2_passage.tar"
    return [f"{CORPUS_V2_FOLDER}/msmarco_passage_<number>.gz, numbers {which}: {command}"]


def _load_known_passages(data: Path) -> dict[str, str]:
    path = _find_file(data, PASSAGES_FILE)
    if path is None or not path.stat().st_size:
        return {}
    columns = [FileColumn("_id", "id"), FileColumn("text", may_be_empty=True)]
    return {row["_id"]: row["text"] for _, row in read_rows(path, columns)}


def look_up_passages(data: Path, wanted: dict[int, set[str]]) -> dict[str, str]:
    """Return the texts of `wanted` (corpus version -> ids). New look-ups are saved in passages.jsonl."""
    known = _load_known_passages(data)
    before = len(known)
    if lacking := wanted.get(1, set()) - known.keys():
        known.update((name, text) for name, text in _stream_corpus(data, 1) if name in lacking)
    by_shard: dict[int, dict[int, str]] = {}
    for name in wanted.get(2, set()) - known.keys():
        shard, offset = _place(name)
        by_shard.setdefault(shard, {})[offset] = name
    for shard, by_offset in by_shard.items():
        if (path := _find_shard(data, shard)) is not None:
            known.update(_passages_of_shard(path, by_offset))
    absent = sorted(name for ids in wanted.values() for name in ids if name not in known)
    if absent:
        raise InputError(
            f"{data}: got no text of {len(absent)} passages, such as {absent[0]!r}; expected all in {PASSAGES_FILE} "
            "or the corpora; fix: fetch corpora and judgements of one release"
        )
    if len(known) > before:
        lines = (json.dumps({"_id": name, "text": text}, ensure_ascii=False) + "\n" for name, text in known.items())
        with suppress(StorageError):  # a folder without write access only costs the next look-up
            write_atomically(data / PASSAGES_FILE, "".join(lines))
    return {name: known[name] for ids in wanted.values() for name in sorted(ids)}


def _find_shard(data: Path, shard: int) -> Path | None:
    name = f"msmarco_passage_{shard:02d}"
    return _find_file(data / CORPUS_V2_FOLDER, name) or _find_file(data, name)


def _place(name: str) -> tuple[int, int]:
    """Return the file number and the byte offset in a passage id of the second corpus."""
    try:
        shard, offset = name.removeprefix("msmarco_passage_").split("_")
        return int(shard), int(offset)
    except ValueError as error:
        raise InputError(
            f"passage id: got {name!r}; expected one such as msmarco_passage_20_838723280; fix: check the qrels"
        ) from error


def _passages_of_shard(path: Path, by_offset: dict[int, str]) -> Iterator[tuple[str, str]]:
    """Yield id and text of the lines at given byte offsets of the unpacked file."""
    with _opened(path) as file:
        for offset in sorted(by_offset):
            file.seek(offset)  # a packed file is read up to the offset, so offsets are in order
            try:
                row = json.loads(file.readline())
                name, text = str(row["pid"]), str(row["passage"])
            except (ValueError, KeyError, TypeError):
                continue
            if name == by_offset[offset]:
                yield name, text


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast("BinaryIO", file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: got {type(error).__name__} ({error}); expected the official file; fix: fetch it again"
        ) from error
