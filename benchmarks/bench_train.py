"""How fast `bixse train` trains, compared with sentence-transformers' own trainer with its in-batch softmax loss.

    python benchmarks/bench_train.py [--device cpu] [--documents 1 4] [--max-lengths 64 256] [--out FILE] [--quick]
    python benchmarks/bench_train.py --model FOLDER --documents 2 --max-lengths 96 --batch-size 256

One row per method and case, on the GPU if there is one, else on the CPU. All methods of a case train the demo model
(all-MiniLM-L6-v2) on the same queries and documents of the train split of pydocs, cut at the same length, in batches of
as many queries, for as many epochs, with the same optimizer (fused AdamW), rates and dropout. Round r draws its queries
with seed r; K = 1 takes the best document of a query, K = 4 three more.

- `stock`: `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` as it comes; the columns are anchor,
  positive and, for K = 4, negative_1 to negative_3.
- `stock, tuned`: the same with what a knowing user switches on: the precision that bixse computes in (bf16 where the
  device is fast at it; BIXSE_PRECISION chooses), and no clipping of the gradient (bixse clips none). On a GPU also with
  4 and 8 workers that tokenise.
- `stock, cached`: the tuned one with `CachedMultipleNegativesRankingLoss(mini_batch_size=8)`: it encodes every text
  twice, but pads within eight texts only, which pays where texts are long and of unlike length.
- `bixse` and `infonce`: `bixse.training.train.train_into` with these losses and its other settings as they come;
- `bixse, no dropout` with `dropout: 0`.

`--model` trains another folder with bixse alone; a decoder is made bidirectional, with mean pooling.

Timed is the call of the trainer's `train`: batches, tokenisation, steps, optimizer and log. Checkpoints are left out on
both sides, and there is no evaluation. Methods run after a small step of each that is not timed, in the opposite order
every other round. On a CPU the default is one step per run, and the trainer's start (about 0.1 s) is in every run.

- `queries` of a round, over all epochs; `bf16`: what the run computed in; `bf16_is_fast`: what the device can;
- `seconds_per_step` without the first steps, of which a GPU's first ones are slow;
- `mean_tokens`, `longest`: tokens of a text;
- `tokens_per_second`: tokens trained on, padding aside; bixse encodes a document that two queries share once;
- `padding`: share of the encoder's token positions that is padding;
- `ratio_to_stock`: how many times as fast as `stock`; `cpu_ratio_to_stock`: the same in processor time;
- `ratio_to_tuned`: how many times as fast as the fastest of `stock, tuned` and `stock, cached`;
- `around_seconds`: the rest of the call: reading, loading, checks and saving the model; bixse does more of these;
- `of_products`: the time of the bare matrix products, forward and backward, as a share of `seconds`: 1 is the limit;
- `extra_mib`: on a CPU, peak of the resident memory in `train` beyond weights and gradients, of the first round in a
  process of its own; Adam's two moments (173 MiB) are in it. On a GPU, peak of the memory in use.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback

from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.build import demo_model_path, quiet_loading
from bixse.encoders.loading.precision import bf16_is_fast, default_device, resolve_precision
from bixse.files.files import CACHE_VARIABLE, NO_CACHE
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.train import train_into
from measuring import (
    OUT,
    Option,
    Timed,
    bare_products,
    linear_shapes,
    memory_alone,
    middle,
    options,
    peak_beyond_gradients,
    ratio,
    ratios,
    show,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bixse.data.graded_pairs import QueryGroup

STOCK, TUNED, CACHED = "stock", "stock, tuned", "stock, cached"
WORKERS = {f"{TUNED}, {number} workers": number for number in (4, 8)}
CACHED_TEXTS = 8
"""Texts of a pass of the cached loss."""
FIRST_STEPS = 5
"""Steps that `seconds_per_step` leaves out, of a run that has more than twice as many."""
BIXSE: dict[str, dict[str, Any]] = {
    "bixse": {"loss": "bixse"},
    "infonce": {"loss": "infonce"},
    "bixse, no dropout": {"loss": "bixse", "dropout": 0.0},
}
"""Settings of `bixse train` in addition to those of the case."""
WARM_UP_QUERIES = 4
"""Queries of the step that is not timed."""
METHODS = {"cpu": [STOCK, TUNED, CACHED, *BIXSE], "cuda": [TUNED, *WORKERS, "bixse", "infonce"]}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"documents": [1, 4], "max_lengths": [64, 256], "batch_size": [16], "queries": 16, "steps": 1, "rounds": 3},
    "cuda": {"documents": [3], "max_lengths": [256], "batch_size": [64, 256], "queries": 512, "steps": 30, "rounds": 1},
}


@dataclass(frozen=True)
class Case:
    """What all methods have in common: K, tokens of a text, queries of a batch and of an epoch, epochs, the model."""

    documents: int
    max_length: int
    batch_size: int
    queries: int
    epochs: int
    model: str = "demo"

    @property
    def optimizer(self) -> OptimizerConfig:
        """The defaults of `bixse train` at this size."""
        return OptimizerConfig(
            global_batch_size=self.batch_size, num_train_epochs=self.epochs, documents_per_query=self.documents
        )


class StepClock(TrainerCallback):
    """Takes the time of the steps after the first ones."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        first = FIRST_STEPS if state.max_steps > 2 * FIRST_STEPS else 0
        if state.global_step in (first, state.max_steps):
            synchronise()
            self.times[state.global_step] = time.perf_counter()

    def seconds_per_step(self) -> float:
        """Return the mean after the first steps; NaN of a run of few steps."""
        if len(self.times) < 2:
            return math.nan
        (first, start), (last, end) = sorted(self.times.items())
        return (end - start) / (last - first)


