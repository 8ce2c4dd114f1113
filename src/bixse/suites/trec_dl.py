"""TREC Deep Learning passages, 2019 to 2023: the official files, and the two protocols of searching them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.trec import read_qrels, read_run
from bixse.errors import InputError, InvalidFileError, StorageError, check_known, shorten
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.files.files import file_hash, write_atomically
from bixse.files.rows import opened, read_rows, text_lines
from bixse.files.values import FileColumn
from bixse.search.tasks import QuerySet, Task
from bixse.suites.known_suites import TABLES

if TYPE_CHECKING:
    from bixse.evaluation.evaluate import Evaluation
    from bixse.relevance import Qrels

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
        check_known("task", name, YEARS)
    return [YEARS[name] for name in (YEARS if names is None else dict.fromkeys(names))]


def missing_files(data: Path, years: Sequence[Year], rerank: bool) -> list[str]:
    """Return every missing file with its download command; `rerank` searches the official candidate lists."""
    missing = []
    for year in years:
        names = [year.queries, year.qrels, *([year.candidates] if rerank else [])]
        missing += [f"{name}: {year.commands[name]}" for name in names if _find_file(data, name) is None]
    known = _load_known_passages(data).keys()
    for version in sorted({year.corpus for year in years}):
        if rerank and version == 1:  # the lists of the first corpus contain the passages
            continue
        same_corpus = [year for year in years if year.corpus == version]
        if any(_find_file(data, year.candidates if rerank else year.qrels) is None for year in same_corpus):
            missing += _missing_corpus(data, version)
        elif lacking := {name for year in same_corpus for name in _passages_of(data, year, rerank)} - known:
            missing += _missing_corpus(data, version, lacking)
    return missing


def judged_pool(data: Path, years: Sequence[Year]) -> Task:
    """Return the task with the judged passages of all years as corpus, and years without duplicates if known."""
    judged = {year.year: _judged(data, year) for year in years}
    wanted: dict[int, set[str]] = {year.corpus: set() for year in years}
    for year in years:
        wanted[year.corpus].update(name for passages_of in judged[year.year][1].values() for name in passages_of)
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
    hashes = {file: file_hash(path) for file in files if (path := _find_file(data, file)) is not None}
    return Task(
        name,
        lambda: iter(passages.items()),
        len(passages),
        tuple(sets),
        min_relevant_grade=TREC_MIN_RELEVANT_GRADE,
        inputs={**hashes, "passages": content},
        is_part=True,
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
    values = [value for score in years for value in score.by_query[PRIMARY_METRIC].values()]
    means = {
        "mean over years": sum(score.metrics[PRIMARY_METRIC] for score in years) / len(years),
        "mean over queries": sum(values) / len(values),
    }
    if len(years) < len(scores):
        without = [scores.get(score.task + WITHOUT, score).metrics[PRIMARY_METRIC] for score in years]
        means["mean over years" + WITHOUT] = sum(without) / len(without)
    return means


def trec_notes(data: Path, years: Sequence[Year], rerank: bool) -> list[str]:
    """Return notes on duplicates that could not be removed and on incomplete judgements."""
    notes = []
    if not rerank and any(year.propagated for year in years) and _find_file(data, DUPLICATES_FILE) is None:
        notes.append(
            f"figures without propagated duplicates are left out: got no {DUPLICATES_FILE}; fix: curl -LO "
            f"{DUPLICATES_URL}"
        )
    for year in years:
        judged = len(read_qrels(_file(data, year.qrels)))
        if judged != year.judged:
            notes.append(f"{year.year}: got {judged} judged queries in {year.qrels}; expected {year.judged}")
    return notes


def _judged(data: Path, year: Year) -> tuple[dict[str, str], Qrels]:
    qrels = read_qrels(_file(data, year.qrels))
    path = _file(data, year.queries)
    texts = {fields[0]: fields[1] for fields in read_columns(path, ("query id", "query"))}
    missing = [query_id for query_id in qrels if query_id not in texts]
    if missing:
        raise InputError(
            f"{data / year.queries}: got no text of {len(missing)} judged queries, such as {missing[0]!r}; expected "
            "all; fix: fetch queries and judgements of one year"
        )
    return {query_id: texts[query_id] for query_id in qrels}, qrels


def _candidates(data: Path, year: Year, qrels: Qrels) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the list per judged query, and the texts if the file holds them (2019 and 2020)."""
    path = _file(data, year.candidates)
    if year.corpus == 2:
        return {query: list(ranked) for query, ranked in read_run(path).items() if query in qrels}, {}
    lists: dict[str, list[str]] = {}
    passages: dict[str, str] = {}
    for query_id, name, _, text in read_columns(path, ("query id", "passage id", "query", "passage")):
        if query_id in qrels:
            lists.setdefault(query_id, []).append(name)
            passages[name] = text
    return lists, passages


