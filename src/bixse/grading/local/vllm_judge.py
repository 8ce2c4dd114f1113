"""A judge that vLLM runs in this process: the probabilities of the option tokens, asked for by their ids."""

from __future__ import annotations

import math
import time
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from bixse.errors import InputError
from bixse.grading.judge import Answer, Usage
from bixse.grading.local.local_model import LocalModel, unusable
from bixse.grading.local.option_judge import MODE, OptionJudge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from bixse.grading.judge import Dtype, Question
    from bixse.grading.rubrics import Rubric

WINDOW = 1024
"""Questions given to vLLM together, which batches them by itself; what is answered is kept after each window."""
MOST_IDS = 128
"""Token ids whose probabilities vLLM gives for one request."""


class VllmJudge(OptionJudge):
    """As `bixse.grading.local.local_judge.LocalJudge`, computed by vLLM on the graphics cards.

    Prompts and option tokens are those of the local judge. vLLM gives log-probabilities over the whole vocabulary
    (`logprobs_mode="raw_logprobs"`) of exactly the option tokens (`logprob_token_ids`; tested against the signatures of
    vLLM 0.33.0) and writes one token. Weights are loaded for the first question, over all graphics cards that the
    process sees.

    Args:
        name_or_path: folder of a model, or its name on the hub.
        rubric: what is asked, and the options.
        dtype: of the weights; auto is bfloat16.
        revision: branch, tag or commit of a hub name.
        min_mass: the options' probability below which an answer has no grade.

    Raises:
        InputError: vLLM is not installed, a GGUF file, or a label that is no single token.
        ModelError: no such model; with the first question also one that vLLM cannot load.
    """

    kind = "vllm"

    def __init__(
        self,
        name_or_path: str | Path,
        rubric: Rubric,
        dtype: Dtype = "auto",
        revision: str | None = None,
        min_mass: float = 0.01,
    ) -> None:
        if str(name_or_path).endswith(".gguf"):
            raise InputError(
                f"judge {str(name_or_path)!r}: got a GGUF file; expected a model folder or hub name for vLLM; fix: "
                "name it without vllm:, which reads GGUF files by transformers"
            )
        super().__init__(
            LocalModel(name_or_path, "cpu", "bfloat16" if dtype == "auto" else dtype, revision), rubric, min_mass
        )
        self._revision = revision
        self._ids = sorted({token for ids in self._option_ids for token in ids})
        if len(self._ids) > MOST_IDS:
            raise InputError(
                f"rubric: got {len(self._ids)} tokens of options; expected at most {MOST_IDS}; fix: fewer labels"
            )

    @cached_property
    def _vllm(self) -> Any:
        try:
            return import_module("vllm")
        except ImportError as error:
            raise InputError(
                f"judge vllm:{self.name}: got no vLLM ({error}); expected it; fix: pip install vllm on every machine "
                "that grades, or name the judge without vllm:"
            ) from error

    @cached_property
    def _engine(self) -> Any:
        try:
            return self._vllm.LLM(
                self._loaded.source,
                dtype=self._loaded.dtype,
                revision=self._revision,
                tensor_parallel_size=max(1, torch.cuda.device_count()),
                max_logprobs=max(20, len(self._ids)),
                logprobs_mode="raw_logprobs",
                enable_prefix_caching=True,
            )
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            raise unusable(
                self._loaded.given, error, "a model that vLLM loads on the graphics cards there are"
            ) from error

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Window by window."""
        source = iter(questions)
        while taken := list(islice(source, WINDOW)):
            started, prompts = time.perf_counter(), self._prompts(taken)
            most = int(self._engine.model_config.max_model_len) - 1  # one token is written
            fitting = [place for place, ids in enumerate(prompts) if 0 < len(ids) <= most]
            for place in sorted(set(range(len(taken))) - set(fitting)):
                yield taken[place], self._without_grade(len(prompts[place]), f"the context has {most + 1} tokens")
            given = [self._vllm.TokensPrompt(prompt_token_ids=prompts[place]) for place in fitting]
            found = self._engine.generate(given, self._sampling, use_tqdm=False) if given else []
            seconds = (time.perf_counter() - started) / len(taken)
            for place, result in zip(fitting, found, strict=True):
                yield taken[place], self._read(result, len(prompts[place]), seconds)

    def close(self) -> None:
        vars(self).pop("_engine", None)

    @cached_property
    def _sampling(self) -> Any:
        ids = self._ids
        return self._vllm.SamplingParams(temperature=0.0, max_tokens=1, logprobs=len(ids), logprob_token_ids=ids)

    def _read(self, result: Any, length: int, seconds: float) -> Answer:
        """The answer that a `vllm.RequestOutput` stands for."""
        (written,) = result.outputs
        given = written.logprobs[0] if written.logprobs else {}
        if missing := [token for token in self._ids if token not in given]:
            detail = f"vLLM gave no probability of the tokens {missing[:3]}"
            usage = Usage(prompt=length, completion=1)
            return Answer("no-probabilities", MODE, usage=usage, seconds=seconds, judge=self.name, detail=detail)
        options = tuple(math.fsum(math.exp(given[token].logprob) for token in ids) for ids in self._option_ids)
        return self._answer(options, written.text, length, seconds)
