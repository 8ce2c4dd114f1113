"""Write queries for the documents of a corpus with a language model, clean them, and keep each once."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import Stemmer

from bixse.data.collection import read_corpus
from bixse.data.run import open_run
from bixse.errors import BixseError, IncompleteError, InputError, InterruptedRunError
from bixse.files.files import file_hash, write_atomically
from bixse.judging.ask import Asking, keyed
from bixse.judging.ask_shards import AskShards, RowShards, asked_shards, number_of_shards, with_ledger
from bixse.judging.generate.generate_settings import GenerateConfig, QueryPrompt, WriterConfig, load_query_prompt
from bixse.judging.grade import LEDGER_NAME
from bixse.judging.judge import Completion, Question, Usage, stored_identity
from bixse.judging.judges.reading import is_refusal
from bixse.judging.ledger import Ledger
from bixse.preparing.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from bixse.data.run import Run
    from bixse.judging.judge import TextModel
    from bixse.progress import Step

QUERIES_NAME = "queries.jsonl"
SOURCE = "generated"
"""Value of the column `source` for a pair of a generated query and its document."""
TITLE = "write queries"

LONGEST = 40
"""Most words of a query."""
COPIED = 8
"""Consecutive words that a query may not share with its document: any search finds a copied sentence."""
_LABEL = re.compile(r"^(?:(?:search )?quer(?:y|ies)|question|q|answer)\s*\d*\s*(?::\s*|-\s+)", re.IGNORECASE)
_LEAD = re.compile(
    r"^(?:(?:sure|certainly|of course|okay)\b[,.!:]*\s*)?(?:here(?:['\u2019]s| is| are)\b[^:]*:\s*|$)", re.IGNORECASE
)
"""Words of a chat model before the query, for example "Sure! Here is a query:"."""
_PLACEHOLDERS = {"null", "none", "n/a"}
_MARKS = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+)")
_PAIRS = ('""', "''", "``", "“”", "«»")
_WORDS = re.compile(r"\w+")


def clean_query(text: str) -> str:
    r"""Return the query in a model's text: its first line, without reasoning, leads, labels, list marks and quotes.

    Example:
        >>> clean_query('<think>hm</think>\n1. Query: "how to copy a folder"\nThis query is good.')
        'how to copy a folder'
    """
    answer = text.rpartition("</think>")[2]
    if "<think>" in answer:
        return ""  # the reasoning did not end
    return next(filter(None, map(_clean_line, answer.split("\n"))), "")


def _clean_line(line: str) -> str:
    before = None
    while before != line:
        before = line
        line = _LABEL.sub("", _MARKS.sub("", _LEAD.sub("", line.strip()))).strip()
        if line[:2] == line[-2:] == "**" and "*" not in line[2:-2]:
            line = line[2:-2].strip()
        inside = line[1:-1]
        if line[:1] + line[-1:] in _PAIRS and not set(inside) & {line[0], line[-1]}:
            line = inside.strip()
    return " ".join(line.split())


def refusal(query: str, document: str) -> Literal["empty", "declined", "placeholder", "too long", "copied"] | None:
    """Return why a cleaned text is no query of this document, or None.

    Example:
        >>> refusal("", "a page"), refusal("how to copy a folder", "shutil.copytree copies a tree")
        ('empty', None)
    """
    words = _words(query)
    if not words:
        return "empty"
    if is_refusal(query):
        return "declined"
    if query.casefold().strip(" .()") in _PLACEHOLDERS:
        return "placeholder"
    if len(words) > LONGEST:
        return "too long"
    page = " " + " ".join(_words(document)) + " "
    runs = (" ".join(words[start : start + COPIED]) for start in range(len(words) - COPIED + 1))
    return "copied" if any(f" {run} " in page for run in runs) else None


def same_query(query: str) -> tuple[str, ...]:
    """Return equal keys for queries that differ only in case, punctuation, word order or endings (English stems).

    Example:
        >>> same_query("How do I copy folders?") == same_query("copy folder: how do I")
        True
    """
    words = sorted(Stemmer.Stemmer("english").stemWords(_words(query)))
    return tuple(words) or (query.strip(),)


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.casefold())


@dataclass(frozen=True)
class GenerateResult:
    """The result of `generate`; tokens and dollars are of this call."""

    queries: int
    documents: int
    refused: Mapping[str, int]
    """Reason -> number of texts that were not kept. Reasons are a status of the model's answer, "empty", "declined"
    (the model writes that it cannot help), "placeholder" ("null"), "too long", "copied" (from the document) or
    "repeated" (another query is the same)."""
    not_asked: int
    """Queries without a request, since a limit was reached."""
    asked: int
    """Requests answered in this run."""
    reused: int
    """Texts from the ledger."""
    prompt_tokens: int
    completion_tokens: int
    usd: float
    stopped: str | None
    waiting: int = 0
    """Pending shards of other ranks; queries and pairs are written after the last shard."""

    @property
    def complete(self) -> bool:
        """Return True if every requested text came back, whether it was kept or not."""
        return not self.not_asked and not self.refused.get("failed") and not self.waiting


@dataclass(frozen=True)
class ShardWriter:
    """The worker state of a process that writes queries for shards."""

    writer: TextModel
    documents: dict[str, str]
    """The chosen documents of all shards."""
    step: Step | None = None
    figures: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Shard -> figures of this process, also after a stop."""


