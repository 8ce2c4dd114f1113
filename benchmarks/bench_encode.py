"""Texts encoded per second: bixse and sentence-transformers, with its defaults and with its best settings.

    python benchmarks/bench_encode.py [--documents 512] [--rounds 4] [--ndcg DIR] [--out FILE] [--quick]

One row per method, on the same documents of the sample collection (Python's own documentation: many short entries, some
of hundreds of words) and the same model (all-MiniLM-L6-v2, 256 tokens at most):

- `sentence-transformers`: `model.encode(texts, normalize_embeddings=True)`, 32 texts per batch, float32;
- `sentence-transformers, best`: the same with whichever of 8, 16, 32 and 128 texts per batch is fastest in a trial on a
  part of the documents, and under bf16 autocast where that is the precision (BIXSE_PRECISION chooses);
- `bixse`: `bixse.encoders.encode.encode_texts`;
- `bixse, int8`: the same with the linear layers of PyTorch's dynamic quantisation, in three lines of a user's own:
  weights in 8 bits per output, activations in 8 bits per pass, all else in float32;
- `bare products`: the matrix products of bixse's passes in its precision and nothing else, which bounds it;

The ratio is the time of sentence-transformers' defaults over a method's. `padding` is the share of token positions
computed that are padding, in one process. `difference` is the largest of a coordinate to that of sentence-transformers'
defaults: above 1e-5 in float32 the run fails (int8 is left out of this). With `--ndcg` a method also ranks that
collection for its test queries: `ndcg`, and `ndcg_change`, `ndcg_low`, `ndcg_high`, its difference from
sentence-transformers' defaults with the 95 % interval over queries.
"""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from bixse.data.pydocs import load_pydocs
from bixse.encoders.embedding import passes_by_length
from bixse.encoders.encode import TEXTS_PER_BLOCK, by_length, encode_texts
from bixse.encoders.loading.build import build_encoder, no_library_bars
from bixse.encoders.loading.precision import autocast, resolve_precision, use_precision
from bixse.evaluation.evaluate import Evaluation, evaluate
from bixse.evaluation.statistics import paired_difference
from measuring import OUT, Option, bare_products, in_turn, linear_shapes, middle, options, ratios, show, timed

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
"""Texts per batch that are tried for sentence-transformers."""
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}
"""Largest difference of a coordinate that is allowed."""


def sample(number: int) -> list[str]:
    """Draw documents at random from the sample collection, each once."""
    collection = load_pydocs()
    texts = list(dict.fromkeys(document.content for document in collection.corpus.values()))
    chosen = np.random.default_rng(0).permutation(len(texts))[:number]
    return [texts[row] for row in sorted(chosen)]


def padding_of(model: SentenceTransformer, texts: Sequence[str], size: int | None) -> float:
    """Return the share of padding in sentence-transformers' batches of `size` texts, in ours where it is None.

    They sort by characters from the longest on.
    """
    order = by_length(texts)[::-1] if size else by_length(texts)
    step, computed, tokens = size or TEXTS_PER_BLOCK, 0, 0
    for start in range(0, len(texts), step):
        mask = model.preprocess([texts[row] for row in order[start : start + step]])["attention_mask"]
        tokens += int(mask.sum())
        if size:
            computed += mask.numel()
            continue
        order_of_passes, numbers = passes_by_length(mask)
        lengths = mask.sum(dim=1)[order_of_passes].split(numbers)
        computed += sum(len(part) * int(part.max()) for part in lengths)
    return 1 - tokens / computed


def best_size(model, texts: Sequence[str]) -> int:
    """Return the fastest of some batch sizes for sentence-transformers on a part of the texts."""
    part = list(texts[:: max(1, len(texts) // 128)])
    seconds = {}
    for size in SIZES:
        with autocast(model.device):
            seconds[size] = timed(partial(model.encode, part, batch_size=size)).seconds
    return min(seconds, key=lambda size: seconds[size])


def in_int8(model: SentenceTransformer) -> SentenceTransformer:
    """Return a copy whose linear layers compute in 8 bits."""
    torch.backends.quantized.engine = "onednn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), layers)


def ndcg_of(models: Mapping[str, tuple[SentenceTransformer, str]], collection: str) -> dict[str, Evaluation]:
    """Evaluate models on the test queries of a collection, each in its precision."""
    evaluations = {}
    for name, (model, precision) in models.items():
        with use_precision(precision):
            evaluations[name] = evaluate(model, collection)
    return evaluations


def ndcg_columns(evaluations: Mapping[str, Evaluation], name: str) -> dict[str, object]:
    """Return nDCG@10 and its change, or empty cells."""
    names = ("ndcg", "ndcg_change", "ndcg_low", "ndcg_high")
    if name not in evaluations:
        return dict.fromkeys(names, "")
    change = paired_difference(evaluations[name].by_query["ndcg@10"], evaluations[PLAIN].by_query["ndcg@10"])
    figures = (evaluations[name].metrics["ndcg@10"], change.mean, change.low, change.high)
    return dict(zip(names, ("" if figure is None else round(figure, 4) for figure in figures), strict=True))


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one table row per method."""
    texts, model, precision = (
        sample(given.documents),
        build_encoder("demo", device="cpu"),
        resolve_precision(device="cpu"),
    )
    quantised = in_int8(model)
    with no_library_bars():
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
        paddings = {name: padding_of(model, texts, n) for name, n in ((PLAIN, 32), (BEST, size), (OURS, None))}
        # also a first run of each method, which is not timed
        embeddings = {name: method() for name, method in methods.items()}
        with linear_shapes(model) as shapes:
            methods[OURS]()
        methods[PRODUCTS] = lambda: bare_products(shapes, precision)
        print(f"{precision}, best batch size of sentence-transformers {size}")
        runs = in_turn(methods, given.rounds)
        compared = {PLAIN: (model, "float32"), OURS: (model, precision), INT8: (quantised, "float32")}
        reached = ndcg_of(compared, given.ndcg) if given.ndcg else {}
    tokens = sum(int(model.preprocess([text])["attention_mask"].sum()) for text in texts)
    for name in methods:
        difference = float(np.abs(embeddings[name] - embeddings[PLAIN]).max()) if name in embeddings else 0.0
        if difference > TOLERANCE["float32" if name == PLAIN else precision] and name != INT8:
            raise SystemExit(f"{name}: embeddings differ by {difference} from those of {PLAIN}")
        yield {
            "documents": len(texts),
            "tokens": tokens,
            "threads": torch.get_num_threads(),
            "bf16": precision == "bfloat16",
            "rounds": given.rounds,
            "method": name,
            "texts_per_second": round(len(texts) / middle(runs[name], digits=9), 2),
            **ratios(runs[PLAIN], runs[name]),
            "padding": round(paddings[name], 4) if name in paddings else "",
            "difference": f"{difference:.1e}",
            **ndcg_columns(reached, name),
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    given = options(
        __doc__,
        quick={"documents": 8, "rounds": 1},
        out=OUT,
        documents=512,
        rounds=Option(4, "the median counts"),
        ndcg=Option(str, "folder of a collection: rank it too, which may take minutes"),
    )
    show(rows_of(given), given.out)


if __name__ == "__main__":
    main()
