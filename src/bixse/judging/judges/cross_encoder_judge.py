"""A judge that scores a pair with a reranker. A stated map turns the score into relevance."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn

from bixse.converting.score_scale import ScoreMap, map_scores, parse_score_map
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import check_weights, loading
from bixse.errors import InputError, ModelError
from bixse.judging.judge import Answer, AnyJudge, Dtype, Question, Usage
from bixse.judging.judges.local_model import content_hash, device_and_dtype, longest_input
from bixse.relevance import GradeScale

MODE: Final = "score"
WINDOW = 512
BATCH_SIZE = 32
_ALIKE = 1e-6
"""Maximum difference of equal scores, relative to their size."""
_FEW = 16  # equal scores of fewer texts can be a coincidence
_CONTRAST = (("copy a file", "shutil.copy copies a file."), ("copy a file", "Rain falls."), ("a", "b"))


class CrossEncoderJudge(AnyJudge):
    """A judge by the raw score of a sentence-transformers CrossEncoder, mapped to relevance once (mode "score").

    The rubric is not read; grades are relevance, 0 to 1. A pair beyond the model's length is answered "too-long" and
    never cut. Maps are "logit" (a sigmoid), "prob" for scores in [0, 1], and "platt:SLOPE,INTERCEPT". None takes the
    relevance head of a folder, or else "logit". Raise InputError for another map, or for a model that gives three
    different pairs one score.
    """

    scale = GradeScale(0.0, 1.0)

    def __init__(
        self, model: str | Path, score_map: str | None = None, device: str | None = None, dtype: Dtype = "auto"
    ) -> None:
        # before the model is loaded
        self._map = score_map_of(score_map) if score_map else _map_of_head(Path(model))
        torch_device, weights = device_and_dtype(device, dtype)
        self._encoder: Any = _load(str(model), torch_device, weights)
        config = self._encoder.config
        self._longest = longest_input(config, getattr(self._encoder, "max_length", None))
        local = Path(model).is_dir()
        self.name = Path(model).name if local else str(model)
        self.identity = {
            "kind": "cross-encoder",
            "model": self.name,
            "mode": MODE,
            "revision": content_hash(Path(model)) if local else str(getattr(config, "_commit_hash", None) or "main"),
            "dtype": str(weights).removeprefix("torch."),
            "map": str(self._map),
        }
        self.warnings = []
        self._check_scores(self._scores(_CONTRAST))

    def close(self) -> None:
        self._encoder = None

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        if not questions:
            return []
        pairs = ([q.query for q in questions], [q.document for q in questions])
        return [len(ids) for ids in self._encoder.tokenizer(*pairs, truncation=False, verbose=False)["input_ids"]]

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        source = iter(questions)
        while window := list(islice(source, WINDOW)):
            started = time.perf_counter()
            lengths = self.count_tokens(window)
            fits = [self._longest is None or length <= self._longest for length in lengths]
            pairs = [(q.query, q.document) for q, fit in zip(window, fits, strict=True) if fit]
            scores = self._scores(pairs) if pairs else np.zeros(0)
            if len({document for _, document in pairs}) >= _FEW:
                self._check_scores(scores)
            seconds = (time.perf_counter() - started) / len(window)
            left = iter(scores.tolist())
            for question, length, fit in zip(window, lengths, fits, strict=True):
                yield question, self._answer(next(left) if fit else None, length, seconds)

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        # raw scores: a second sigmoid after the model's own activation would squeeze relevance into 0.5 to 0.73
        scores = self._encoder.predict(
            list(pairs), batch_size=BATCH_SIZE, show_progress_bar=False, activation_fn=nn.Identity()
        )
        return np.asarray(scores, dtype=np.float64)

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

    def _check_scores(self, scores: NDArray[np.float64]) -> None:
        """Add a warning for scores that look like probabilities; raise InputError for equal scores."""
        if np.ptp(scores) <= _ALIKE * max(1e-6, float(np.abs(scores).max())):
            raise InputError(
                f"cross-encoder {self.name!r}: got the score {scores[0]:.6g} for {len(scores)} different pairs; "
                "expected scores that differ; fix: choose another model (this one is untrained or incompletely "
                "loaded), or check the texts"
            )
        if self._map.kind == "logit" and len(scores) >= _FEW and scores.min() >= 0 and scores.max() <= 1:
            self.warnings = [
                f"cross-encoder {self.name!r}: all raw scores lie in [0, 1] and pass a sigmoid; if they are "
                "probabilities already, use the map 'prob'"
            ]


def _map_of_head(folder: Path) -> ScoreMap:
    """Return the map of the relevance head of a folder; "logit" without a head."""
    head = RelevanceHead.load(folder) or RelevanceHead(1.0, 0.0)
    if head.slope == 0:
        raise InputError(
            f"{folder}: got a relevance head of slope 0, which gives every pair the same relevance; expected above 0; "
            "fix: calibrate the model on other pairs, or give --score-map"
        )
    intercept, slope = head.logit(0.0), head.logit(1.0) - head.logit(0.0)
    return ScoreMap("logit" if (slope, intercept) == (1.0, 0.0) else "platt", slope, intercept)


def score_map_of(text: str) -> ScoreMap:
    """Return a map of scores by its name; raise InputError for "binary", which maps whole grades."""
    score_map = parse_score_map("logit" if text == "sigmoid" else text)
    if score_map.kind == "binary":
        fix = "use logit, prob, percent or platt:SLOPE,INTERCEPT"
        raise InputError(f"score map: got 'binary'; expected a map of scores; fix: {fix}")
    return score_map


def _load(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    with loading(name, "a CrossEncoder of sentence-transformers", "judge"):
        encoder = CrossEncoder(name, device=str(device), model_kwargs={"dtype": dtype})
    kinds = encoder.config.architectures or []
    trained = any(kind.endswith(("ForSequenceClassification", "ForCausalLM")) for kind in kinds)
    if len(encoder) == 1 and not trained:  # a head among further modules is stored with them
        raise ModelError(
            f"cross-encoder {name!r}: got the architecture {', '.join(kinds) or 'none'}; expected one with a trained "
            "head for pairs (...ForSequenceClassification); fix: choose a reranker, an encoder has no such head"
        )
    check_weights(encoder, name)
    if encoder.num_labels != 1:
        raise InputError(
            f"cross-encoder {name!r}: got {encoder.num_labels} scores per pair; expected one; "
            "fix: choose a reranker (one label), not a classifier"
        )
    return encoder