@dataclass(frozen=True, kw_only=True)
class GenerateShards(AskShards):
    """A job that writes texts into the ledger; a shard is a range of the documents.

    Each call runs every shard, since the ledger has the known texts. A shard needs no completion marker.
    """

    config: WriterConfig
    prompt: QueryPrompt

    def setup(self) -> ShardWriter:
        writer = self.opened_here(self.config.open)
        return ShardWriter(writer, chosen_documents(self.config.model_copy(update={"corpus": self.source.path})))

    def run(self, shard: int, kept: ShardWriter) -> dict[str, Any]:
        rows = self.source.rows(shard)
        documents = dict(islice(kept.documents.items(), rows.start, rows.stop))
        with Ledger(self.ledger, Completion) as book:
            asking = Asking(kept.writer.complete, kept.writer.identity, book, self.prices, self.budget(shard))
            questions = keyed(questions_about(documents, self.config, self.prompt), asking.identity)
            try:
                asking.load(questions)
                asking.run(questions, kept.step)
            finally:
                figures = {name: getattr(asking, name) for name in ("asked", "reused", "usd", "stopped")}
                kept.figures[shard] = {**figures, "usage": asdict(asking.usage)}
        return self.leave(shard, kept.figures[shard])

    def leave(self, shard: int, summary: dict[str, Any]) -> dict[str, Any]:
        return super().leave(shard, summary) if self.config.in_shards else summary

    def is_complete(self, shard: int) -> bool:
        return False

    def mark(self, shard: int) -> None:
        """Do nothing: the ledger has the texts."""

    def fingerprint(self) -> str:
        settings = self.config.model_dump(mode="json", include={*GenerateConfig.model_fields} - {"corpus"})
        shards = [self.source.content, self.source.total, self.source.number, self.ledger_id]
        known = [self.identity, settings, self.prompt.model_dump(mode="json"), shards]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def generate(
    config: WriterConfig, writer: TextModel, out: Path, progress: Callable[[str, int], Step] | None = None
) -> GenerateResult:
    """Write queries for documents with a model, clean them, keep each once, and write queries and pairs to `out`."""
    # All machines share `out`. `writer`, which `config` opens, is for this process and for its identity, and stays
    # open; other processes open their own. Each shard has its share, by documents, of `max_usd`. The same call again
    # asks nothing twice, and continues where the run stopped.
    place = config.chosen_engine()
    prompt = load_query_prompt(config.prompt)
    documents, record = _opened(config, writer, prompt, out)
    job = GenerateShards(
        folder=out.absolute(),
        source=RowShards(
            config.corpus.absolute(),
            record.inputs["corpus"],
            len(documents),
            number_of_shards(config.shards, len(documents)) if config.in_shards else 1,
        ),
        config=config,
        identity=stored_identity(writer.identity),
        ledger=(config.ledger or out / LEDGER_NAME).absolute(),
        prices=config.of(config.model or writer.name),
        prompt=prompt,
    )
    if config.in_shards:
        job = with_ledger(job, record)
    else:
        record.save("running")
    here = ShardWriter(writer, documents)
    started = time.perf_counter()
    failure: KeyboardInterrupt | BixseError | None = None
    try:
        new, known = asked_shards(
            job, place, lambda step: replace(here, step=step), config.per_document, TITLE, progress
        )
    except (KeyboardInterrupt, BixseError) as error:
        if config.in_shards:
            record.save("interrupted" if isinstance(error, (KeyboardInterrupt, IncompleteError)) else "failed")
            raise
        failure, new, known = error, here.figures, {}
    waiting = job.source.number - len(new) - len(known) if failure is None else 0
    figures = _sum_of(new.values())
    if waiting:  # the last rank cleans the texts, and writes queries and pairs
        return GenerateResult(0, len(documents), {}, 0, **figures, waiting=waiting)
    result = _write_queries(job, writer, documents, record, figures)
    record.timings[TITLE] = record.timings.get(TITLE, 0.0) + time.perf_counter() - started
    if isinstance(failure, BixseError):
        record.save("failed")
        raise failure
    record.save("finished" if result.complete and failure is None else "interrupted")
    if failure is not None:
        raise InterruptedRunError(
            f"stopped by Ctrl-C or SIGTERM: {result.queries} queries are kept in {out}; the same command "
            "goes on from there"
        )
    return result


