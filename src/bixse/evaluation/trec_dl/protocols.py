"""TREC Deep Learning passages under three protocols: judged passages alone, full corpora, official candidate lists."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, TypeAlias

from bixse.data.io.files import file_hash
from bixse.data.trec import read_qrels
from bixse.errors import InputError, did_you_mean
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.tasks import QuerySet, Task, TaskSource
from bixse.evaluation.trec_dl.trec_files import (
    CORPUS_SIZES,
    DUPLICATES_FILE,
    DUPLICATES_URL,
    YEARS,
    Year,
    find_file,
    load_known_passages,
    look_up_passages,
    missing_corpus,
    read_columns,
    read_duplicates,
    read_lines,
    stream_corpus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.evaluate import Evaluation
    from bixse.relevance import Qrels

Protocol: TypeAlias = Literal["judged", "full"]
"""What is searched: the union of the judged passages of all years, as in the BiXSE paper, or the official corpora."""
MIN_RELEVANT_GRADE = 2.0
"""Grade 1 means "on topic, does not answer": the binary metrics of the track count from 2 on."""
WITHOUT = " without duplicates"
"""Ends the name of a year whose propagated judgements are taken back."""
INSTRUCTION_NAMES = ("TREC-DL", "msmarco_passage")
"""Names under which a model's table of instructions may hold the task."""


def chosen_years(names: Sequence[str] | None) -> list[Year]:
    """The years named, or all.

    Raises:
        InputError: no such year.
    """
    for name in names or ():
        if name not in YEARS:
            raise InputError(
                f"task: got {name!r}; expected one of {', '.join(YEARS)}; fix: {did_you_mean(name, YEARS)}"
            )
    return [YEARS[name] for name in (YEARS if names is None else dict.fromkeys(names))]


def missing_files(data: Path, years: Sequence[Year], protocol: Protocol | Literal["rerank"]) -> list[str]:
    """Every missing file for a protocol, with the command that brings it; [] where all are there."""
    missing = []
    for year in years:
        names = [year.queries, year.qrels, *([year.candidates] if protocol == "rerank" else [])]
        missing += [f"{name}: {year.commands[name]}" for name in names if find_file(data, name) is None]
    if protocol == "full":
        return missing + [line for version in sorted({year.version for year in years})
                          for line in missing_corpus(data, version)]  # fmt: skip
    known = load_known_passages(data).keys()
    for version in sorted({year.version for year in years}):
        own = [year for year in years if year.version == version]
        source = {year: year.candidates if protocol == "rerank" and version == 2 else year.qrels for year in own}
        if any(line.startswith(f"{name}:") for line in missing for name in source.values()):
            missing += missing_corpus(data, version) if protocol == "judged" or version == 2 else []
            continue  # which passages are needed cannot be told yet
        wanted = {name for year in own for name in _passages_of(data, year, protocol)}
        if wanted - known:
            missing += missing_corpus(data, version, wanted - known)
    return missing


def pool_source(data: Path, years: Sequence[Year]) -> TaskSource:
    """All judged passages of the years as one corpus, each year's queries searched in it.

    Where the classes of near-duplicates are there, years with propagated judgements are searched a second time without
    them: one passage of each class stays, with the class's highest grade.
    """

    def read() -> Task:
        judged = {year.year: _judged(data, year) for year in years}
        wanted = {
            version: {
                name
                for year in years
                if year.version == version
                for found in judged[year.year][1].values()
                for name in found
            }
            for version in {year.version for year in years}
        }
        passages = look_up_passages(data, wanted)
        sets = [QuerySet(year, queries, qrels) for year, (queries, qrels) in judged.items()]
        path = find_file(data, DUPLICATES_FILE)
        if path is not None and any(year.propagated for year in years):
            stands_for = _stands_for(passages, read_duplicates(path, frozenset(passages)))
            left_out = frozenset(stands_for)
            for year in years:
                if year.propagated:
                    queries, qrels = judged[year.year]
                    sets.append(
                        QuerySet(year.year + WITHOUT, queries, collapse_duplicates(qrels, stands_for), left_out)
                    )
        files = [name for year in years for name in (year.queries, year.qrels)]
        return Task(
            name="judged-passages",
            documents=lambda: iter(passages.items()),
            count=len(passages),
            query_sets=tuple(sets),
            inputs=_hashes(data, [*files, *([DUPLICATES_FILE] if path is not None else [])], passages),
            min_relevant_grade=MIN_RELEVANT_GRADE,
        )

    return TaskSource(read, INSTRUCTION_NAMES)


def full_sources(data: Path, years: Sequence[Year]) -> list[TaskSource]:
    """The full corpora, each read and encoded once for all its years."""

    def source(version: int) -> TaskSource:
        def read() -> Task:
            own = [year for year in years if year.version == version]
            return Task(
                name=f"msmarco-v{version}",
                documents=lambda: stream_corpus(data, version),
                count=CORPUS_SIZES[version],
                query_sets=tuple(QuerySet(year.year, *_judged(data, year)) for year in own),
                inputs=_hashes(data, [name for year in own for name in (year.queries, year.qrels)]),
                min_relevant_grade=MIN_RELEVANT_GRADE,
            )

        return TaskSource(read, INSTRUCTION_NAMES)

    return [source(version) for version in sorted({year.version for year in years})]


