"""Texts encoded per second: bixse and sentence-transformers, with its defaults and with its best settings.

    python benchmarks/bench_encode.py [--device cpu] [--documents 512] [--rounds 4] [--ndcg DIR] [--out FILE] [--quick]

One row per method, on the same documents of the sample collection (Python's own documentation: many short entries, some
of hundreds of words) and the same model (all-MiniLM-L6-v2, 256 tokens at most):

- `sentence-transformers`: `model.encode(texts, normalize_embeddings=True)`, 32 texts per batch, float32;
- `sentence-transformers, best`: the same with whichever of 8, 16, 32 and 128 texts per batch is fastest in a trial on a
  part of the documents, and under bf16 autocast where that is the precision (BIXSE_PRECISION chooses);
- `bixse`: `bixse.encoders.encode.encode_texts`;
- `bixse, int8`: the same with the linear layers of PyTorch's dynamic quantisation, in three lines of a user's own:
  weights in 8 bits per output, activations in 8 bits per pass, all else in float32;
- `tokenizer`: the tokenizer's own call of all texts at once, and nothing else, which bounds it too;
- `bare products`: the matrix products of bixse's passes in its precision and nothing else, which bounds it;

The ratio is the time of sentence-transformers' defaults over a method's. `padding` is the share of token positions
computed that are padding, in one process. `mean_tokens` and `longest` are tokens of a text. `difference` is the largest
of a coordinate to that of sentence-transformers' defaults: above 1e-5 in float32 the run fails (int8 is left out of
this). With `--ndcg` a method also ranks that collection for its test queries: `ndcg`, and `ndcg_change`, `ndcg_low`,
`ndcg_high`, its difference from sentence-transformers' defaults with the 95 % interval over queries.

On a GPU (the default where there is one) the defaults and int8 are left out, and the ratio is to
`sentence-transformers, best`: the best of 32, 128 and 512 texts per batch, under bf16 autocast and with the model in
bf16. Documents beyond those of the sample collection are its own, with a number before each.
"""

from __future__ import annotations

import copy
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bixse.data.pydocs import load_pydocs
from bixse.encoders.embedding import passes_by_length
from bixse.encoders.encode import TEXTS_PER_BLOCK, by_length, encode_texts
from bixse.encoders.loading.build import build_encoder, no_library_bars
from bixse.encoders.loading.precision import autocast, default_device, resolve_precision, use_precision
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.statistics import paired_difference
from measuring import OUT, Option, Shapes, bare_products, in_turn, linear_shapes, middle, options, ratios, show, timed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.evaluate import Evaluation

PLAIN = "sentence-transformers"
BEST = "sentence-transformers, best"
OURS = "bixse"
INT8 = "bixse, int8"
TOKENS = "tokenizer"
PRODUCTS = "bare products"
SIZES = {"cpu": (8, 16, 32, 128), "cuda": (32, 128, 512)}
"""Texts per batch that are tried for sentence-transformers."""
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}
"""Largest difference of a coordinate that is allowed."""


def sample(number: int) -> list[str]:
    """Draw documents at random from the sample collection, each once; more of them than there are get a number."""
    collection = load_pydocs()
    texts = list(dict.fromkeys(document.content for document in collection.corpus.values()))
    chosen = np.random.default_rng(0).permutation(len(texts))[:number]
    drawn = [texts[row] for row in sorted(chosen)]
    return drawn + [f"{n} {drawn[n % len(drawn)]}" for n in range(number - len(drawn))]


def padding_of(model: SentenceTransformer, texts: Sequence[str], size: int | None) -> float:
    """Return the share of padding in sentence-transformers' batches of `size` texts, in ours where it is None.

    They sort by characters from the longest on.
    """
    order = by_length(texts)[::-1] if size else by_length(texts)
    step, computed, tokens = size or TEXTS_PER_BLOCK["cpu"], 0, 0
    for start in range(0, len(texts), step):
        mask = model.preprocess([texts[row] for row in order[start : start + step]])["attention_mask"]
        tokens += int(mask.sum())
        if size:
            computed += mask.numel()
            continue
        lengths = np.sort(mask.sum(dim=1).numpy())
        ends = np.cumsum(passes_by_length(lengths))
        computed += int((np.diff(ends, prepend=0) * lengths[ends - 1]).sum())
    return 1 - tokens / computed


def encoded(model: SentenceTransformer, texts: Sequence[str], size: int) -> np.ndarray:
    """Encode as sentence-transformers does, under bf16 autocast if bixse computes in bf16, and the model does not."""
    weights = next(model.parameters()).dtype
    with autocast(model.device, None if weights == torch.float32 else "float32"):
        return model.encode(texts, batch_size=size, normalize_embeddings=True)


