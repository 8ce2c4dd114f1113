"""How fast `bixse train` trains, beside sentence-transformers' own trainer with its in-batch softmax loss.

    python benchmarks/bench_train.py [--documents 1 4] [--max-lengths 64 256] [--rounds 3] [--out FILE] [--quick]

One row a method and case, on the processor. All methods of a case train the demo model (all-MiniLM-L6-v2) on the same
queries and documents of the train split of pydocs, cut at the same length, in batches of as many queries, for as many
epochs, with the same optimizer (fused AdamW), rates and dropout. Round r draws its queries with seed r; K = 1 takes the
best document of a query, K = 4 three more.

- `stock`: `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` as it comes; the columns are anchor,
  positive and, for K = 4, negative_1 to negative_3.
- `stock, tuned`: the same with what a knowing user switches on: the precision that bixse computes in (bf16 where the
  processor is fast at it; BIXSE_PRECISION chooses), and no clipping of the gradient (bixse clips none).
- `stock, cached`: the tuned one with `CachedMultipleNegativesRankingLoss(mini_batch_size=8)`: it encodes every text
  twice, but pads within eight texts only, which pays where texts are long and of unlike length.
- `bixse` and `infonce`: `bixse.training.recipe.train` with these losses and its other settings as they come: a log
  entry a step;
- `bixse, sdpa` with transformers' choice of attention, `bixse, no dropout` with `dropout: 0`.

Timed is the call of the trainer's `train`: batches, tokenisation, steps, optimizer and log. Checkpoints are left out on
both sides, and there is no evaluation. All methods run in one process, after a small step of each that is not timed:
imports and warm-up are paid once, so that a run is short and another program slows all methods of a round alike. Every
other round runs them in the opposite order. Seconds are medians over rounds; a ratio is the median over rounds of the
ratio within the round. With the default, one step per run, the trainer's start (about 0.1 s) is in every run.

Columns:

- `documents` (K), `batch_size` (queries), `max_length` (tokens of a text that are read), `queries` (of a round, over
  all epochs), `threads` (PyTorch's: set OMP_NUM_THREADS to change it);
- `bf16`: what the run computed in; `bf16_is_fast`: what the processor can;
- `rounds`; `seconds` of a round; `cpu_seconds`: processor time of a round, over all threads;
- `pairs_per_second`, `texts_per_second`: (query, document) pairs given; queries and documents given;
- `tokens_per_second`: tokens trained on, padding aside; a document that two queries of a batch share counts once in
  bixse, which encodes it once;
- `padding`: share of the encoder's token positions that is padding;
- `ratio_to_stock`: how many times as fast as `stock`; `ratio_lowest`, `ratio_highest` over the rounds;
- `cpu_ratio_to_stock`: the same ratio in processor time, from which other programs take less away;
- `ratio_to_tuned`: how many times as fast as the faster of `stock, tuned` and `stock, cached`;
- `around_seconds`: the rest of the call: reading, loading, checks and saving the model; bixse does more of these;
- `of_products`: the time of the bare matrix products of the same shapes and precision, forward and backward, as a share
  of `seconds`: 1 is the limit;
- `extra_mib`: peak of the resident memory in `train` beyond weights and gradients, of the first round in a process of
  its own; Adam's two moments (173 MiB) are in it.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import PrinterCallback, Trainer

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.build import demo_model_path, quiet_loading
from bixse.encoders.loading.precision import bf16_is_fast, resolve_precision
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.recipe import train
from measuring import (
    Timed,
    bare_products,
    in_a_process_of_its_own,
    linear_shapes,
    make_parser,
    middle,
    ratio,
    ratio_with_ends,
    show,
    timed,
)
from memory import peak_beyond_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bixse.data.graded_pairs import QueryGroup

STOCK, TUNED, CACHED = "stock", "stock, tuned", "stock, cached"
CACHED_TEXTS = 8
"""Texts of a pass of the cached loss."""
BIXSE: dict[str, dict[str, Any]] = {
    "bixse": {"loss": "bixse"},
    "infonce": {"loss": "infonce"},
    "bixse, sdpa": {"loss": "bixse", "attention": "sdpa"},
    "bixse, no dropout": {"loss": "bixse", "dropout": 0.0},
}
"""Settings of `bixse train` beside those of the case."""
WARM_UP_QUERIES = 4
"""Queries of the step that is not timed."""
METHODS = (STOCK, TUNED, CACHED, *BIXSE)


@dataclass(frozen=True)
class Case:
    """What all methods have in common."""

    documents: int
    """K."""
    max_length: int
    batch_size: int
    """Queries of a batch."""
    queries: int
    """Queries of an epoch."""
    epochs: int

    @property
    def optimizer(self) -> OptimizerConfig:
        """The defaults of `bixse train` at this size."""
        return OptimizerConfig(batch_size=self.batch_size, epochs=self.epochs, documents_per_query=self.documents)


class Meter:
    """What a run of a trainer took: seconds, tokens and token positions, or memory in place of them."""

    def __init__(self, memory: bool = False) -> None:
        self.memory = memory
        self.seconds = math.nan
        self.cpu_seconds = math.nan
        self.extra_mib = math.nan
        self.bf16 = False
        self.tokens = 0
        self.positions = 0
        self.products_seconds = math.nan
        """Of the bare matrix products of the same run, forward and backward."""

    def __call__(self, trainer: Any, work: Callable[[], Any]) -> Any:
        """Measure the work of a trainer."""
        self.bf16 = trainer.args.bf16
        hook = trainer.model[0].register_forward_pre_hook(self._count)  # the first part gets the tokenised texts
        try:
            if self.memory:
                self.extra_mib = peak_beyond_gradients(work, list(trainer.model.parameters()))
                return None
            with linear_shapes(trainer.model, with_gradient=True) as shapes:
                run = timed(work)
            self.seconds, self.cpu_seconds = run.seconds, run.cpu_seconds
            precision = "bfloat16" if self.bf16 else "float32"
            self.products_seconds = timed(lambda: bare_products(shapes, precision, backward=True)).seconds
            return run.result
        finally:
            hook.remove()

    def _count(self, module: torch.nn.Module, inputs: tuple[dict[str, Any], ...]) -> None:
        if not torch.is_grad_enabled():
            return  # the first of the two passes of a cached loss
        mask = inputs[0]["attention_mask"]
        self.tokens += int(mask.sum())
        self.positions += mask.numel()


@contextmanager
def measured(meter: Meter) -> Iterator[None]:
    """Within this block every trainer's `train` is measured and writes no checkpoint."""
    original = Trainer.train

    def measured_train(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        return meter(self, lambda: original(self, *args, **kwargs))

    with patch.object(Trainer, "train", measured_train), patch.object(Trainer, "_save_checkpoint", lambda *_: None):
        yield


def drawn_groups(case: Case, seed: int) -> list[QueryGroup]:
    """Queries of the train split with K documents each, the best one first."""
    collection = load_pydocs()
    groups = GradedPairs.from_collection(collection, "train", PYDOCS_SCALE).groups()
    usable = [group for group in groups if len(group.documents) >= case.documents]
    if len(usable) < case.queries:
        raise SystemExit(
            f"--queries: got {case.queries}; expected at most {len(usable)} with {case.documents} documents"
        )
    generator = np.random.default_rng(seed)
    drawn = []
    for number in generator.permutation(len(usable))[: case.queries]:
        group = usable[number]
        best = int(np.argmax(group.relevance))
        others = generator.permutation([i for i in range(len(group.documents)) if i != best])
        chosen = [best, *map(int, others[: case.documents - 1])]
        parts = {name: [getattr(group, name)[i] for i in chosen] for name in ("document_ids", "documents", "relevance")}
        drawn.append(replace(group, **parts))
    return drawn


def train_bixse(settings: dict[str, Any], groups: Sequence[QueryGroup], case: Case, seed: int, folder: Path) -> None:
    """What `bixse train` runs."""
    rows = [
        {"query": group.query, "document": document, "relevance": relevance}
        for group in groups
        for document, relevance in zip(group.documents, group.relevance, strict=True)
    ]
    save_graded_pairs(GradedPairs.from_rows(rows), folder / "train.jsonl")
    config = TrainConfig(
        pairs=folder / "train.jsonl", max_length=case.max_length, optimizer=case.optimizer, seed=seed, **settings
    )
    train(config, folder / "run", progress=False)


def train_stock(method: str, groups: Sequence[QueryGroup], case: Case, seed: int, folder: Path) -> None:
    """What the documentation of sentence-transformers shows."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )

    names = ["positive", *(f"negative_{number}" for number in range(1, case.documents))]
    columns = {name: [group.documents[i] for group in groups] for i, name in enumerate(names)}
    dataset = Dataset.from_dict({"anchor": [group.query for group in groups], **columns})
    model = SentenceTransformer(str(demo_model_path()))
    model.max_seq_length = case.max_length
    switched_on: dict[str, Any] = (
        {"bf16": resolve_precision() == "bfloat16", "max_grad_norm": 0.0} if method != STOCK else {}
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=case.epochs,
        per_device_train_batch_size=case.batch_size,
        learning_rate=case.optimizer.scaled_learning_rate(),
        adam_beta2=case.optimizer.adam_beta2,
        warmup_steps=case.optimizer.warmup,
        seed=seed,
        disable_tqdm=True,
        use_cpu=True,
        **switched_on,
    )
    loss = (
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=CACHED_TEXTS)
        if method == CACHED
        else MultipleNegativesRankingLoss(model)
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(str(folder / "model"))


def run(method: str, groups: Sequence[QueryGroup], case: Case, seed: int, memory: bool = False) -> tuple[Meter, float]:
    """One training run: what was measured, and the seconds around it."""
    meter = Meter(memory)
    with tempfile.TemporaryDirectory() as name, measured(meter), quiet_loading():
        start = time.perf_counter()
        if method in BIXSE:
            train_bixse(BIXSE[method], groups, case, seed, Path(name))
        else:
            train_stock(method, groups, case, seed, Path(name))
        around = time.perf_counter() - start - meter.seconds - (0.0 if memory else meter.products_seconds)
    gc.collect()  # a trainer and its callbacks refer to each other
    return meter, around


def measure_memory(method: str, case: Case) -> float:
    """Peak resident memory in MiB of the first round in this (fresh) process."""
    meter, _ = run(method, drawn_groups(case, 0), case, 0, memory=True)
    return meter.extra_mib


def measure(case: Case, rounds: int, warm_up: bool = True) -> dict[str, list[tuple[Meter, float]]]:
    """All methods in each round; the order turns round in every other one."""
    small = replace(case, batch_size=min(case.batch_size, WARM_UP_QUERIES))
    first = drawn_groups(case, 0)[: small.batch_size]
    for method in METHODS if warm_up else ():
        run(method, first, small, 0)
    done: dict[str, list[tuple[Meter, float]]] = {method: [] for method in METHODS}
    for seed in range(rounds):
        groups = drawn_groups(case, seed)
        for method in METHODS if seed % 2 == 0 else METHODS[::-1]:
            done[method].append(run(method, groups, case, seed))
    return done


def memory_of(method: str, case: Case) -> float:
    """Peak resident memory in MiB of the first round in a process of its own."""
    arguments = ("--memory-of", method, "--documents", case.documents, "--max-lengths", case.max_length,
                 "--batch-size", case.batch_size, "--queries", case.queries, "--epochs", case.epochs)  # fmt: skip
    return in_a_process_of_its_own(__file__, *arguments)


def rows_of(case: Case, rounds: int, quick: bool) -> Iterator[dict[str, object]]:
    """One table row a method."""
    done = measure(case, rounds, warm_up=not quick)
    runs = {method: [Timed(m.seconds, m.cpu_seconds, m) for m, _ in done[method]] for method in METHODS}
    tuned = min((TUNED, CACHED), key=lambda method: middle(runs[method]))
    queries = case.queries * case.epochs
    for method, own in runs.items():
        meters = [run.result for run in own]
        took = middle(own, digits=9)
        median, lowest, highest = ratio_with_ends(runs[STOCK], own)
        yield {
            "documents": case.documents,
            "batch_size": case.batch_size,
            "max_length": case.max_length,
            "method": method,
            "queries": queries,
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "bf16": meters[0].bf16,
            "bf16_is_fast": bf16_is_fast(),
            "seconds": round(took, 3),
            "cpu_seconds": middle(own, "cpu_seconds", 3),
            "pairs_per_second": round(queries * case.documents / took, 2),
            "texts_per_second": round(queries * (case.documents + 1) / took, 2),
            "tokens_per_second": round(statistics.median(meter.tokens / meter.seconds for meter in meters)),
            "padding": round(1 - sum(meter.tokens for meter in meters) / sum(meter.positions for meter in meters), 3),
            "ratio_to_stock": median,
            "ratio_lowest": lowest,
            "ratio_highest": highest,
            "cpu_ratio_to_stock": ratio(runs[STOCK], own, "cpu_seconds"),
            "ratio_to_tuned": ratio(runs[tuned], own),
            "of_products": round(statistics.median(meter.products_seconds / meter.seconds for meter in meters), 3),
            "around_seconds": round(statistics.median(around for _, around in done[method]), 2),
            "extra_mib": memory_of(method, case) if not quick else math.nan,
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    parser = make_parser(__doc__, quick="one small case, no warm-up, no memory: a look alone")
    parser.add_argument("--documents", type=int, nargs="+", default=[1, 4], help="K: documents of a query")
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[64, 256], help="tokens of a text that are read")
    parser.add_argument("--batch-size", type=int, default=16, help="queries of a batch")
    parser.add_argument("--queries", type=int, default=16, help="queries of an epoch")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--memory-of", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.queries, options.epochs, options.batch_size, *options.documents) < 1:
        parser.error("expected --rounds, --queries, --epochs, --batch-size and --documents of at least 1")
    if min(options.max_lengths) < 4 or max(options.max_lengths) > 512:
        parser.error("expected --max-lengths of 4 to 512")
    if options.queries < options.batch_size:
        parser.error("expected --queries of at least --batch-size")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the processor is measured
    if options.quick:
        options.documents, options.max_lengths, options.rounds = [4], [16], 1
        options.batch_size, options.queries, options.epochs = 4, 4, 1
    cases = [
        Case(documents, length, options.batch_size, options.queries, options.epochs)
        for documents in options.documents
        for length in options.max_lengths
    ]
    if options.memory_of:
        print(measure_memory(options.memory_of, cases[0]))
        return
    show((row for case in cases for row in rows_of(case, options.rounds, options.quick)), options.out)


if __name__ == "__main__":
    main()