def rerank_sources(data: Path, years: Sequence[Year]) -> list[TaskSource]:
    """The official candidate lists, year by year: 1,000 passages per query in 2019 and 2020, 100 since."""

    def source(year: Year) -> TaskSource:
        def read() -> Task:
            queries, qrels = _judged(data, year)
            candidates, passages = _candidates(data, year, qrels)
            if not passages:
                wanted = {name for names in candidates.values() for name in names}
                passages = look_up_passages(data, {year.version: wanted})
            missing = [query_id for query_id in queries if query_id not in candidates]
            if len(missing) == len(queries):
                raise InputError(
                    f"{data / year.candidates}: got no list for any judged query of {year.year}; expected one for "
                    "each; fix: fetch the file again"
                )
            return Task(
                name=f"{year.year}-candidates",
                documents=lambda: iter(passages.items()),
                count=len(passages),
                query_sets=(QuerySet(year.year, queries, qrels, candidates=candidates),),
                inputs=_hashes(data, [year.queries, year.qrels, year.candidates], passages),
                min_relevant_grade=MIN_RELEVANT_GRADE,
            )

        return TaskSource(read, INSTRUCTION_NAMES)

    return [source(year) for year in years]


def collapse_duplicates(qrels: Qrels, stands_for: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Judgements with one passage for each class of duplicates, at the class's highest grade.

    Args:
        qrels: judgements, copied to all passages of a class.
        stands_for: passage -> the one that stays.

    Example:
        >>> collapse_duplicates({"q": {"a": 2, "a2": 2, "b": 0}}, {"a2": "a"})
        {'q': {'a': 2, 'b': 0}}
    """
    collapsed: dict[str, dict[str, float]] = {}
    for query_id, judged in qrels.items():
        found: dict[str, float] = {}
        for name, grade in judged.items():
            stays = stands_for.get(name, name)
            found[stays] = max(grade, found.get(stays, grade))
        collapsed[query_id] = found
    return collapsed


def trec_means(scores: Mapping[str, Evaluation], metric: str = PRIMARY_METRIC) -> dict[str, float]:
    """The means of a suite of years: over years, over all queries, and over years without duplicates.

    The mean over queries is what evaluating all years' judgements as one file gives, as in the BiXSE paper.
    """
    years = [score for name, score in scores.items() if not name.endswith(WITHOUT)]
    values = [value for score in years for value in score.per_query[metric].values()]
    means = {
        "mean over years": sum(score.metrics[metric] for score in years) / len(years),
        "mean over queries": sum(values) / len(values),
    }
    if len(years) < len(scores):
        without = [scores.get(score.task + WITHOUT, score).metrics[metric] for score in years]
        means["mean over years" + WITHOUT] = sum(without) / len(without)
    return means


def trec_notes(data: Path, years: Sequence[Year], protocol: Protocol | Literal["rerank"]) -> list[str]:
    """What a reader has to know of the figures: duplicates that could not be taken out, incomplete judgements."""
    notes = []
    if protocol == "judged" and any(year.propagated for year in years) and find_file(data, DUPLICATES_FILE) is None:
        notes.append(
            f"figures without propagated duplicates are left out: got no {DUPLICATES_FILE}; fix: curl -LO "
            f"{DUPLICATES_URL}"
        )
    for year in years:
        judged = len(read_qrels(data / year.qrels))
        if judged != year.judged_queries:
            notes.append(
                f"{year.year}: got {judged} judged queries in {year.qrels}; the official file has {year.judged_queries}"
            )
    return notes


def _judged(data: Path, year: Year) -> tuple[dict[str, str], Qrels]:
    """The judged queries of a year and their judgements."""
    qrels = read_qrels(data / year.qrels)
    path = find_file(data, year.queries)
    rows = read_columns(path, ("query id", "query")) if path is not None else ()
    texts = {fields[0]: fields[1] for fields in rows}
    missing = [query_id for query_id in qrels if query_id not in texts]
    if missing:
        raise InputError(
            f"{data / year.queries}: got no text of {len(missing)} judged queries, such as {missing[0]!r}; expected "
            "all; fix: fetch queries and judgements of one year"
        )
    return {query_id: texts[query_id] for query_id in qrels}, qrels


def _candidates(data: Path, year: Year, qrels: Qrels) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The list of each judged query, and the texts where the file holds them (2019 and 2020)."""
    path = find_file(data, year.candidates)
    found: dict[str, list[str]] = {}
    passages: dict[str, str] = {}
    if path is None:
        return found, passages
    if year.version == 1:
        for query_id, name, _, text in read_columns(path, ("query id", "passage id", "query", "passage")):
            if query_id in qrels:
                found.setdefault(query_id, []).append(name)
                passages[name] = text
        return found, passages
    for line in read_lines(path):
        fields = line.split()
        if len(fields) == 6 and fields[0] in qrels:
            found.setdefault(fields[0], []).append(fields[2])
    return found, passages


def _passages_of(data: Path, year: Year, protocol: str) -> set[str]:
    """The passages whose texts a protocol needs beside its other files."""
    if protocol == "rerank" and year.version == 1:
        return set()  # the list holds them
    qrels = read_qrels(data / year.qrels) if (data / year.qrels).is_file() else {}
    if protocol == "judged":
        return {name for judged in qrels.values() for name in judged}
    return {name for names in _candidates(data, year, qrels)[0].values() for name in names}


def _stands_for(passages: Mapping[str, str], classes: Mapping[str, str]) -> dict[str, str]:
    """Passage of the pool -> the passage of the pool that stays for its class, of those that do not stay."""
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


def _hashes(data: Path, names: Sequence[str], passages: Mapping[str, str] | None = None) -> dict[str, str]:
    """Hashes of the files, and of the texts that are searched where these are few enough to be at hand."""
    hashes = {name: file_hash(path) for name in names if (path := find_file(data, name)) is not None}
    if passages is not None:
        hashes["passages"] = hashlib.sha256(repr(list(passages.items())).encode("utf-8", "replace")).hexdigest()
    return hashes
