"""Texts encoded a second: bixse beside sentence-transformers, with its defaults and with its best settings.

    python benchmarks/bench_encode.py [--documents 512] [--rounds 4] [--processes 2] [--ndcg DIR] [--out FILE] [--quick]

One row a method, on the same documents of the sample collection (Python's own documentation: many short entries, some
of hundreds of words) and the same model (all-MiniLM-L6-v2, 256 tokens at most):

- `sentence-transformers`: `model.encode(texts, normalize_embeddings=True)`, 32 texts per batch, float32;
- `sentence-transformers, best`: the same with whichever of 8, 16, 32 and 128 texts a batch is fastest in a trial on a
  part of the documents, and under bf16 autocast where that is the precision (BIXSE_PRECISION chooses);
- `bixse`: `bixse.encoders.encode.encode_texts`;
- `bixse, int8`: the same with the linear layers of PyTorch's dynamic quantisation, in three lines of a user's own:
  weights in 8 bits per output, activations in 8 bits per pass, all else in float32;
- `bare products`: the matrix products of bixse's passes in its precision and nothing else, which bounds it;
- `bixse, processes`: the same in several processes, their start not counted (with --processes above 1).

Times are wall times of methods interleaved in one run, the order turned from round to round, so that another program on
the machine slows all alike; the ratio is the median over rounds of the time of sentence-transformers' defaults to a
method's in the same round. `padding` is the share of token positions computed that are padding, in one process.
`difference` is the largest of a coordinate to that of sentence-transformers' defaults: above 1e-5 in float32 the run
fails (int8 is left out of this). With `--ndcg` a method also ranks that collection for its test queries:
`ndcg`, and `ndcg_change`, `ndcg_low`, `ndcg_high`, its difference from sentence-transformers' defaults with the 95 %
interval over queries. The number of threads is PyTorch's: set OMP_NUM_THREADS to change it.
"""

from __future__ import annotations

import copy
import os
import warnings
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from bixse.data.pydocs import load_pydocs
from bixse.encoders.embedding import positions_computed
from bixse.encoders.encode import TEXTS_PER_BLOCK, EncodePool, by_length, encode_texts
from bixse.encoders.loading.build import build_encoder, no_library_bars
from bixse.encoders.loading.precision import autocast, resolve_precision, use_precision
from bixse.evaluation.evaluate import Evaluation, evaluate
from bixse.evaluation.statistics import paired_bootstrap
from measuring import bare_products, in_turn, linear_shapes, make_parser, middle, ratio_with_ends, show, timed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sentence_transformers import SentenceTransformer

PLAIN = "sentence-transformers"
BEST = "sentence-transformers, best"
OURS = "bixse"
INT8 = "bixse, int8"
PRODUCTS = "bare products"
SIZES = (8, 16, 32, 128)
"""Texts a batch that are tried for sentence-transformers."""
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}
"""Largest difference of a coordinate that is allowed."""


def sample(number: int) -> list[str]:
    """Documents drawn at random from the sample collection, each once."""
    collection = load_pydocs()
    texts = list(dict.fromkeys(document.content for document in collection.corpus.values()))
    chosen = np.random.default_rng(0).permutation(len(texts))[:number]
    return [texts[row] for row in sorted(chosen)]


def lengths_of(model, texts: Sequence[str]) -> np.ndarray:
    """Tokens of each text."""
    return np.concatenate([
        model.preprocess(list(texts[start : start + 512]))["attention_mask"].sum(dim=1).numpy()
        for start in range(0, len(texts), 512)
    ])  # fmt: skip


def plain_padding(model, texts: Sequence[str], size: int) -> float:
    """Share of padding in sentence-transformers' batches: sorted by characters from the longest on."""
    lengths = lengths_of(model, texts)[by_length(texts)[::-1]]
    computed = sum(len(part) * part.max() for part in np.split(lengths, range(size, len(lengths), size)))
    return 1 - lengths.sum() / computed


def own_padding(model, texts: Sequence[str]) -> float:
    """Share of padding in ours."""
    order = by_length(texts)
    computed = tokens = 0
    for start in range(0, len(texts), TEXTS_PER_BLOCK):
        mask = model.preprocess([texts[row] for row in order[start : start + TEXTS_PER_BLOCK]])["attention_mask"]
        computed, tokens = computed + positions_computed(mask), tokens + int(mask.sum())
    return 1 - tokens / computed


