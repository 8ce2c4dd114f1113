"""Arithmetic of very large jobs: hours, bytes and money. Nothing is run; every assumption is a constant of this file.

    python benchmarks/cost.py [--pairs 100000000] [--documents 1000000000] [--queries 100000] [--rows 10000000]
    python benchmarks/cost.py scaling
    python benchmarks/cost.py gpu

What bixse itself takes was measured, by `bench_jobs.py` and `bench_eval.py`. `scaling` has memory and step time of
large encoders and batches on eight devices, a row per encoder and batch: one graded document per query, trained weights
in float32 (frozen ones in bf16), bf16 autocast, gradient checkpointing, `gradient_cache: true` with mini-batches of 32
texts. Bytes are of one device; a step is the computation alone, without input or output. `gpu` has what one GPU holds
and at most computes, with the budget of tokens per pass that bixse derives there.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from bixse.encoders.embedding import TOKENS_PER_PASS, USED_SHARE, bytes_per_token
from bixse.index.index_files import GROUP_ROWS, shard_rows
from bixse.judging.grade import ROWS
from bixse.losses.tiles.products import DEVICE_TILE_BYTES
from measuring import Option, options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class EncoderSize(NamedTuple):
    """The size of an encoder."""

    parameters: float
    layers: int
    hidden: int
    multiplied: float
    """Weights that every token is multiplied with: all but the table of token embeddings."""
    trained: float | None = None
    """Weights that are trained; None: all."""


JOBS = ("grade", "mine", "train", "scaling", "gpu")
GB = 1e9
TEXTS_PER_PASS = 32
DEVICES, BATCHES = 8, (256, 4096, 65536)
ACHIEVED = 400e12
"""Floating point operations per second that a device reaches in bf16 products: 40 % of an H100's 989e12."""
TILE_BYTES_PER_ENTRY = 10
"""Of the loss's buffers with bf16 products."""
GATHER_BYTES = 200e9
"""Bytes per second between devices: half of NVLink's on an H100."""
ENCODERS = {
    "Qwen2.5-0.5B": EncoderSize(parameters=0.494e9, multiplied=0.358e9, layers=24, hidden=896),
    "Llama-3.2-1B": EncoderSize(parameters=1.236e9, multiplied=0.973e9, layers=16, hidden=2048),
    "Qwen2.5-1.5B": EncoderSize(parameters=1.544e9, multiplied=1.310e9, layers=28, hidden=1536),
    "Qwen2.5-3B": EncoderSize(parameters=3.086e9, multiplied=2.775e9, layers=36, hidden=2048),
    "Mistral-7B": EncoderSize(parameters=7.242e9, multiplied=7.111e9, layers=32, hidden=4096),
}
"""Name -> size, from its config.json."""
MEMORY = 80e9
"""Bytes of one GPU."""
ON_ONE = {
    "all-MiniLM-L6-v2": (EncoderSize(parameters=22.7e6, multiplied=10.6e6, layers=6, hidden=384), 1536),
    "bge-base-en-v1.5": (EncoderSize(parameters=109e6, multiplied=85.1e6, layers=12, hidden=768), 3072),
    "SmolLM2-135M": (EncoderSize(parameters=134.5e6, multiplied=106.2e6, layers=30, hidden=576), 1536),
    "Qwen2.5-0.5B": (ENCODERS["Qwen2.5-0.5B"], 4864),
    "Qwen2.5-1.5B": (ENCODERS["Qwen2.5-1.5B"], 8960),
    "Mistral-7B": (ENCODERS["Mistral-7B"], 14336),
}
"""Name -> size, and hidden units of the feed-forward layers, from its config.json."""
LORA_SHARE = 0.02
"""Weights of adapters of rank 32 on every linear layer, over the encoder's."""
HOUR, TB = 3600, 1e12
HEADING = ("", "amount", "$")
GPU_USD, CORE_USD, TB_USD = 2.50, 0.04, 20.0
"""Assumed US dollars per hour of an H100, per hour of a CPU core, per month of a terabyte on disk."""
PREFIX_TOKENS, QUERY_TOKENS, DOCUMENT_TOKENS, END_TOKENS = 80, 32, 256, 10
"""Assumed tokens of a question: those that all share (read once), query, document, and what follows it."""
TOKEN_BYTES = 4
"""Assumed bytes of text per token."""
FORWARD = 1 / 3
"""Part of the operations of training that a forward pass takes."""