def best_way(model: SentenceTransformer, texts: Sequence[str]) -> tuple[SentenceTransformer, int]:
    """Return the fastest model and batch size for sentence-transformers on a part of the texts."""
    device = model.device.type
    part = list(texts[:: max(1, len(texts) // (2048 if device == "cuda" else 128))])
    ways = list(product([model, copy.deepcopy(model).bfloat16()] if device == "cuda" else [model], SIZES[device]))
    if device == "cuda":
        encoded(ways[-1][0], part, ways[-1][1])  # the first run loads kernels
    seconds = [timed(lambda way=way: encoded(way[0], part, way[1])).seconds for way in ways]
    return ways[int(np.argmin(seconds))]


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
    on_gpu, device = given.device == "cuda", given.device
    texts, model = sample(given.documents), build_encoder("demo", device=device)
    precision = resolve_precision(device=device)
    quantised = None if on_gpu else in_int8(model)
    with no_library_bars():
        best, size = best_way(model, texts)
        methods: dict[str, Callable[[], Any]] = {
            PLAIN: lambda: model.encode(texts, normalize_embeddings=True),
            BEST: lambda: encoded(best, texts, size),
            OURS: lambda: encode_texts(model, texts, "document"),
        }
        if quantised is not None:
            methods[INT8] = lambda: encode_texts(quantised, texts, "document", "float32")
        # also a first run of each method, which is not timed
        embeddings = {name: method() for name, method in methods.items()}
        with linear_shapes(model) as shapes:
            methods[OURS]()
        if on_gpu:
            del methods[PLAIN]
        methods[TOKENS] = lambda: tokenised(model, texts)
        methods[PRODUCTS] = lambda: waited(shapes, precision, device)
        in_turn({PRODUCTS: methods[PRODUCTS]}, 1)
        way = f"{next(best.parameters()).dtype} weights, batch size {size}".removeprefix("torch.")
        print(f"{card(device)}, {precision}; best of sentence-transformers: {way}")
        runs = in_turn(methods, given.rounds)
        compared = {PLAIN: (model, "float32"), OURS: (model, precision)}
        if quantised is not None:
            compared[INT8] = (quantised, "float32")
        reached = ndcg_of(compared, given.ndcg) if given.ndcg else {}
    lengths = [len(encoding.ids) for encoding in model.tokenizer.backend_tokenizer.encode_batch(texts)]
    paddings = (
        {} if on_gpu else {name: padding_of(model, texts, n) for name, n in ((PLAIN, 32), (BEST, size), (OURS, None))}
    )
    for name in methods:
        difference = float(np.abs(embeddings[name] - embeddings[PLAIN]).max()) if name in embeddings else 0.0
        if difference > TOLERANCE["float32" if name == PLAIN else precision] and name != INT8:
            raise SystemExit(f"{name}: embeddings differ by {difference} from those of {PLAIN}")
        seconds = middle(runs[name], digits=9)
        yield {
            "documents": len(texts),
            "tokens": sum(lengths),
            "mean_tokens": round(sum(lengths) / len(lengths), 1),
            "longest": max(lengths),
            "card": card(device),
            "threads": torch.get_num_threads(),
            "bf16": precision == "bfloat16",
            "rounds": given.rounds,
            "method": name,
            "texts_per_second": round(len(texts) / seconds, 2),
            "tokens_per_second": round(sum(lengths) / seconds),
            **ratios(runs[BEST if on_gpu else PLAIN], runs[name]),
            "padding": round(paddings[name], 4) if name in paddings else "",
            "difference": f"{difference:.1e}",
            **ndcg_columns(reached, name),
        }


def tokenised(model: SentenceTransformer, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, of a model that was used before: its tokenizer cuts texts."""
    tokenizer = model.tokenizer.backend_tokenizer
    tokenizer.no_padding()
    return [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]


def waited(shapes: Shapes, precision: str, device: str) -> None:
    """Compute the bare products to their end."""
    bare_products(shapes, precision, device=device)
    if device == "cuda":
        torch.cuda.synchronize()


def card(device: str) -> str:
    """Return the name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def main() -> None:
    """Measure, print the table, write the CSV."""
    given = options(
        __doc__,
        quick={"documents": 8, "rounds": 1},
        out=OUT,
        device=Option(default_device(), "what computes", ["cpu", "cuda"]),
        documents=Option(int, "512 on a CPU, 20,000 on a GPU"),
        rounds=Option(4, "the median counts"),
        ndcg=Option(str, "folder of a collection: rank it too, which may take minutes"),
    )
    given.documents = given.documents or {"cpu": 512, "cuda": 20_000}[given.device]
    show(rows_of(given), given.out)


if __name__ == "__main__":
    main()
