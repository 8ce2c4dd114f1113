"""A plain reranker as a judge: the score of a cross-encoder through a map that is stated."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sentence_transformers import CrossEncoder
from torch import nn

from bixse.data.sources.score_scale import map_scores, parse_score_map
from bixse.encoders.loading.build import quiet_loading
from bixse.errors import InputError, ModelError
from bixse.grading.judge import Answer, Usage
from bixse.grading.local.local_model import content_hash, judge_device, longest_input, unusable, weights_dtype
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from bixse.grading.judge import Dtype, Question

MODE: Final = "score"
WINDOW = 512
_ALIKE = 1e-6
"""Scores that differ less, relative to their size, are the same."""
_FEW = 16
"""Texts from which equal scores are no chance."""


class CrossEncoderJudge:
    """Grades by the raw score of a sentence-transformers CrossEncoder, mapped to relevance once (mode "score").

    The activation that a model brings along is set aside, since it differs between models and a second sigmoid on top
    of it squeezes all relevance into 0.5 to 0.73 without a word. The rubric is not read; grades are relevance, 0 to 1.
    A pair that is longer than the model reads is answered "too-long", never cut.

    `score_map` goes from raw score to relevance: "logit" (a sigmoid); "prob" for a model whose raw scores lie in [0,
    1]; "platt:SLOPE,INTERCEPT", fitted on pairs with human labels. Other arguments as for `LocalJudge`.

    Raises:
        ModelError: no such model, or one without a trained head.
        InputError: a model with several scores per pair, one that gives all pairs the same, or no such map.

    Example:
        Grade pairs with a reranker::

            answers = CrossEncoderJudge("cross-encoder/ms-marco-MiniLM-L6-v2").answers(questions)
    """

    at_once = 1

    def __init__(
        self,
        model: str | Path,
        score_map: str = "logit",
        device: str | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        trust_remote_code: bool = False,
        dtype: Dtype = "auto",
    ) -> None:
        self._map = parse_score_map("logit" if score_map == "sigmoid" else score_map)
        if self._map.kind == "binary":
            fix = "use logit, prob, percent or platt:SLOPE,INTERCEPT"
            raise InputError(f"score map: got 'binary'; expected a map of scores; fix: {fix}")
        place = judge_device(device)
        number = weights_dtype(dtype, place)
        self._encoder = _load(str(model), place, number, revision, trust_remote_code)
        self._tokenizer = self._encoder.tokenizer
        self._longest = longest_input(self._encoder.config, getattr(self._encoder, "max_length", None))
        self.batch_size = batch_size
        local = Path(model).is_dir()
        self.name = Path(model).name if local else str(model)
        self.scale = GradeScale(0.0, 1.0)
        commit = getattr(self._encoder.config, "_commit_hash", None) or revision or "main"
        self.identity: Mapping[str, Any] = {
            "kind": "cross-encoder",
            "model": self.name,
            "revision": content_hash(Path(model)) if local else str(commit),
            "mode": MODE,
            "dtype": str(number).removeprefix("torch."),
            "map": str(self._map),
        }
        self.warnings: list[str] = []
        """Grows while questions are answered."""
        self._check_contrast(
            self._scores([("copy a file", "shutil.copy copies a file."), ("copy a file", "Rain falls."), ("a", "b")]),
            "three different pairs",
        )

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        source = iter(questions)
        while taken := list(islice(source, WINDOW)):
            started = time.perf_counter()
            lengths = self.count_tokens(taken)
            fits = [self._longest is None or length <= self._longest for length in lengths]
            pairs = [(q.query, q.document) for q, fit in zip(taken, fits, strict=True) if fit]
            scores = self._scores(pairs)
            if len({document for _, document in pairs}) >= _FEW:
                self._check_window(scores)
            seconds = (time.perf_counter() - started) / len(taken)
            left = iter(scores.tolist())
            for question, length, fit in zip(taken, lengths, fits, strict=True):
                yield question, self._answer(next(left) if fit else None, length, seconds)

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        if not questions:
            return []
        pairs = ([q.query for q in questions], [q.document for q in questions])
        return [len(ids) for ids in self._tokenizer(*pairs, truncation=False, verbose=False)["input_ids"]]

    def close(self) -> None:
        self._encoder = None

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Raw scores (N,), without the activation that the model brings along."""
        if not pairs:
            return np.zeros(0)
        found = self._encoder.predict(
            list(pairs), batch_size=self.batch_size, show_progress_bar=False, activation_fn=nn.Identity()
        )
        return np.asarray(found, dtype=np.float64)

    def _answer(self, score: float | None, length: int, seconds: float) -> Answer:
        common: dict[str, Any] = {"usage": Usage(prompt=length), "seconds": seconds, "judge": self.name}
        if score is None:
            detail = f"a pair of {length} tokens: the model reads {self._longest}"
            return Answer("too-long", MODE, detail=detail, **common)
        if not np.isfinite(score):
            return Answer("failed", MODE, detail=f"the model gave the score {score}", **common)
        lowest, highest = self._map.range
        if not lowest <= score <= highest:
            detail = f"score {score:.4g}: the map {self._map} takes {lowest:g} to {highest:g}"
            return Answer("off-scale", MODE, text=f"{score:.6g}", detail=detail, **common)
        z = float(map_scores(np.array([score]), self._map)[0])
        return Answer("graded", MODE, (1.0 - z, z), z, z, z, text=f"{score:.6g}", **common)

    def _check_contrast(self, scores: NDArray[np.float64], pairs: str) -> None:
        if np.ptp(scores) <= _ALIKE * max(1e-6, float(np.abs(scores).max())):
            raise InputError(
                f"cross-encoder {self.name!r}: got the score {scores[0]:.6g} for {pairs}; expected scores that differ; "
                "fix: choose another model (this one is not trained or not loaded whole), or look at the texts"
            )

    def _check_window(self, scores: NDArray[np.float64]) -> None:
        """Warn of scores that look like probabilities already."""
        if self._map.kind == "logit" and not self.warnings and scores.min() >= 0 and scores.max() <= 1:
            self.warnings.append(
                f"cross-encoder {self.name!r}: all raw scores lie in [0, 1] and pass a sigmoid; where they are "
                "probabilities already, use the map 'prob'"
            )
        self._check_contrast(scores, f"all of {len(scores)} pairs")


def _load(name: str, device: torch.device, dtype: torch.dtype, revision: str | None, trust_remote_code: bool) -> Any:
    try:
        with quiet_loading():
            encoder = CrossEncoder(
                name,
                device=str(device),
                revision=revision,
                trust_remote_code=trust_remote_code,
                model_kwargs={"dtype": dtype},
            )
    except Exception as error:
        raise unusable(name, error, "a CrossEncoder of sentence-transformers") from error
    kinds = encoder.config.architectures or []
    trained = any(kind.endswith(("ForSequenceClassification", "ForCausalLM")) for kind in kinds)
    if len(encoder) == 1 and not trained:  # a head among further modules is stored with them
        raise ModelError(
            f"cross-encoder {name!r}: got the architecture {', '.join(kinds) or 'none'}; expected one with a trained "
            "head for pairs (...ForSequenceClassification); fix: choose a reranker, an encoder has no such head"
        )
    if encoder.num_labels != 1:
        raise InputError(
            f"cross-encoder {name!r}: got {encoder.num_labels} scores per pair; expected one; "
            "fix: choose a reranker (one label), not a classifier"
        )
    return encoder
