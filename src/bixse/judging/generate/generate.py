"""`generate`: queries for the documents of a corpus, written by a language model."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import Stemmer

from bixse.data.collection_files import read_corpus
from bixse.data.run import open_run
from bixse.errors import BixseError, InputError, InterruptedRunError
from bixse.files.files import hash_files, write_atomically
from bixse.judging.ask import AskProgress, Budget, ask, keys_of, shown_by
from bixse.judging.generate.generate_settings import GenerateConfig
from bixse.judging.grade import LEDGER_FOLDER, LEDGER_NAME
from bixse.judging.grade_settings import Prices
from bixse.judging.judge import Completion, Question
from bixse.judging.ledger import Ledger
from bixse.judging.reading.refusals import is_refusal
from bixse.preparing.mine.mined_pairs import MinedPair, pairs_path, save_mined_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.data.run import Run
    from bixse.judging.generate.generate_settings import QueryPrompt
    from bixse.judging.judge import TextModel
    from bixse.progress import Step


LONGEST = 40
"""Words beyond which a text is no query."""
COPIED = 8
"""Words in a row that a query may not share with its document: a copied sentence is found by any search."""
_LABEL = re.compile(r"^(?:(?:search )?quer(?:y|ies)|question|q|answer)\s*\d*\s*(?::\s*|-\s+)", re.IGNORECASE)
_LEAD = re.compile(
    r"^(?:(?:sure|certainly|of course|okay)\b[,.!:]*\s*)?(?:here(?:['\u2019]s| is| are)\b[^:]*:\s*|$)", re.IGNORECASE
)
"""Words with which a chat model leads up to the query: "Sure! Here is a query:"."""
_PLACEHOLDERS = {"null", "none", "n/a"}
_MARKS = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+)")
_PAIRS = ('""', "''", "``", "“”", "«»")
_WORDS = re.compile(r"\w+")


def clean_query(text: str) -> str:
    r"""The query in what a model wrote: its first line, without reasoning, leads, labels, list marks and quotes.

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
    """Why a cleaned text is not taken as a query of this document, or None.

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
    """Equal for queries that differ in case, punctuation, word order or endings (English stems) alone.

    Example:
        >>> same_query("How do I copy folders?") == same_query("copy folder: how do I")
        True
    """
    words = sorted(Stemmer.Stemmer("english").stemWords(_words(query)))
    return tuple(words) or (query.strip(),)


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.casefold())


QUERIES_NAME = "queries.jsonl"
SOURCE = "generated"
"""What stands in the column `source` of the pair of a query and the document it was written for."""


@dataclass(frozen=True)
class GenerateResult:
    """What came of it; tokens and dollars are of this call."""

    queries: int
    documents: int
    refused: Mapping[str, int]
    """Why other texts were not kept -> how many: a status of the model's answer, "empty", "declined" (the model writes
    that it cannot help), "placeholder" ("null"), "too long", "copied" (from the document) or "repeated" (another query
    says the same)."""
    not_asked: int
    """Queries not asked for, since a limit was reached."""
    asked: int
    """Requests answered in this run."""
    reused: int
    """Texts that were in the ledger."""
    prompt_tokens: int
    completion_tokens: int
    usd: float
    stopped: str | None
    waiting: int = 0
    """Shards that other ranks have not done yet: nothing is written until they have."""

    @property
    def complete(self) -> bool:
        """Every text that was wanted came back, whether it was kept or not."""
        return not self.not_asked and not self.refused.get("failed") and not self.waiting


def generate(
    config: GenerateConfig,
    writer: TextModel,
    prompt: QueryPrompt,
    out: Path,
    ledger: Path | None = None,
    prices: Prices | None = None,
    budget: Budget | None = None,
    progress: Callable[[str, int], Step] | None = None,
) -> GenerateResult:
    """Have a model write queries for documents, clean them and keep each once.

    Writes `queries.jsonl` (BEIR layout), `pairs.parquet` (each query with its document, to be graded: that a query was
    written for a document does not make the document relevant), `ledger.sqlite` and `run.json`. The same call asks
    nothing twice and goes on where it stopped.

    Args:
        config: documents and numbers.
        writer: such as `bixse.judging.server.server_judge.ServerTextModel`; not closed here.
        prompt: instructions and examples.
        out: output folder.
        ledger: texts shared with other runs, in a file or a folder that is there; None: that of `out`, or
            `out/ledger.sqlite`.
        prices: 0 when None.
        budget: no limit when None.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: the corpus cannot be used, or several queries per document at a temperature of 0.
        InterruptedRunError: stopped by Ctrl-C; texts so far are kept.
    """
    prices, budget = prices or Prices(), budget or Budget()
    documents, record = open_generation(config, writer, prompt, out)
    record.save("running")
    started = time.perf_counter()
    questions = list(questions_about(documents, config, prompt))
    show = shown_by(progress("write queries", len(questions)) if progress is not None else None)
    state, interrupted = AskProgress(), False
    with Ledger(ledger or ledger_in(out, LEDGER_NAME), Completion) as book:
        try:
            book.load(keys_of(questions, writer.identity))
            for state in ask(questions, writer.complete, writer.identity, book, prices, budget):
                show(state)
        except KeyboardInterrupt:
            interrupted = True
        except BixseError:
            write_queries(questions, writer, documents, config, state, record, book)
            record.save("failed")
            raise
        result = write_queries(questions, writer, documents, config, state, record, book)
    record.timings["write queries"] = record.timings.get("write queries", 0.0) + time.perf_counter() - started
    record.save("finished" if result.complete and not interrupted else "interrupted")
    if interrupted:
        raise InterruptedRunError(
            f"stopped by Ctrl-C or SIGTERM: {result.queries} queries are kept in {out}; the same command "
            "goes on from there"
        )
    return result


def open_generation(
    config: GenerateConfig, writer: TextModel, prompt: QueryPrompt, out: Path
) -> tuple[dict[str, str], Run]:
    """The chosen documents, and the record of a run, new or to go on with; nothing is written yet."""
    if config.per_document > 1 and not writer.identity.get("parameters", {}).get("temperature", 1.0):
        raise InputError(
            f"--per-document: got {config.per_document} at a temperature of 0, which writes the same each time; "
            "expected a temperature above 0; fix: --temperature 0.7"
        )
    documents = chosen_documents(config)
    settings = config.model_dump(include=set(GenerateConfig.model_fields))
    settings |= {"writer": dict(writer.identity), "prompt": prompt.model_dump(mode="json")}
    return documents, open_run(out, "generate", settings, hash_files({"corpus": config.corpus}), paths=("corpus",))


def ledger_in(out: Path, otherwise: str) -> Path:
    """The ledger that a folder has, of whatever kind, so that nothing is paid for twice; else one of this name."""
    found = [out / name for name in (LEDGER_FOLDER, LEDGER_NAME) if (out / name).exists()]
    return found[0] if found else out / otherwise


def chosen_documents(config: GenerateConfig) -> dict[str, str]:
    """Documents with text, or so many of them drawn by the seed; more of them hold the fewer."""
    corpus = read_corpus(config.corpus)
    texts = {name: document.content for name, document in corpus.items() if document.content.strip()}
    if config.documents is None or config.documents >= len(texts):
        return texts
    order = sorted(texts)
    random.Random(config.seed).shuffle(order)
    kept = set(order[: config.documents])
    return {name: text for name, text in texts.items() if name in kept}


def questions_about(documents: Mapping[str, str], config: GenerateConfig, prompt: QueryPrompt) -> Iterator[Question]:
    """What is asked about the documents, in their order."""
    for name, text in documents.items():
        messages = prompt.messages(text[: config.document_characters])
        for repeat in range(config.per_document):
            yield Question("", name, "", text, "", messages, repeat)


def write_queries(
    questions: Sequence[Question],
    writer: TextModel,
    documents: Mapping[str, str],
    config: GenerateConfig,
    state: AskProgress,
    record: Run,
    ledger: Ledger[Completion],
) -> GenerateResult:
    """Clean what the ledger holds, keep each query once, and write queries and pairs."""
    refused: Counter[str] = Counter()
    kept: dict[tuple[str, ...], MinedPair] = {}
    not_asked, identity = 0, writer.identity
    ledger.load(keys_of(questions, identity))
    for question in questions:
        answer = ledger.find(question.key(identity))
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
        kept[same_query(query)] = MinedPair(name, query, question.document_id, document, config.task, SOURCE, 1)
    rows: list[dict[str, Any]] = [{"_id": pair.query_id, "text": pair.query} for pair in kept.values()]
    write_atomically(record.folder / QUERIES_NAME, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    save_mined_pairs(list(kept.values()), pairs_path(record.folder, "parquet"))
    result = GenerateResult(
        queries=len(kept),
        documents=len(documents),
        refused=dict(sorted(refused.items())),
        not_asked=not_asked,
        asked=state.asked,
        reused=state.reused,
        prompt_tokens=state.usage.prompt,
        completion_tokens=state.usage.completion,
        usd=state.usd,
        stopped=state.stopped,
    )
    record.results = asdict(result)
    return result