def chosen_documents(config: GenerateConfig) -> dict[str, str]:
    """Return all documents with text, or a number of them drawn by the seed; a larger draw contains a smaller."""
    corpus = read_corpus(config.corpus)
    texts = {name: document.content for name, document in corpus.items() if document.content.strip()}
    if config.documents is None or config.documents >= len(texts):
        return texts
    order = sorted(texts)
    random.Random(config.seed).shuffle(order)
    kept = set(order[: config.documents])
    return {name: text for name, text in texts.items() if name in kept}


def questions_about(documents: Mapping[str, str], config: GenerateConfig, prompt: QueryPrompt) -> Iterator[Question]:
    """Yield the questions about the documents, in their order."""
    for name, text in documents.items():
        messages = prompt.messages(text[: config.document_characters])
        for repeat in range(config.per_document):
            yield Question("", name, "", text, "", messages, repeat)


def _opened(config: WriterConfig, writer: TextModel, prompt: QueryPrompt, out: Path) -> tuple[dict[str, str], Run]:
    """Return the chosen documents, and the record of a run, new or resumed; write nothing."""
    if config.per_document > 1 and not writer.identity.get("parameters", {}).get("temperature", 1.0):
        raise InputError(
            f"--per-document: got {config.per_document} at a temperature of 0, which writes the same each time; "
            "expected a temperature above 0; fix: --temperature 0.7"
        )
    documents = chosen_documents(config)
    settings = config.model_dump(include=set(GenerateConfig.model_fields))
    settings |= {"writer": dict(writer.identity), "prompt": prompt.model_dump(mode="json")}
    return documents, open_run(out, "generate", settings, {"corpus": file_hash(config.corpus)}, paths=("corpus",))


def _sum_of(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of `GenerateResult` with the figures of this call."""
    done = list(shards)
    usage = sum((Usage(**one["usage"]) for one in done), Usage())
    return {
        "asked": sum(one["asked"] for one in done),
        "reused": sum(one["reused"] for one in done),
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "usd": sum(one["usd"] for one in done),
        "stopped": next((one["stopped"] for one in done if one["stopped"]), None),
    }


def _write_queries(
    job: GenerateShards, writer: TextModel, documents: Mapping[str, str], record: Run, figures: Mapping[str, Any]
) -> GenerateResult:
    """Clean the texts of the ledger, keep each query once, and write queries and pairs."""
    refused: Counter[str] = Counter()
    kept: dict[tuple[str, ...], MinedPair] = {}
    not_asked = 0
    questions = keyed(questions_about(documents, job.config, job.prompt), writer.identity)
    with Ledger(job.ledger, Completion) as ledger:
        ledger.load(key for key, _ in questions)
        answers = [(question, ledger.find(key)) for key, question in questions]
    for question, answer in answers:
        if answer is None:
            not_asked += 1
            continue
        document = documents[question.document_id]
        query = clean_query(answer.text)
        reason: str | None = answer.status if not answer.usable else refusal(query, document)
        if reason is None and same_query(query) in kept:
            reason = "repeated"
        if reason is not None:
            refused[reason] += 1
            continue
        name = f"g-{hashlib.sha256(query.encode('utf-8')).hexdigest()[:16]}"
        kept[same_query(query)] = MinedPair(name, query, question.document_id, document, job.config.task, SOURCE, 1)
    rows: list[dict[str, Any]] = [{"_id": pair.query_id, "text": pair.query} for pair in kept.values()]
    write_atomically(record.folder / QUERIES_NAME, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    # without relevance: a query does not make its document relevant, so the pairs need grades
    save_mined_pairs(list(kept.values()), record.folder / MINED_FILE)
    result = GenerateResult(len(kept), len(documents), dict(sorted(refused.items())), not_asked, **figures)
    record.results = asdict(result)
    return result