@dataclass
class Meter:
    """The seconds, tokens and token positions of a trainer's run; with `memory` its memory instead."""

    memory: bool = False
    seconds: float = math.nan
    cpu_seconds: float = math.nan
    seconds_per_step: float = math.nan
    extra_mib: float = math.nan
    bf16: bool = False
    tokens: int = 0
    texts: int = 0
    longest: int = 0
    positions: int = 0
    products_seconds: float = math.nan
    """Of the bare matrix products of the same run, forward and backward."""
    around_seconds: float = math.nan
    seen: list[torch.Tensor] = field(default_factory=list)
    """Tokens, texts and longest text of each pass, on the device: reading them would hold it up."""

    def __call__(self, trainer: Any, work: Callable[[], Any]) -> Any:
        """Measure the work of a trainer."""
        self.bf16 = trainer.args.bf16
        device = trainer.args.device.type
        hook = trainer.model[0].register_forward_pre_hook(self._count)  # the first part gets the tokenised texts
        clock = StepClock()
        trainer.add_callback(clock)
        try:
            if self.memory:
                self.extra_mib = peak_beyond_gradients(work, list(trainer.model.parameters()))
                return None
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            with linear_shapes(trainer.model, with_gradient=True) as shapes:
                self.seconds, self.cpu_seconds, result = timed(lambda: (work(), synchronise())[0])
            if device == "cuda":
                self.extra_mib = torch.cuda.max_memory_allocated() / 2**20
            self.seconds_per_step = clock.seconds_per_step()
            counted = torch.stack(self.seen).cpu()
            self.tokens, self.texts = (int(total) for total in counted[:, :2].sum(dim=0))
            self.longest = int(counted[:, 2].max())
            precision = "bfloat16" if self.bf16 else "float32"

            def products() -> None:
                bare_products(shapes, precision, backward=True, device=device)
                synchronise()

            if device == "cuda":
                products()  # the first products of a shape choose their kernel
            self.products_seconds = timed(products).seconds
            return result
        finally:
            hook.remove()

    def _count(self, module: torch.nn.Module, inputs: tuple[dict[str, Any], ...]) -> None:
        if torch.is_grad_enabled():  # not in the first of the two passes of a cached loss
            features = inputs[0]
            mask, borders = features.get("attention_mask"), features.get("cu_seq_lens_q")  # borders: without padding
            lengths = mask.sum(dim=1) if mask is not None else borders.diff()
            texts = lengths.new_full((), len(lengths))
            self.seen.append(torch.stack([lengths.sum(), texts, lengths.max()]).detach())
            self.positions += features["input_ids"].numel()