BYTES_PER_TRAINED, BYTES_PER_FROZEN = 16, 2
"""Bytes of a float32 weight, its gradient and Adam's two moments; of a weight in bf16."""
LAYER_STATES = 34
"""Bytes per token and hidden unit that one layer keeps for its backward pass in bf16 (Korthikanti et al. 2022,
arXiv:2205.05198, without dropout and attention matrices)."""


def weight_bytes(size: EncoderSize) -> float:
    """Bytes of weights, gradients and optimizer; frozen weights are in bf16."""
    trained = size.trained or size.parameters
    return trained * BYTES_PER_TRAINED + (size.parameters - trained) * BYTES_PER_FROZEN


def state_bytes(size: EncoderSize, tokens: float, checkpointing: bool) -> float:
    """Bytes that a pass over `tokens` keeps in bf16 for its backward pass."""
    whole_layers = 1 if checkpointing else size.layers  # checkpointing also keeps the input of every layer, 2 bytes
    return tokens * size.hidden * (2 * size.layers * checkpointing + LAYER_STATES * whole_layers)


def operations(
    size: EncoderSize, texts: Sequence[tuple[float, float]], checkpointing: bool, gradient_cache: bool = False
) -> float:
    """Floating point operations of training once on `texts`, given as (length in tokens, count)."""
    # per weight and token 6 forward and backward (Kaplan et al. 2020, arXiv:2001.08361), 2 per second forward pass
    each = 6 + 2 * checkpointing + 2 * gradient_cache
    tokens = sum(length * count for length, count in texts)
    squares = sum(length**2 * count for length, count in texts)  # for attention
    return each * size.multiplied * tokens + 12 * size.layers * size.hidden * squares


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
LOOK_SECONDS, KEY_SECONDS = 0.158e-6, 1.02e-6 + 0.0686e-6
"""Measured, of a core (`bench-limits.csv`): an answer of others that a shard looks through; of its own answers each."""
FOOTER_SECONDS = 3.6e-6
"""Measured likewise: a row group in the footer of the texts."""
LEDGER_BYTES, JUDGEMENT_BYTES, PAIR_BYTES = 192, 97, 76
"""Measured, of a pair (`bench_jobs.py grade --sizes 10000`); what the pairs hold in addition to the texts."""
SEARCH_OPERATIONS = 2 * 131072 * 256 * 384 / 0.6892
"""Measured, a second of a core: exact search of the top 100 (docs/results/bench-eval.csv)."""
BATCH, TRAINED = 4096, "Mistral-7B"
GATHERS = 3 + 1
"""With weights shared out and `gradient_cache: true`, of each pass: the weights three times, their gradient once."""


def with_adapters(size: EncoderSize) -> EncoderSize:
    """Return the encoder frozen, with low-rank adapters that are trained."""
    adapters = LORA_SHARE * size.parameters
    return size._replace(parameters=size.parameters + adapters, trained=adapters)


def device_bytes(size: EncoderSize, batch: int) -> float:
    """Return peak bytes of one device: weights, gradients and Adam, one pass, embeddings, and the loss's tiles.

    Gathered are all documents, their gradient and its sum, and half as much again in bf16.
    """
    embeddings = 4 * size.hidden * (3.5 * DEVICES + 4) * batch / DEVICES
    states = state_bytes(size, TEXTS_PER_PASS * DOCUMENT_TOKENS, checkpointing=True)
    tile = min(DEVICE_TILE_BYTES, TILE_BYTES_PER_ENTRY * batch * batch / DEVICES)
    return weight_bytes(size) + states + embeddings + tile


