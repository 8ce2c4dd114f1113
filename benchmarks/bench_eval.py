"""Time and memory of searching and scoring, compared with the evaluators of sentence-transformers and mteb.

    python benchmarks/bench_eval.py [--device cpu] [--passages 131072] [--queries 256] [--dim 384] [--rounds 6]
        [--out FILE] [--quick]

One row per method, all on the same random unit embeddings, so that nothing is encoded:

- `product, top 100`: the bare matrix product of all pairs and `torch.topk(100)`: what no exact search avoids;
- `bixse, search`: `bixse.search.exact.exact_search`;
- `bixse`: that search, the run by names, and nDCG@10, MAP@100, MRR@10 and recall@100 of every query;
- `sentence-transformers`: `InformationRetrievalEvaluator` with its default metrics, on given embeddings;
- `mteb, top 100` and `mteb`: mteb's own search and evaluation of a task, 100 documents deep and as it stands (1,000);
  both read the texts through mteb's data loader.

The ratio is that of a method's time to that of the bare product, `cpu_ratio` that of processor time. All methods must
reach the same nDCG@10. Memory is the peak of resident memory beyond embeddings, texts and judgements, in a process of
its own for each method.

On a GPU (the default where there is one) 2,000,000 passages are searched for 1,000 queries, by four methods alone. All
are exact in float32, without TF32, and end with the result in host memory:

- `product, top 100`: the product and `topk` over the best of three sizes of chunks, passages on the GPU;
- `product`: the product of the same chunks without `topk`;
- `bixse, search`: `exact_search`, passages on the GPU;
- `bixse, search from host memory`: the same of a NumPy array, which is copied to the GPU in each run.

`extra_mib` is then the peak of what PyTorch allocates beyond the passages.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch

from bixse.encoders.loading.precision import default_device, float32_products
from bixse.evaluation.metrics import METRICS, evaluate_run, mean
from bixse.search.exact import exact_search, to_run
from measuring import (
    OUT,
    Option,
    in_turn,
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
    import argparse
    from collections.abc import Callable, Iterator

datasets.disable_progress_bars()  # mteb maps over the texts, also in the processes that measure memory
DEPTH = 100
"""Documents of a query that are retrieved."""
RELEVANT = 4
"""Relevant passages of each query, by binary grades: all that sentence-transformers can use."""
BARE = "product, top 100"


class Problem:
    """Passages at random, and queries each near the mean of its relevant passages."""

    def __init__(self, passages: int, queries: int, dim: int) -> None:
        generator = np.random.default_rng(0)
        self.documents = unit(generator.standard_normal((passages, dim), dtype=np.float32))
        chosen = generator.choice(passages, (queries, min(RELEVANT, passages)), replace=False)
        noise = generator.standard_normal((queries, dim), dtype=np.float32)
        self.query_embeddings = unit(unit(self.documents[chosen].mean(axis=1)) + 1.2 * unit(noise))
        self.document_ids = [f"d{number}" for number in range(passages)]
        self.query_ids = [f"q{number}" for number in range(queries)]
        self.qrels = {
            query: {self.document_ids[row]: 1 for row in rows}
            for query, rows in zip(self.query_ids, chosen.tolist(), strict=True)
        }

    @cached_property
    def mteb_tasks(self) -> dict[int, Any]:
        """Return depth -> a task of mteb with its data loaded."""
        from mteb.abstasks.retrieval import AbsTaskRetrieval
        from mteb.abstasks.task_metadata import TaskMetadata

        metadata = TaskMetadata(
            name="Synthetic", description="random", dataset={"path": "none", "revision": "1"}, type="Retrieval",
            category="t2t", eval_langs=["eng-Latn"], main_score="ndcg_at_10",
        )  # fmt: skip
        corpus = datasets.Dataset.from_dict({"id": self.document_ids, "text": self.document_ids})
        queries = datasets.Dataset.from_dict({"id": self.query_ids, "text": self.query_ids})
        tasks = {}
        for depth, cuts in ((100, (1, 10, 100)), (1000, AbsTaskRetrieval.k_values)):
            task = type("Synthetic", (AbsTaskRetrieval,), {"metadata": metadata, "k_values": cuts})()
            data = {"corpus": corpus, "queries": queries, "relevant_docs": self.qrels, "top_ranked": None}
            task.dataset, task.data_loaded = {"default": {"test": data}}, True
            tasks[depth] = task
        return tasks


class Stub:
    """A model whose embeddings are there already, for both libraries."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def encode_query(self, *_: object, **__: object) -> torch.Tensor:
        """Return what sentence-transformers' evaluator asks for."""
        return torch.from_numpy(self.problem.query_embeddings)

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: object) -> np.ndarray:
        """Return what mteb asks for: the embeddings of the texts of a loader, which are ids."""
        rows = [int(text[1:]) for batch in inputs for text in batch["text"]]
        whole = self.problem.query_embeddings if prompt_type.value == "query" else self.problem.documents
        return whole[rows[0] : rows[-1] + 1]  # in order

    def similarity(self, queries: Any, documents: Any) -> torch.Tensor:
        """Return inner products."""
        return torch.as_tensor(queries) @ torch.as_tensor(documents).T

    similarity_pairwise = similarity

    @cached_property
    def mteb_model_meta(self) -> Any:
        """Return a name for mteb."""
        from mteb.models import ModelMeta

        return ModelMeta.create_empty(overwrites={"name": "none/given", "revision": "1"})


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of length 1."""
    scaled: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def bare(problem: Problem) -> None:
    """Compute the product and the best of it, nothing named or scored."""
    queries, documents = torch.from_numpy(problem.query_embeddings), torch.from_numpy(problem.documents)
    (queries @ documents.T).topk(min(DEPTH, len(documents)), dim=1)


def search_alone(problem: Problem) -> None:
    """Search as bixse does."""
    exact_search(problem.query_embeddings, problem.documents, DEPTH, device="cpu")


def bixse(problem: Problem) -> float:
    """Search and score as bixse does; return nDCG@10."""
    scores, indices = exact_search(problem.query_embeddings, problem.documents, DEPTH, device="cpu")
    run = to_run(problem.query_ids, problem.document_ids, scores, indices)
    return mean(evaluate_run(problem.qrels, run, METRICS))["ndcg@10"]


def sentence_transformers(problem: Problem) -> float:
    """Run their evaluator; return nDCG@10."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.util import dot_score

    evaluator = InformationRetrievalEvaluator(
        dict(zip(problem.query_ids, problem.query_ids, strict=True)),
        dict(zip(problem.document_ids, problem.document_ids, strict=True)),
        {query: set(judged) for query, judged in problem.qrels.items()},
        score_functions={"dot": dot_score},
    )
    metrics = evaluator.compute_all_metrics(Stub(problem), corpus_embeddings=torch.from_numpy(problem.documents))
    return float(metrics["dot"]["ndcg@k"][10])  # type: ignore[index]


