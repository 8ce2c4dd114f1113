"""Whether an exported graph embeds, ranks and runs as the model in torch does."""

from __future__ import annotations

import time
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch

from bixse.encoders.encode import by_length, encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import paired_bootstrap
from bixse.evaluation.systems import EncoderSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.tasks import Task
    from bixse.progress import ProgressBars
    from bixse.relevance import Kind
    from bixse.results import Difference

TEXTS = 128
"""Queries, and documents, that are embedded by both."""
MOST_READ = 20_000
"""Texts of a file among which these are chosen."""
ROUNDS = 5
QUERIES_PER_ROUND = 8


def of_all_lengths(texts: Iterable[str]) -> list[str]:
    """Return distinct texts from the shortest to the longest one, mixed, so that batches have padding."""
    distinct = list(dict.fromkeys(text for text in islice(texts, MOST_READ) if text.strip()))
    evenly = np.unique(np.linspace(0, len(distinct) - 1, TEXTS).astype(int))
    chosen = by_length(distinct)[evenly]
    return [distinct[row] for row in np.random.default_rng(0).permutation(chosen)]


def disagreement(
    model: RelevanceModel, exported: RelevanceModel, texts: Mapping[Kind, Sequence[str]]
) -> dict[str, float]:
    """Return the largest 1 - cosine between the graph's and torch's embeddings, per batch size and at full length.

    The graph's embedding counts as it is: one that is not of length 1 differs too.
    """
    full = "a " * (model.max_seq_length or 512)
    return {
        "batches of 1": _largest(model, exported, texts, 1),
        "batches of 32": _largest(model, exported, texts, 32),
        "full length": _largest(model, exported, {"document": [full, full]}, 2),
    }


def _largest(model: RelevanceModel, exported: RelevanceModel, texts: Mapping[Kind, Sequence[str]], batch: int) -> float:
    differences = []
    for kind, some in texts.items():
        prompt = prompt_for(exported, kind)
        batches = [list(some[start : start + batch]) for start in range(0, len(some), batch)]
        with torch.no_grad():
            parts = [exported(exported.preprocess(part, prompt=prompt))["sentence_embedding"] for part in batches]
        cosines = (torch.cat(parts).numpy() * encode_texts(model, some, kind, "float32")).sum(axis=1)
        differences.append(float(np.abs(1 - cosines).max()))
    return max(differences, key=lambda value: (value != value, value))  # NaN is the largest


def speed(
    model: RelevanceModel, exported: RelevanceModel, texts: Mapping[Kind, Sequence[str]]
) -> dict[str, tuple[float, float]]:
    """Return documents per second and milliseconds per query of torch and of the graph, measured in turn."""
    queries, documents = texts["query"][:QUERIES_PER_ROUND], texts["document"]

    def ask(encoder: RelevanceModel) -> None:
        for query in queries:
            encode_texts(encoder, [query], "query", "float32")

    many = _seconds(lambda encoder: encode_texts(encoder, documents, "document", "float32"), (model, exported))
    single = _seconds(ask, (model, exported))
    return {
        "documents per second": (len(documents) / many[0], len(documents) / many[1]),
        "milliseconds per query": (1000 * single[0] / len(queries), 1000 * single[1] / len(queries)),
    }


def _seconds(work: Callable[[RelevanceModel], object], encoders: Sequence[RelevanceModel]) -> list[float]:
    """Return the median seconds of each encoder. They take turns, so that other work on the machine slows both."""
    seconds: list[list[float]] = [[] for _ in encoders]
    for _ in range(ROUNDS + 1):
        for encoder, times in zip(encoders, seconds, strict=True):
            started = time.perf_counter()
            work(encoder)
            times.append(time.perf_counter() - started)
    return [median(times[1:]) for times in seconds]  # the first round reserves memory


def ranking_difference(
    model: RelevanceModel, exported: RelevanceModel, task: Task, progress: ProgressBars | None = None
) -> Difference:
    """Return nDCG@10 of the graph minus that of torch, paired by query."""
    graph, reference = (
        evaluate(EncoderSystem(encoder, cache="none"), task, progress=progress).per_query[PRIMARY_METRIC]
        for encoder in (exported, model)
    )
    return paired_bootstrap(graph, reference)