def synchronise() -> None:
    """Wait until a GPU has done all its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def measured(meter: Meter, bixse: bool) -> Iterator[None]:
    """Measure every trainer's `train` within this block; it writes no checkpoint."""
    trainer = GradedTrainer if bixse else Trainer  # ours tokenises before it calls the library's
    original = trainer.train

    def measured_train(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        return meter(self, lambda: original(self, *args, **kwargs))

    with patch.object(trainer, "train", measured_train), patch.object(Trainer, "_save_checkpoint", lambda *_: None):
        yield


def drawn_groups(case: Case, seed: int) -> list[QueryGroup]:
    """Draw queries of the train split with K documents each, the best one first."""
    groups = Pairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE).groups()
    usable = [group for group in groups if len(group.documents) >= case.documents]
    if len(usable) < case.queries:
        raise SystemExit(
            f"--queries: got {case.queries}; expected at most {len(usable)} with {case.documents} documents"
        )
    generator, drawn = np.random.default_rng(seed), []
    for number in generator.permutation(len(usable))[: case.queries]:
        group = usable[number]
        best = int(np.argmax(group.relevance))
        others = generator.permutation([i for i in range(len(group.documents)) if i != best])
        chosen = [best, *map(int, others[: case.documents - 1])]
        parts = {name: [getattr(group, name)[i] for i in chosen] for name in ("document_ids", "documents", "relevance")}
        drawn.append(replace(group, **parts))
    return drawn


def train_bixse(settings: dict[str, Any], groups: Sequence[QueryGroup], case: Case, seed: int, folder: Path) -> None:
    """Train as `bixse train` does."""
    rows = [
        {"query": group.query, "document": document, "relevance": relevance}
        for group in groups
        for document, relevance in zip(group.documents, group.relevance, strict=True)
    ]
    save_graded_pairs(Pairs.from_rows(rows), folder / "train.jsonl")
    if case.model != "demo":
        settings = {**settings, "model": case.model, "bidirectional": True, "pooling": "mean"}
    config = TrainConfig(
        pairs=folder / "train.jsonl", max_length=case.max_length, optimizer=case.optimizer, seed=seed, **settings
    )
    train_into(config, folder / "run", progress=False)


def train_stock(method: str, groups: Sequence[QueryGroup], case: Case, seed: int, folder: Path) -> None:
    """Train as the documentation of sentence-transformers shows."""
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
    model = SentenceTransformer(str(demo_model_path()), device=default_device())
    model.max_seq_length = case.max_length
    tuned = {"bf16": resolve_precision() == "bfloat16", "max_grad_norm": 0.0} if method != STOCK else {}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=case.epochs,
        per_device_train_batch_size=case.batch_size,
        learning_rate=case.optimizer.scaled_learning_rate(),
        adam_beta2=case.optimizer.adam_beta2,
        warmup_steps=case.optimizer.warmup_ratio,
        seed=seed,
        disable_tqdm=True,
        use_cpu=default_device() == "cpu",
        dataloader_num_workers=WORKERS.get(method, 0),
        **tuned,
    )
    loss: torch.nn.Module = MultipleNegativesRankingLoss(model)
    if method == CACHED:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=CACHED_TEXTS)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(str(folder / "model"))


def run(method: str, groups: Sequence[QueryGroup], case: Case, seed: int, memory: bool = False) -> Meter:
    """Measure one training run."""
    meter = Meter(memory)
    with tempfile.TemporaryDirectory() as name, measured(meter, method in BIXSE), quiet_loading():
        start = time.perf_counter()
        if method in BIXSE:
            train_bixse(BIXSE[method], groups, case, seed, Path(name))
        else:
            train_stock(method, groups, case, seed, Path(name))
        meter.around_seconds = time.perf_counter() - start - meter.seconds - meter.products_seconds
    gc.collect()  # a trainer and its callbacks refer to each other
    return meter


def memory_of(method: str, case: Case) -> float:
    """Measure the peak resident memory in MiB of the first round in this (fresh) process."""
    return run(method, drawn_groups(case, 0), case, 0, memory=True).extra_mib


def measure(case: Case, methods: Sequence[str], rounds: int, warm_up: bool) -> dict[str, list[Timed]]:
    """Run all methods in each round; the order turns round in every other one. The results are meters."""
    on_cpu = default_device() == "cpu"  # a GPU is warm after a batch of the size that is measured
    small = replace(case, batch_size=min(case.batch_size, WARM_UP_QUERIES) if on_cpu else case.batch_size, epochs=1)
    first = drawn_groups(case, 0)[: small.batch_size]
    for method in methods if warm_up else ():
        run(method, first, small, 0)
    done: dict[str, list[Timed]] = {method: [] for method in methods}
    for seed in range(rounds):
        groups = drawn_groups(case, seed)
        for method in methods if seed % 2 == 0 else methods[::-1]:
            meter = run(method, groups, case, seed)
            done[method].append(Timed(meter.seconds, meter.cpu_seconds, meter))
    return done