def mteb(problem: Problem, depth: int = 1000) -> float:
    """Run their search and evaluation; return nDCG@10."""
    scores = problem.mteb_tasks[depth].evaluate(
        Stub(problem), "test", encode_kwargs={"show_progress_bar": False, "batch_size": 4096}
    )
    return float(scores["default"]["ndcg_at_10"])


METHODS: dict[str, Callable[[Problem], float | None]] = {
    BARE: bare,
    "bixse, search": search_alone,
    "bixse": bixse,
    "sentence-transformers": sentence_transformers,
    "mteb, top 100": lambda problem: mteb(problem, 100),
    "mteb": mteb,
}


def common_ndcg(problem: Problem) -> float:
    """Return the nDCG@10 that every method reaches: a first run of each, which is not timed."""
    figures = {name: value for name, method in METHODS.items() if (value := method(problem)) is not None}
    if max(figures.values()) - min(figures.values()) > 1e-4:
        raise SystemExit(f"the methods differ in nDCG@10: {figures}")
    return figures["bixse"]


def memory_of(method: str, passages: int, queries: int, dim: int) -> float:
    """Measure the peak resident memory in MiB of one run, in this (fresh) process, beyond the data."""
    METHODS[method](Problem(512, 8, dim))  # load libraries and kernels
    problem = Problem(passages, queries, dim)
    if method.startswith("mteb"):
        _ = problem.mteb_tasks
    return peak_beyond_gradients(lambda: METHODS[method](problem))


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one table row per method."""
    sizes = (given.passages, given.queries, given.dim)
    problem = Problem(*sizes)
    ndcg = common_ndcg(problem)
    runs = in_turn({name: partial(method, problem) for name, method in METHODS.items()}, given.rounds)
    for name in METHODS:
        measured = name == BARE or not given.quick
        yield {
            **dict(zip(("passages", "queries", "dim"), sizes, strict=True)),
            "threads": torch.get_num_threads(),
            "rounds": given.rounds,
            "method": name,
            "seconds": middle(runs[name]),
            "cpu_seconds": middle(runs[name], "cpu_seconds"),
            **ratios(runs[name], runs[BARE]),
            "cpu_ratio": ratio(runs[name], runs[BARE], "cpu_seconds"),
            "extra_mib": memory_alone(memory_of, name, *sizes) if measured else math.nan,
            "ndcg_at_10": round(ndcg, 4),
        }


def gpu_rows(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one table row per method on a GPU."""
    device = given.device
    draw = torch.Generator(device).manual_seed(0)
    documents, queries = (
        torch.nn.functional.normalize(torch.randn(rows, given.dim, generator=draw, device=device))
        for rows in (given.passages, given.queries)
    )
    in_host_memory = documents.cpu().numpy()

    def product(chunk: int, top: int) -> Any:
        parts = []
        for start in range(0, len(documents), chunk):
            scores = queries @ documents[start : start + chunk].T
            if top:
                values, rows = scores.topk(min(top, scores.shape[1]), dim=1)
                parts.append((values, rows + start))
        if not parts:
            return waited(device)
        values, rows = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        best = values.topk(top, dim=1)
        return best.values.cpu().numpy(), rows.gather(1, best.indices).cpu().numpy()

    with float32_products():
        trials = {chunk: timed(partial(product, chunk, DEPTH)) for chunk in 2 * (131_072, 262_144, 524_288)}
        chunk = min(trials, key=lambda size: trials[size].seconds)
        methods: dict[str, Callable[[], Any]] = {
            BARE: partial(product, chunk, DEPTH),
            "product": partial(product, chunk, 0),
            "bixse, search": partial(exact_search, queries, documents, DEPTH, device=device),
            "bixse, search from host memory": partial(exact_search, queries, in_host_memory, DEPTH, device=device),
        }
        peaks = {name: gpu_peak(method) for name, method in methods.items()}
        runs = in_turn(methods, given.rounds)
    expected = runs[BARE][0].result[0]
    for name, timed_runs in runs.items():
        result = timed_runs[0].result
        difference = 0.0 if result is None else float(np.abs(result[0] - expected).max())
        if difference > 1e-5:
            raise SystemExit(f"{name}: scores differ by {difference} from those of {BARE}")
        yield {
            **{size: getattr(given, size) for size in ("passages", "queries", "dim")},
            "card": torch.cuda.get_device_name() if device == "cuda" else device,
            "chunk": chunk,
            "rounds": given.rounds,
            "method": name,
            "seconds": middle(timed_runs, digits=7),
            **ratios(timed_runs, runs[BARE]),
            "teraflops": round(2e-12 * given.passages * given.queries * given.dim / middle(timed_runs, digits=9), 1),
            "extra_mib": peaks[name],
            "difference": f"{difference:.1e}",
        }