def _passages_of(data: Path, year: Year, rerank: bool) -> set[str]:
    qrels = {} if _find_file(data, year.qrels) is None else read_qrels(_file(data, year.qrels))
    lists = _candidates(data, year, qrels)[0] if rerank else qrels
    return {name for names in lists.values() for name in names}


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


def _find_file(data: Path, name: str) -> Path | None:
    """Return the file or its packed form. None if neither exists."""
    return next((path for path in (data / name, data / f"{name}.gz") if path.is_file()), None)


def _file(data: Path, name: str) -> Path:
    """Return the file or its packed form; the name itself if neither exists, for the error of its reader."""
    return _find_file(data, name) or data / name


def read_columns(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Read the tab-separated columns of each line that is not blank."""
    errors = InvalidFileError(path)
    for number, line, _ in text_lines(path, errors):
        fields = tuple(line.split("\t", len(names) - 1))
        if len(fields) != len(names):
            errors.add(number, None, shorten(line), f"{', '.join(names)}, tab-separated", "fetch the file again")
        errors.raise_any()
        yield fields
    errors.raise_any()


def read_duplicates(path: Path, wanted: frozenset[str]) -> dict[str, str]:
    """Return wanted passage -> the passage that represents its class, without passages that represent themselves."""
    errors = InvalidFileError(path)
    rows = [line.split(maxsplit=2)[:2] for _, line, _ in text_lines(path, errors)]
    errors.raise_any()
    return {row[1]: row[0] for row in rows if len(row) == 2 and row[0] != row[1] and row[1] in wanted}


def _missing_corpus(data: Path, version: int, wanted: Iterable[str] | None = None) -> list[str]:
    """Return the missing corpus files with the command; with `wanted`, the files of these passages alone."""
    if version == 1:
        command = f"curl -LO {MSMARCO}/collection.tar.gz && tar xzf collection.tar.gz"
        return [] if _find_file(data, CORPUS_V1) else [f"{CORPUS_V1}: {command}"]
    shards = set(range(SHARDS_V2)) if wanted is None else {_shard_and_offset(name)[0] for name in wanted}
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
        corpus = read_columns(_file(data, CORPUS_V1), ("passage id", "passage"))
        known.update((name, text) for name, text in corpus if name in lacking)
    by_shard: dict[int, dict[int, str]] = {}
    for name in wanted.get(2, set()) - known.keys():
        shard, offset = _shard_and_offset(name)
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
    # sorted, because the hash of a task depends on the order, and sets have another order in every process
    return {name: known[name] for ids in wanted.values() for name in sorted(ids)}


def _find_shard(data: Path, shard: int) -> Path | None:
    name = f"msmarco_passage_{shard:02d}"
    return _find_file(data / CORPUS_V2_FOLDER, name) or _find_file(data, name)


def _shard_and_offset(name: str) -> tuple[int, int]:
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
    with opened(path) as (file, _):
        for offset in sorted(by_offset):
            file.seek(offset)  # a packed file is read up to the offset, so offsets are in order
            try:
                row = json.loads(file.readline())
                name, text = str(row["pid"]), str(row["passage"])
            except (ValueError, KeyError, TypeError):  # not a passage: the caller reports it as absent
                continue
            if name == by_offset[offset]:
                yield name, text