def rows_of(case: Case, methods: Sequence[str], rounds: int, quick: bool) -> Iterator[dict[str, object]]:
    """Yield one table row per method."""
    runs = measure(case, methods, rounds, warm_up=not quick)
    on_cpu, stock = default_device() == "cpu", runs.get(STOCK)
    tuned = min((runs[name] for name in (TUNED, *WORKERS, CACHED) if name in runs), key=middle, default=None)
    queries = case.queries * case.epochs
    for method, timed_runs in runs.items():
        meters = [run.result for run in timed_runs]
        took = middle(timed_runs, digits=9)
        nothing = dict.fromkeys(("ratio_to_stock", "ratio_lowest", "ratio_highest"), math.nan)
        yield {
            "documents": case.documents,
            "batch_size": case.batch_size,
            "max_length": case.max_length,
            "method": method if case.model == "demo" else f"{method}, {Path(case.model).name}",
            "queries": queries,
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "card": "" if on_cpu else torch.cuda.get_device_name(),
            "bf16": meters[0].bf16,
            "bf16_is_fast": bf16_is_fast(default_device()),
            "seconds": round(took, 3),
            "cpu_seconds": middle(timed_runs, "cpu_seconds", 3),
            "seconds_per_step": round(statistics.median(meter.seconds_per_step for meter in meters), 4),
            "queries_per_second": round(queries / took, 1),
            "pairs_per_second": round(queries * case.documents / took, 2),
            "texts_per_second": round(queries * (case.documents + 1) / took, 2),
            "mean_tokens": round(sum(meter.tokens for meter in meters) / sum(meter.texts for meter in meters), 1),
            "longest": max(meter.longest for meter in meters),
            "tokens_per_second": round(statistics.median(meter.tokens / meter.seconds for meter in meters)),
            "padding": round(1 - sum(meter.tokens for meter in meters) / sum(meter.positions for meter in meters), 3),
            **(nothing if stock is None else ratios(stock, timed_runs, "ratio_to_stock")),
            "cpu_ratio_to_stock": math.nan if stock is None else ratio(stock, timed_runs, "cpu_seconds"),
            "ratio_to_tuned": math.nan if tuned is None else ratio(tuned, timed_runs),
            "of_products": round(statistics.median(meter.products_seconds / meter.seconds for meter in meters), 3),
            "around_seconds": round(statistics.median(meter.around_seconds for meter in meters), 2),
            "extra_mib": round(meters[0].extra_mib)
            if not on_cpu
            else math.nan
            if quick
            else memory_alone(memory_of, method, case),
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    given = options(
        __doc__,
        quick={"documents": [4], "max_lengths": [16], "rounds": 1, "batch_size": [4], "queries": 4, "steps": 1},
        out=OUT,
        device=Option(default_device(), "what computes", ["cpu", "cuda"]),
        model=Option("demo", "a folder that bixse alone trains, instead of all methods the demo model"),
        documents=Option([int], "K: documents of a query"),
        max_lengths=Option([int], "tokens of a text that are read"),
        batch_size=Option([int], "queries of a batch"),
        queries=Option(int, "queries of an epoch"),
        steps=Option(int, "the fewest steps of a run: it makes as many passes over the queries"),
        rounds=Option(int, "the median counts"),
        methods=Option([str], "some of the methods"),
    )
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ[CACHE_VARIABLE] = NO_CACHE  # every run tokenises its texts
    for name, value in DEFAULTS[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if min(given.max_lengths) < 4 or max(given.max_lengths) > 512:
        raise SystemExit(f"--max-lengths: got {given.max_lengths}; expected 4 to 512")
    if given.queries < max(given.batch_size):
        raise SystemExit(f"--queries: got {given.queries}; expected at least the batch size, {max(given.batch_size)}")
    methods = given.methods or (METHODS[given.device] if given.model == "demo" else ["bixse"])
    cases = [
        Case(documents, length, size, given.queries, -(-given.steps // -(-given.queries // size)), given.model)
        for documents in given.documents
        for length in given.max_lengths
        for size in given.batch_size
    ]
    show((row for case in cases for row in rows_of(case, methods, given.rounds, given.quick)), given.out)


if __name__ == "__main__":
    main()