def waited(device: str) -> None:
    """Wait until a GPU has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def gpu_peak(work: Callable[[], Any]) -> float:
    """Return the peak in MiB of what PyTorch allocates in one call, beyond what there is; NaN without a GPU."""
    if not torch.cuda.is_available():
        return math.nan
    level = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    return round((torch.cuda.max_memory_allocated() - level) / 2**20, 1)


def main() -> None:
    """Measure, print the table, write the CSV."""
    given = options(
        __doc__,
        quick={"passages": 4096, "queries": 32, "dim": 64, "rounds": 2},
        out=OUT,
        device=Option(default_device(), "what computes", ["cpu", "cuda"]),
        passages=Option(int, "131,072 on a CPU, 2,000,000 on a GPU"),
        queries=Option(int, "256 on a CPU, 1,000 on a GPU"),
        dim=384,
        rounds=Option(6, "the median counts"),
    )
    on_gpu = given.device == "cuda"
    given.passages = given.passages or (2_000_000 if on_gpu else 131_072)
    given.queries = given.queries or (1000 if on_gpu else 256)
    if given.queries * RELEVANT > given.passages:
        raise SystemExit(f"got {given.passages} passages; expected at least {RELEVANT} for each query")
    show(gpu_rows(given) if on_gpu else rows_of(given), given.out)


if __name__ == "__main__":
    main()