def step_seconds(size: EncoderSize, batch: int) -> tuple[float, float, float]:
    """Return seconds of encoding, of the loss (three products of B / W queries by B documents), and between devices."""
    texts = [(QUERY_TOKENS, batch), (DOCUMENT_TOKENS, batch)]
    encoding = operations(size, texts, True, gradient_cache=True) / DEVICES / ACHIEVED
    loss = 3 * 2.0 * -(-batch // DEVICES) * batch * size.hidden / ACHIEVED
    between = (2 * 4 * batch * size.hidden + 2 * 4 * (size.trained or size.parameters)) / GATHER_BYTES
    return encoding, loss, between


def table(*rows: Sequence[str]) -> None:
    """Print Markdown; the first row is the heading, the other ones begin with a name."""
    for row in (rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:]):
        print(f"| {' | '.join(row)} |")
    print()


def priced(amounts: Mapping[str, float], unit: str, usd: float) -> list[list[str]]:
    """Return rows of a name, how much it takes, and the money for it."""
    return [[name, f"{amount:,.2f} {unit}", f"{usd * amount:,.0f}"] for name, amount in amounts.items()]


def grading(pairs: int) -> None:
    """Print what it costs to grade pairs, by a GPU of one's own and by an API, and what they leave on disk."""
    whole = PREFIX_TOKENS + QUERY_TOKENS + DOCUMENT_TOKENS + END_TOKENS
    rows = []
    for name, judge in JUDGES.items():
        read, shared = (operations(judge.size, [(tokens, pairs)], False) for tokens in (whole, PREFIX_TOKENS))
        hours = FORWARD * (read - shared) / ACHIEVED / HOUR
        paid = pairs * (whole * judge.usd_in + judge.usd_out) / 1e6
        rows.append([name, f"{hours:,.0f}", f"{pairs / hours / HOUR:,.0f}", f"{GPU_USD * hours:,.0f}", f"{paid:,.0f}"])
    print(f"{pairs:,} pairs of {whole} tokens, {PREFIX_TOKENS} of them shared:\n")
    table(["judge", "GPU hours", "pairs per second and GPU", "GPU, $", "API, $"], *rows)
    shards, texts = -(-pairs // ROWS), TOKEN_BYTES * (QUERY_TOKENS + DOCUMENT_TOKENS)
    looks = LOOK_SECONDS * ROWS * shards * (shards - 1) / 2 + KEY_SECONDS * pairs
    hours_of = {"reading, questions, tables": GRADE_SECONDS * pairs / HOUR, "look-ups in the ledger": looks / HOUR}
    each = {"ledger": LEDGER_BYTES, "judgements": JUDGEMENT_BYTES, "pairs with texts": PAIR_BYTES + texts}
    stored = {name: pairs * size / TB for name, size in each.items()}
    print(f"bixse with {shards:,} shards; disk costs per month:\n")
    table(HEADING, *priced(hours_of, "core hours", CORE_USD), *priced(stored, "TB", TB_USD))


def mining(documents: int, queries: int) -> None:
    """Print what it costs to encode a corpus, to store it and to search it exactly."""
    shards = -(-documents // shard_rows(documents))
    encode = FORWARD * operations(ENCODER, [(DOCUMENT_TOKENS, documents)], False) / ACHIEVED / HOUR
    seconds = {
        "read and write documents": INDEX_SECONDS * documents,
        "footer of the texts, once per shard": FOOTER_SECONDS * -(-documents // GROUP_ROWS) * shards,
        f"search for {queries:,} queries": 2.0 * documents * queries * ENCODER.hidden / SEARCH_OPERATIONS,
    }
    stored = {
        "vectors, float32": 4 * ENCODER.hidden * documents / TB,
        "texts": TOKEN_BYTES * DOCUMENT_TOKENS * documents / TB,
    }
    hours = priced({name: value / HOUR for name, value in seconds.items()}, "core hours", CORE_USD)
    print(f"{documents:,} documents of {DOCUMENT_TOKENS} tokens, {shards:,} shards; disk costs per month:\n")
    table(HEADING, *priced({"encode": encode}, "GPU hours", GPU_USD), *hours, *priced(stored, "TB", TB_USD))


def training(rows: int) -> None:
    """Print what it costs to train a 7B encoder once over pairs of one document per query."""
    size, lines = ENCODERS[TRAINED], []
    passes = 2 * BATCH / DEVICES / TEXTS_PER_PASS
    gathered = passes * GATHERS * 4 * size.parameters / GATHER_BYTES
    for name, model_size, more in (("LoRA", with_adapters(size), 0.0), ("all weights, shared out", size, gathered)):
        held = device_bytes(model_size, BATCH)
        held -= weight_bytes(model_size) * (1 - 1 / DEVICES) * bool(more)
        seconds = sum(step_seconds(model_size, BATCH)) + more
        hours = seconds * rows / BATCH / HOUR
        figures = (held / GB, seconds, more, hours, GPU_USD * DEVICES * hours)
        lines.append([name, *(f"{value:,.1f}" for value in figures)])
    print(f"{TRAINED}, {rows:,} pairs once, batches of {BATCH:,} over {DEVICES} devices:\n")
    table(["trained", "GB per device", "seconds per step", "of them gathering", "hours", "$"], *lines)


def scaling() -> None:
    """Print memory and step time of every encoder and batch."""
    rows = []
    for (name, size), batch in product(ENCODERS.items(), BATCHES):
        both = (size, with_adapters(size))
        held = [f"{device_bytes(one, batch) / GB:.1f}" for one in both]
        (encoding, loss, full), (_, _, lora) = (step_seconds(one, batch) for one in both)
        rows.append([name, f"{batch:,}", *held, f"{encoding:.2f}", f"{loss:.3f}", f"{full:.3f} / {lora:.3f}"])
    head = ["encoder", "batch", "full, GB", "LoRA, GB", "encode, s", "loss, s", "between devices, s (full / LoRA)"]
    table(head, *rows)


def one_gpu() -> None:
    """Print what one GPU holds: weights and optimizer, tokens per pass, and pairs per second without any loss."""
    rows = []
    for name, (size, inner) in ON_ONE.items():
        config = SimpleNamespace(
            hidden_size=size.hidden, intermediate_size=inner, num_hidden_layers=size.layers, num_attention_heads=1
        )
        row = [name]
        for one in (size, with_adapters(size)):
            held = weight_bytes(one)
            tokens = int(USED_SHARE * (MEMORY - held) / bytes_per_token(config, gradients=True))
            fits = tokens >= TOKENS_PER_PASS[0]
            row += [f"{held / GB:.1f}", f"{min(tokens, TOKENS_PER_PASS[1]):,}" if fits else "does not fit"]
        free = USED_SHARE * (MEMORY - BYTES_PER_FROZEN * size.parameters)
        encoding = min(int(free / bytes_per_token(config, gradients=False)), TOKENS_PER_PASS[1])
        each = operations(size, [(QUERY_TOKENS, 1), (DOCUMENT_TOKENS, 1)], checkpointing=False)
        rows.append([*row, f"{encoding:,}", f"{ACHIEVED / each:,.0f}"])
    table(
        ["encoder", "full, GB", "tokens per pass", "LoRA, GB", "tokens per pass", "encoding", "pairs/s, at most"], *rows
    )


def main() -> None:
    """Print the tables as Markdown."""
    given = options(
        __doc__,
        jobs=Option(["grade", "mine", "train"], f"of {', '.join(JOBS)}", JOBS, positional=True),
        pairs=Option(10**8, "to grade"),
        documents=Option(10**9, "to mine in"),
        queries=Option(10**5, "to mine for"),
        rows=Option(10**7, "to train on"),
    )
    work = {"grade": partial(grading, given.pairs), "mine": partial(mining, given.documents, given.queries),
            "train": partial(training, given.rows), "scaling": scaling, "gpu": one_gpu}  # fmt: skip
    for job in given.jobs:
        work[job]()


if __name__ == "__main__":
    main()
