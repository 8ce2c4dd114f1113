"""Arithmetic of very large jobs: hours, bytes and money. Nothing is run; every assumption is a constant of this file.

    python benchmarks/cost.py [--pairs 100000000] [--documents 1000000000] [--queries 100000] [--rows 10000000]

What bixse itself takes was measured, by `bench_jobs.py`, `bench_limits.py` and `bench_eval.py`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from bixse.judging.ask_shards import ROWS
from bixse.lab.lab_config import EncoderSize
from bixse.lab.studies.study_plan import operations, weight_bytes
from bixse.scale.index.index_files import group_rows, shard_rows
from bixse.search.exact import DEPTH
from scaling import ACHIEVED, ENCODERS, GATHER_BYTES, GB, TEXTS_PER_PASS, device_bytes, step_seconds, with_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIZES = {"pairs": 10**8, "documents": 10**9, "queries": 10**5, "rows": 10**7}
"""Pairs to grade, documents to mine in, queries to mine for, pairs to train on."""
HOUR, TB = 3600, 1e12
HEADING = ("", "amount", "$")
GPU_USD, CORE_USD, TB_USD = 2.50, 0.04, 20.0
"""Assumed US dollars: of an H100 an hour, of a processor core an hour, of a terabyte on disk a month."""
PREFIX_TOKENS, QUERY_TOKENS, DOCUMENT_TOKENS, END_TOKENS = 80, 32, 256, 10
"""Assumed tokens of a question: those that all share (read once), query, document, and what follows it."""
TOKEN_BYTES = 4
"""Assumed bytes of text a token."""
FORWARD = 1 / 3
"""Part of the operations of training that a forward pass takes."""


class Model(NamedTuple):
    """A language model, and the assumed US dollars of a million tokens that an API reads and writes."""

    size: EncoderSize
    usd_in: float
    usd_out: float


JUDGES = {
    "32B (Qwen2.5-32B)": Model(EncoderSize(parameters=32.8e9, multiplied=31.0e9, layers=64, hidden=5120), 0.30, 0.60),
    "7B (Qwen2.5-7B)": Model(EncoderSize(parameters=7.62e9, multiplied=6.53e9, layers=28, hidden=3584), 0.06, 0.12),
    "0.6B (Qwen3-0.6B)": Model(EncoderSize(parameters=0.596e9, multiplied=0.44e9, layers=28, hidden=1024), 0.01, 0.02),
}
"""Name -> size, from its model card and config.json, and price; an answer is one token."""
ENCODER = JUDGES["0.6B (Qwen3-0.6B)"].size
"""What encodes the corpus, in float16 of its width."""
GRADE_SECONDS, INDEX_SECONDS = 210e-6, 117e-6
"""Measured, of a core: a pair (`bench_jobs.py grade`), a document read and written (`bench_jobs.py index`)."""
LOOK_SECONDS, KEY_SECONDS = 0.00785e-6, 0.852e-6 + 0.873e-6
"""Measured, of a core (`bench_limits.py`): an answer of others that a shard looks through; of its own answers each."""
FOOTER_SECONDS, OPEN_SECONDS = 3.6e-6, 66.1e-6
"""Measured likewise: a row group in the footer of the texts, a file of embeddings."""
LEDGER_BYTES, JUDGEMENT_BYTES, PAIR_BYTES = 190, 97, 76
"""Measured, of a pair (`bench_jobs.py grade --sizes 10000`); what stands in the pairs beside the texts."""
SEARCH_OPERATIONS = 2 * 131072 * 256 * 384 / 0.6892
"""Measured, a second of a core: exact search of the top 100 (docs/results/bench-eval.csv)."""
BATCH, DEVICES, TRAINED = 4096, 8, "Mistral-7B"
GATHERS = 3 + 1
"""With weights shared out and `gradient_cache: true`, of each pass: the weights three times, their gradient once."""


def table(*rows: Sequence[str]) -> None:
    """Print Markdown; the first row is the heading, the other ones begin with a name."""
    for row in (rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:]):
        print(f"| {' | '.join(row)} |")
    print()


def priced(amounts: Mapping[str, float], unit: str, usd: float) -> list[list[str]]:
    """Rows of a name, how much it takes, and the money for it."""
    return [[name, f"{amount:,.2f} {unit}", f"{usd * amount:,.0f}"] for name, amount in amounts.items()]


def grading(pairs: int) -> None:
    """What it costs to grade pairs, by a GPU of one's own and by an API, and what they leave on disk."""
    whole = PREFIX_TOKENS + QUERY_TOKENS + DOCUMENT_TOKENS + END_TOKENS
    rows = []
    for name, judge in JUDGES.items():
        read, shared = (operations(judge.size, [(tokens, pairs)], False) for tokens in (whole, PREFIX_TOKENS))
        hours = FORWARD * (read - shared) / ACHIEVED / HOUR
        paid = pairs * (whole * judge.usd_in + judge.usd_out) / 1e6
        rows.append([name, f"{hours:,.0f}", f"{pairs / hours / HOUR:,.0f}", f"{GPU_USD * hours:,.0f}", f"{paid:,.0f}"])
    print(f"{pairs:,} pairs of {whole} tokens, {PREFIX_TOKENS} of them shared:\n")
    table(["judge", "GPU hours", "pairs a second of a GPU", "GPU, $", "API, $"], *rows)
    shards, texts = -(-pairs // ROWS), TOKEN_BYTES * (QUERY_TOKENS + DOCUMENT_TOKENS)
    looks = LOOK_SECONDS * ROWS * shards * (shards - 1) / 2 + KEY_SECONDS * pairs
    hours_of = {"reading, questions, tables": GRADE_SECONDS * pairs / HOUR, "look-ups in the ledger": looks / HOUR}
    each = {"ledger": LEDGER_BYTES, "judgements": JUDGEMENT_BYTES, "pairs with texts": PAIR_BYTES + texts}
    stored = {name: pairs * size / TB for name, size in each.items()}
    print(f"bixse with {shards:,} shards; the disk a month:\n")
    table(HEADING, *priced(hours_of, "core hours", CORE_USD), *priced(stored, "TB", TB_USD))


def mining(documents: int, queries: int) -> None:
    """What it costs to encode a corpus, to store it and to search it exactly."""
    shards = -(-documents // shard_rows(ENCODER.hidden, documents))
    encode = FORWARD * operations(ENCODER, [(DOCUMENT_TOKENS, documents)], False) / ACHIEVED / HOUR
    seconds = {
        "read and write documents": INDEX_SECONDS * documents,
        "footer of the texts, once a shard": FOOTER_SECONDS * -(-documents // group_rows(documents)) * shards,
        f"search for {queries:,} queries": 2.0 * documents * queries * ENCODER.hidden / SEARCH_OPERATIONS,
        "open all files of the index, once a shard": OPEN_SECONDS * shards * shards,
    }
    stored = {
        "vectors, float16": 2 * ENCODER.hidden * documents / TB,
        "texts": TOKEN_BYTES * DOCUMENT_TOKENS * documents / TB,
        f"best {DEPTH} of each shard, until merged": 12 * DEPTH * queries * shards / TB,
    }
    hours = priced({name: value / HOUR for name, value in seconds.items()}, "core hours", CORE_USD)
    print(f"{documents:,} documents of {DOCUMENT_TOKENS} tokens, {shards:,} shards; the disk a month:\n")
    table(HEADING, *priced({"encode": encode}, "GPU hours", GPU_USD), *hours, *priced(stored, "TB", TB_USD))


def training(rows: int) -> None:
    """What it costs to train a 7B encoder once over pairs of one document a query."""
    size, lengths, found = ENCODERS[TRAINED], (QUERY_TOKENS, DOCUMENT_TOKENS), []
    passes = 2 * BATCH / DEVICES / TEXTS_PER_PASS
    gathered = passes * GATHERS * 4 * size.parameters / GATHER_BYTES
    for name, own, more in (("LoRA", with_adapters(size), 0.0), ("all weights, shared out", size, gathered)):
        held = device_bytes(own, BATCH, DEVICES, DOCUMENT_TOKENS)
        held -= weight_bytes(own) * (1 - 1 / DEVICES) * bool(more)
        seconds = sum(step_seconds(own, BATCH, DEVICES, lengths)) + more
        hours = seconds * rows / BATCH / HOUR
        told = (held / GB, seconds, more, hours, GPU_USD * DEVICES * hours)
        found.append([name, *(f"{value:,.1f}" for value in told)])
    print(f"{TRAINED}, {rows:,} pairs once, batches of {BATCH:,} over {DEVICES} devices:\n")
    table(["trained", "GB a device", "seconds a step", "of them gathering", "hours", "$"], *found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, number in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1:
        parser.error("expected numbers of at least 1")
    grading(options.pairs)
    mining(options.documents, options.queries)
    training(options.rows)


if __name__ == "__main__":
    main()
