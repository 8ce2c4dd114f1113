"""Write queries for the documents of a corpus with a language model, clean them, and remove duplicates."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import Stemmer

from bixse.data.collection_folder import read_corpus
from bixse.data.run import open_run
from bixse.errors import InputError
from bixse.files.files import file_hash, read_text, write_atomically
from bixse.judging.ask import Asking, keyed
from bixse.judging.grade import charge
from bixse.judging.judge import Completion, Question
from bixse.judging.judges.reading import is_refusal
from bixse.judging.ledger import Ledger
from bixse.judging.spending import LEDGER_NAME
from bixse.mining.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs

if TYPE_CHECKING:
    from bixse.judging.judges.server_judge import ServerTextModel
    from bixse.judging.open_judge import GenerateConfig
    from bixse.progress import ProgressBars

QUERIES_NAME = "queries.jsonl"
SOURCE = "generated"
"""Value of the column `source` for a pair of a generated query and its document."""
TITLE = "write queries"

DOCUMENT_CHARACTERS = 4000
"""First characters of a document that the model is shown: about a page, enough for one question."""
SEED = 0
"""Random seed that selects documents; a larger draw contains a smaller one."""
LONGEST = 40
"""Most words of a query."""
COPIED = 8
"""Consecutive words that a query may not share with its document: any search finds a copied sentence."""
_LABEL = re.compile(
    r"^[*_]*(?:(?:search )?quer(?:y|ies)|question|q|answer)\s*\d*[*_]*\s*(?::[*_]*\s*|-\s+|[*_]+$)", re.IGNORECASE
)
_LEAD = re.compile(
    r"^(?:(?:sure|certainly|of course|okay)\b[,.!:]*\s*)?(?:here(?:['\u2019]s| is| are)\b[^:]*:\s*|$)", re.IGNORECASE
)
"""Words of a chat model before the query, for example "Sure! Here is a query:"."""
_PLACEHOLDERS = {"null", "none", "n/a"}
_MARKS = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+|```\w*\s*$)")
_HEADING = re.compile(r"^#+\s+(?=[*_\"']*(.))")
_TAGS = re.compile(r"^<(\w+)>(.*)</\1>$")
_JSON = re.compile(r"^(?:\{\s*(?:[\"'}]|$)|\[\s*(?:[\"'{\[]|$))")
"""The beginning of a list of texts or of an object, not of "[2023] election results" or "{{ name }} in jinja"."""
_KEYS = {"query", "queries", "question", "questions", "search_query", "search_queries"}
_PAIRS = ('""', "''", "``", "“”", "«»")
_WORDS = re.compile(r"\w+")


def clean_query(text: str) -> str:
    r"""Return the query in a model's text: its first line, without reasoning, leads, labels, list marks and quotes.

    Of JSON it is the first text; "" if the JSON does not end, or holds no text.

    Example:
        >>> clean_query('<think>hm</think>\n1. Query: "how to copy a folder"\nThis query is good.')
        'how to copy a folder'
        >>> clean_query('```json\n{"queries": ["how to copy a folder", "copy files"]}\n```')
        'how to copy a folder'
    """
    answer = text.rpartition("</think>")[2]
    if "<think>" in answer:
        return ""  # the reasoning did not end
    lines = answer.split("\n")
    for number, line in enumerate(lines, start=1):
        if query := _clean_line(line):
            return _first_text("\n".join([query, *lines[number:]])) if _JSON.match(query) else query
    return ""


def _first_text(content: str) -> str:
    """Return the cleaned first text in the JSON at the start of a text, or ""."""
    try:
        value, end = json.JSONDecoder().raw_decode(content)
    except (ValueError, RecursionError):
        return ""
    while isinstance(value, (list, dict)) and value:
        if isinstance(value, list):
            value = value[0]
        else:
            named = [name for name in value if name.lower() in _KEYS]
            value = value[named[0]] if named else next(iter(value.values())) if len(value) == 1 else None
    if isinstance(value, str):
        return _clean_line(value.split("\n")[0])
    return content.split("\n")[0] if content[end:].split("\n")[0].strip() else ""  # words follow: {} in javascript


def _clean_line(line: str) -> str:
    before = None
    while before != line:
        before = line
        line = _MARKS.sub("", _LEAD.sub("", line.strip()))
        if (heading := _HEADING.match(line)) and (heading[1].isupper() or _LABEL.match(line[heading.end() :])):
            line = line[heading.end() :]  # not "# of moons of jupiter"
        line = _TAGS.sub(r"\2", _LABEL.sub("", line)).strip()
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
    """Reason -> number of refused texts. A reason is the status of an answer, "empty", "placeholder" ("null") or "too
    long"; "declined" if the model writes that it cannot help; "copied" if the text is in the document; "repeated" if it
    is an earlier query."""
    not_asked: int
    """Queries without a request, since a limit was reached."""
    asked: int
    """Requests answered in this run."""
    reused: int
    """Texts from the ledger."""
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    """Price of all requests of this call, failed ones too; None if it is unknown."""
    usd_spent: float | None
    """Price of all requests of all calls, as `spent.jsonl` has them; None if it is unknown."""
    unpriced: int
    """Number of requests with an unknown price, which `usd_spent` lacks."""
    stopped: str | None

    @property
    def complete(self) -> bool:
        """Return True if every requested text came back, whether it was kept or not."""
        return not self.not_asked and not self.refused.get("failed")


def generate(
    config: GenerateConfig, writer: ServerTextModel, out: Path, progress: ProgressBars | None = None
) -> GenerateResult:
    """Write queries for documents with a model, clean them, keep each once, and write queries and pairs to `out`.

    The same call again asks nothing twice, and continues where the run stopped. `writer` stays open.
    """
    prompt = load_query_prompt(config.prompt)
    if config.per_document > 1 and not writer.identity.get("parameters", {}).get("temperature", 1.0):
        raise InputError(
            f"--per-document: got {config.per_document} at a temperature of 0, which writes the same text each time; "
            "expected a temperature above 0; fix: --temperature 0.7"
        )
    documents = chosen_documents(config)
    settings = config.model_dump(include={"corpus", "documents", "per_document", "task"})
    settings |= {"writer": dict(writer.identity), "prompt": prompt, "seed": SEED}
    record = open_run(out, "generate", settings, {"corpus": file_hash(config.corpus)}, ("corpus",))
    record.save("running")
    with record.ending(TITLE), Ledger(config.ledger or out / LEDGER_NAME, Completion) as ledger:
        spending = charge(writer, ledger.path, config.prices)
        asking = Asking(writer.complete, writer.identity, ledger, spending)
        questions = keyed(questions_about(documents, config.per_document, prompt), writer.identity)
        try:
            asking.run(questions, None if progress is None else progress(TITLE, len(questions)))
        finally:  # texts before a stop are written too
            texts = [(question, ledger.find(key)) for key, question in questions]
            costs = spending.end()
            pairs, refused = accepted_queries(documents, texts, config.task)
            rows: list[dict[str, Any]] = [{"_id": pair.query_id, "text": pair.query} for pair in pairs]
            write_atomically(out / QUERIES_NAME, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            # without relevance: a query does not make its document relevant, so the pairs need grades
            save_mined_pairs(pairs, out / MINED_FILE)
            result = GenerateResult(
                queries=len(pairs),
                documents=len(documents),
                refused=refused,
                not_asked=sum(text is None for _, text in texts),
                asked=asking.asked,
                reused=asking.reused,
                prompt_tokens=asking.usage.prompt,
                completion_tokens=asking.usage.completion,
                usd=costs.pop("usd_of_this_run"),
                **costs,
                stopped=asking.stopped,
            )
            record.results, record.saved = asdict(result), f"{result.queries} queries are kept"
        record.status = "finished" if result.complete else "interrupted"
    return result


def chosen_documents(config: GenerateConfig) -> dict[str, str]:
    """Return all documents with text, or a number of them drawn at random; a larger draw contains a smaller."""
    corpus = read_corpus(config.corpus)
    texts = {name: document.content for name, document in corpus.items() if document.content.strip()}
    if config.documents is None or config.documents >= len(texts):
        return texts
    order = sorted(texts)
    random.Random(SEED).shuffle(order)
    chosen = set(order[: config.documents])
    return {name: text for name, text in texts.items() if name in chosen}


def load_query_prompt(instructions: Path | None = None) -> dict[str, Any]:
    """Return the prompt of the package, few-shot as in Promptagator (Dai et al. 2022, arXiv:2209.11755).

    A file of instructions takes the place of its system message and of its examples.
    """
    shipped = resources.files("bixse.judging") / "query_prompt.toml"
    prompt = tomllib.loads(shipped.read_text(encoding="utf-8"))
    return prompt if instructions is None else {**prompt, "system": read_text(instructions), "examples": []}


def questions_about(documents: Mapping[str, str], per_document: int, prompt: Mapping[str, Any]) -> Iterator[Question]:
    """Yield the questions about the documents, in their order."""
    turns = [("system", prompt["system"].strip())]
    for example in prompt["examples"]:
        turns += [("user", prompt["user"].format(**example)), ("assistant", example["query"])]
    for name, text in documents.items():
        asked = ("user", prompt["user"].format(document=text[:DOCUMENT_CHARACTERS]))
        messages = tuple({"role": role, "content": content} for role, content in (*turns, asked))
        for repeat in range(per_document):
            yield Question("", name, "", text, "", messages, repeat)


def accepted_queries(
    documents: Mapping[str, str], texts: Iterable[tuple[Question, Completion | None]], task: str | None
) -> tuple[list[MinedPair], dict[str, int]]:
    """Clean the model's texts and keep each query once; return the pairs, and reason -> number of other texts."""
    refused: Counter[str] = Counter()
    pairs: dict[tuple[str, ...], MinedPair] = {}
    for question, answer in texts:
        if answer is None:
            continue
        document = documents[question.document_id]
        query = clean_query(answer.text)
        reason: str | None = answer.status if not answer.usable else refusal(query, document)
        if reason is None and same_query(query) in pairs:
            reason = "repeated"
        if reason is not None:
            refused[reason] += 1
            continue
        name = f"g-{hashlib.sha256(query.encode('utf-8')).hexdigest()[:16]}"
        pairs[same_query(query)] = MinedPair(name, query, question.document_id, document, task, SOURCE, 1)
    return list(pairs.values()), dict(sorted(refused.items()))
