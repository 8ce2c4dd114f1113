"""`generate_shards`: queries are written for some documents after the other, in this process, others, or machines."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.errors import IncompleteError
from bixse.files.files import file_hash
from bixse.judging.ask import AskProgress, ask, keys_of, shown_by
from bixse.judging.generate.generate import (
    GenerateResult,
    chosen_documents,
    ledger_in,
    open_generation,
    questions_about,
    write_queries,
)
from bixse.judging.generate.generate_settings import GenerateConfig, QueryPrompt, WriterConfig, load_query_prompt
from bixse.judging.grade import LEDGER_FOLDER
from bixse.judging.judge import Completion, Usage, stored_identity
from bixse.judging.ledger import Ledger
from bixse.judging.shards import AskShards, RowShards, asked_shards, number_of_shards, with_ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bixse.judging.judge import TextModel
    from bixse.progress import Step


TITLE = "write queries"


class ShardWriter(NamedTuple):
    """What writes the queries of the shards of a process."""

    writer: TextModel
    documents: dict[str, str]
    """All that queries are written for."""
    step: Step | None = None
    """Told what is written."""


@dataclass(frozen=True)
class GenerateShards(AskShards):
    """Shard n: texts for a range of the documents, in the ledger.

    Where they are there nothing is asked: a shard is done by each call, and needs no mark.
    """

    config: WriterConfig
    prompt: QueryPrompt

    def setup(self) -> ShardWriter:
        """Open the writer, which must be the one it is where the job comes from; so must corpus and ledger."""
        self.check()
        writer = self.same(self.config.open())
        return ShardWriter(writer, chosen_documents(self.config.model_copy(update={"corpus": self.source.path})))

    def run(self, shard: int, kept: ShardWriter) -> dict[str, Any]:
        rows, identity = self.source.rows(shard), kept.writer.identity
        documents = dict(islice(kept.documents.items(), rows.start, rows.stop))
        questions = list(questions_about(documents, self.config, self.prompt))
        show, state = shown_by(kept.step), AskProgress()
        with Ledger(self.ledger, Completion) as book:
            book.load(keys_of(questions, identity))
            for state in ask(questions, kept.writer.complete, identity, book, self.prices, self.budget(shard)):
                show(state)
        figures = {name: getattr(state, name) for name in ("asked", "reused", "usd", "stopped")}
        return self.leave(shard, {**figures, "usage": asdict(state.usage)})

    def is_complete(self, shard: int) -> bool:
        return False

    def mark(self, shard: int) -> None:
        """The ledger says what is there."""

    def fingerprint(self) -> str:
        settings = self.config.model_dump(mode="json", include={*GenerateConfig.model_fields} - {"corpus"})
        shards = [self.source.content, self.source.total, self.source.number, self.ledger_id]
        known = [self.identity, settings, self.prompt.model_dump(mode="json"), shards]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def generate_shards(
    config: WriterConfig, writer: TextModel, out: Path, progress: Callable[[str, int], Step] | None = None
) -> GenerateResult:
    """Write queries as `generate` does, to the same files, shard by shard of the documents.

    The ledger is a folder, unless an SQLite file is named or there for one machine; each shard has its share, by
    documents, of `max_usd`. Of several ranks the last one cleans the texts, and writes queries and pairs.

    `writer` is what `config` opens, for this process and to know it by: other processes open their own. `out` is a
    folder that all machines share; `progress` makes a progress callback from a title and a total.

    Raises:
        InputError: corpus, ledger or engine cannot be used, or a machine does not find what is here.
        ModelError: a machine has another writer.
        IncompleteError: shards failed twice; the others are kept.
    """
    place = config.chosen_engine(here=config.processes is None)
    prompt = load_query_prompt(config.prompt)
    documents, record = open_generation(config, writer, prompt, out)
    number = number_of_shards(config.shards, total := len(documents))
    job = GenerateShards(
        folder=out.absolute(),
        source=RowShards(config.corpus.absolute(), file_hash(config.corpus), total, number),
        config=config,
        identity=stored_identity(writer.identity),
        ledger=(config.ledger or ledger_in(out, LEDGER_FOLDER)).absolute(),
        ledger_id="",
        prices=config.of(config.model or writer.name),
        prompt=prompt,
    )
    job = with_ledger(job, config.engine, record)
    started = time.perf_counter()
    try:
        new, known = asked_shards(
            job, place, lambda step: ShardWriter(writer, documents, step), config.per_document, TITLE, progress
        )
    except BaseException as error:
        record.save("interrupted" if isinstance(error, (KeyboardInterrupt, IncompleteError)) else "failed")
        raise
    state = AskProgress()
    for one in new.values():
        state.asked += one["asked"]
        state.reused += one["reused"]
        state.usd += one["usd"]
        state.usage += Usage(**one["usage"])
        state.stopped = state.stopped or one["stopped"]
    if waiting := number - len(new) - len(known):
        figures = (state.asked, state.reused, state.usage.prompt, state.usage.completion, state.usd, state.stopped)
        return GenerateResult(0, total, {}, 0, *figures, waiting=waiting)
    questions = list(questions_about(documents, config, prompt))
    with Ledger(job.ledger, Completion) as book:
        result = write_queries(questions, writer, documents, config, state, record, book)
    record.timings[TITLE] = record.timings.get(TITLE, 0.0) + time.perf_counter() - started
    record.save("finished" if result.complete else "interrupted")
    return result