def best_size(model, texts: Sequence[str]) -> int:
    """The fastest of some batch sizes for sentence-transformers on a part of the texts."""
    part = list(texts[:: max(1, len(texts) // 128)])
    seconds = {}
    for size in SIZES:
        with autocast(model.device):
            seconds[size] = timed(partial(model.encode, part, batch_size=size)).seconds
    return min(seconds, key=lambda size: seconds[size])


def in_int8(model: SentenceTransformer) -> SentenceTransformer:
    """A copy whose linear layers compute in 8 bits."""
    torch.backends.quantized.engine = "onednn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), layers)


def ndcg_of(models: Mapping[str, tuple[SentenceTransformer, str]], collection: str) -> dict[str, Evaluation]:
    """What models reach on the test queries of a collection, each in its precision."""
    found = {}
    for name, (model, precision) in models.items():
        with use_precision(precision):
            found[name] = evaluate(model, collection)
    return found


def ndcg_columns(found: Mapping[str, Evaluation], name: str) -> dict[str, object]:
    """nDCG@10 and its change."""
    own = found.get(name)
    if own is None:
        return dict.fromkeys(("ndcg", "ndcg_change", "ndcg_low", "ndcg_high"), "")
    change = paired_bootstrap(own.per_query["ndcg@10"], found[PLAIN].per_query["ndcg@10"])
    figures = (own.metrics["ndcg@10"], change.mean, change.low, change.high)
    return dict(zip(("ndcg", "ndcg_change", "ndcg_low", "ndcg_high"), (round(f, 4) for f in figures), strict=True))


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One table row a method."""
    texts = sample(options.documents)
    model = build_encoder("demo", device="cpu")
    precision = resolve_precision(device="cpu")
    tokens = int(lengths_of(model, texts).sum())
    quantised = in_int8(model)
    with no_library_bars(), ExitStack() as opened:
        size = best_size(model, texts)

        def best() -> np.ndarray:
            with autocast(model.device):
                return model.encode(texts, batch_size=size, normalize_embeddings=True)

        methods: dict[str, Callable[[], np.ndarray]] = {
            PLAIN: lambda: model.encode(texts, normalize_embeddings=True),
            BEST: best,
            OURS: lambda: encode_texts(model, texts, "document"),
            INT8: lambda: encode_texts(quantised, texts, "document", "float32"),
        }
        paddings = {PLAIN: plain_padding(model, texts, 32), BEST: plain_padding(model, texts, size)}
        paddings[OURS] = own_padding(model, texts)
        if options.processes > 1:
            pool = EncodePool(model, ["cpu"] * options.processes)
            opened.callback(pool.close)
            methods[f"{OURS}, {options.processes} processes"] = lambda: pool.encode(texts, "document", None, precision)
        found = {name: method() for name, method in methods.items()}  # also a first run of each, which is not timed
        with linear_shapes(model) as shapes:
            methods[OURS]()
        methods[PRODUCTS] = lambda: bare_products(shapes, precision)
        print(f"{precision}, best batch size of sentence-transformers {size}; load before: {os.getloadavg()[0]:.1f}")
        runs = in_turn(methods, options.rounds)
        compared = {PLAIN: (model, "float32"), OURS: (model, precision), INT8: (quantised, "float32")}
        reached = ndcg_of(compared, options.ndcg) if options.ndcg else {}
    for name in methods:
        median, lowest, highest = ratio_with_ends(runs[PLAIN], runs[name])
        difference = float(np.abs(found[name] - found[PLAIN]).max()) if name in found else 0.0
        if difference > TOLERANCE["float32" if name == PLAIN else precision] and name != INT8:
            raise SystemExit(f"{name}: embeddings differ by {difference} from those of {PLAIN}")
        yield {
            "documents": len(texts),
            "tokens": tokens,
            "threads": torch.get_num_threads(),
            "bf16": precision == "bfloat16",
            "rounds": options.rounds,
            "method": name,
            "texts_per_second": round(len(texts) / middle(runs[name], digits=9), 2),
            "ratio": median,
            "ratio_lowest": lowest,
            "ratio_highest": highest,
            "padding": round(paddings[name], 4) if name in paddings else "",
            "difference": f"{difference:.1e}",
            **ndcg_columns(reached, name),
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    parser = make_parser(__doc__, quick="8 documents: a look, not a measurement")
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4, help="the median counts")
    parser.add_argument("--processes", type=int, default=1, help="above 1: measure so many processes too")
    parser.add_argument("--ndcg", metavar="DIR", help="rank this collection too, which may take minutes")
    options = parser.parse_args()
    if min(options.documents, options.rounds, options.processes) < 1:
        parser.error("expected documents, rounds and processes of at least 1")
    if options.quick:
        options.documents, options.rounds = 8, 1
    show(rows_of(options), options.out)


if __name__ == "__main__":
    main()
