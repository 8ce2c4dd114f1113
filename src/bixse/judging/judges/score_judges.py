"""Judges that score a pair: an embedding model or a reranker. A stated map turns the score into relevance."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sentence_transformers import CrossEncoder
from torch import nn

from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.build import build_encoder, quiet_loading
from bixse.errors import InputError, ModelError
from bixse.judging.judge import Answer, Usage
from bixse.judging.judges.local_model import content_hash, judge_device, longest_input, unusable, weights_dtype
from bixse.preparing.score_scale import ScoreMap, map_scores, parse_score_map
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from bixse.encoders.head import RelevanceHead
    from bixse.judging.judge import Dtype, Question


MODE: Final = "score"
WINDOW = 512
_ALIKE = 1e-6
"""Maximum difference of equal scores, relative to their size."""
_FEW = 16  # equal scores of fewer texts can be a coincidence


class ScoreJudge(ABC):
    """A judge by a model's score of a pair, mapped to relevance once (mode "score").

    The rubric is not read; grades are relevance, 0 to 1. A pair beyond the model's length is answered "too-long" and
    never cut. Maps are "logit" (a sigmoid), "prob" for scores in [0, 1], and "platt:SLOPE,INTERCEPT". Raise InputError
    for another map, or for a model that gives three different pairs one score.
    """

    at_once = 1
    scale = GradeScale(0.0, 1.0)

    def __init__(
        self,
        kind: str,
        model: str | Path,
        encoder: Any,
        score_map: str,
        longest: int | None,
        commit: str,
        settings: Mapping[str, Any],
    ) -> None:
        self._kind, self._encoder, self._map, self._longest = kind, encoder, score_map_of(score_map), longest
        local = Path(model).is_dir()
        self.name = Path(model).name if local else str(model)
        self.identity: Mapping[str, Any] = {
            "kind": kind,
            "model": self.name,
            "mode": MODE,
            "revision": content_hash(Path(model)) if local else commit,
            **settings,
            "map": str(self._map),
        }
        self.warnings: list[str] = []
        self._check_contrast(
            self._scores([("copy a file", "shutil.copy copies a file."), ("copy a file", "Rain falls."), ("a", "b")]),
            "three different pairs",
        )

    @abstractmethod
    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the scores (N,) of N pairs of query and document."""

    @abstractmethod
    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        """Return the number of tokens per question that `longest` limits."""

    def close(self) -> None:
        self._encoder = None

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        return self._lengths(questions) if questions else []

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        source = iter(questions)
        while taken := list(islice(source, WINDOW)):
            started = time.perf_counter()
            lengths = self._lengths(taken)
            fits = [self._longest is None or length <= self._longest for length in lengths]
            pairs = [(q.query, q.document) for q, fit in zip(taken, fits, strict=True) if fit]
            scores = self._scores(pairs) if pairs else np.zeros(0)
            if len({document for _, document in pairs}) >= _FEW:
                self._check_window(scores)
            seconds = (time.perf_counter() - started) / len(taken)
            left = iter(scores.tolist())
            for question, length, fit in zip(taken, lengths, fits, strict=True):
                yield question, self._answer(next(left) if fit else None, length, seconds)

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
                f"{self._kind} {self.name!r}: got the score {scores[0]:.6g} for {pairs}; expected scores that differ; "
                "fix: choose another model (this one is not trained or not loaded whole), or look at the texts"
            )

    def _check_window(self, scores: NDArray[np.float64]) -> None:
        """Add a warning for scores that look like probabilities; raise InputError for equal scores."""
        if self._map.kind == "logit" and not self.warnings and scores.min() >= 0 and scores.max() <= 1:
            self.warnings.append(
                f"{self._kind} {self.name!r}: all raw scores lie in [0, 1] and pass a sigmoid; where they are "
                "probabilities already, use the map 'prob'"
            )
        self._check_contrast(scores, f"all of {len(scores)} pairs")


def score_map_of(text: str) -> ScoreMap:
    """Return a map of scores by its name; raise InputError for "binary", which maps whole grades."""
    found = parse_score_map("logit" if text == "sigmoid" else text)
    if found.kind == "binary":
        fix = "use logit, prob, percent or platt:SLOPE,INTERCEPT"
        raise InputError(f"score map: got 'binary'; expected a map of scores; fix: {fix}")
    return found


class EncoderJudge(ScoreJudge):
    """A judge by the log-odds of an embedding model's relevance head, or by its cosine.

    A model without a head needs a map: `platt:20,-10` is sigma(20 cos - 10). Texts get the prompts of the model.
    """

    def __init__(
        self, model: str | Path, score_map: str | None = None, device: str | None = None, dtype: Dtype = "auto"
    ) -> None:
        if score_map is not None:
            score_map_of(score_map)  # before the model is loaded
        place = judge_device(device)
        self._precision = str(weights_dtype(dtype, place)).removeprefix("torch.")
        if self._precision not in ("float32", "bfloat16"):
            raise InputError(
                f"dtype: got {self._precision} for the encoder {str(model)!r}; expected float32 or bfloat16; "
                "fix: leave it out"
            )
        encoder: Any = build_encoder(model, device=str(place))
        head = encoder.head
        if head is None and score_map is None:
            raise InputError(
                f"encoder {str(model)!r}: got a model without a relevance head and no map of its cosines; expected one "
                "of both; fix: add --score-map platt:SLOPE,INTERCEPT (20,-10 is sigma(20 cos - 10)), or run "
                "`bixse calibrate` first"
            )
        settings = {"head": None if head is None else asdict(head), "dtype": self._precision}
        longest = encoder.max_seq_length
        super().__init__("encoder", model, encoder, score_map or "logit", longest, "main", settings)

    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        """Return the tokens of the longer text per pair, since each text is encoded separately."""
        before = [prompt_for(self._encoder, kind) or "" for kind in ("query", "document")]
        texts = [before[i] + text for q in questions for i, text in enumerate((q.query, q.document))]
        counts = [len(ids) for ids in self._encoder.tokenizer(texts, truncation=False, verbose=False)["input_ids"]]
        return [max(pair) for pair in zip(counts[::2], counts[1::2], strict=True)]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        queries, documents = zip(*pairs, strict=True)
        cosines: NDArray[np.float64] = np.einsum(
            "nd,nd->n",
            encode_texts(self._encoder, queries, "query", self._precision),
            encode_texts(self._encoder, documents, "document", self._precision),
            dtype=np.float64,
        )
        head: RelevanceHead | None = self._encoder.head
        return cosines if head is None else head.logit(cosines)


class CrossEncoderJudge(ScoreJudge):
    """A judge by the raw score of a sentence-transformers CrossEncoder."""

    def __init__(
        self,
        model: str | Path,
        score_map: str = "logit",
        device: str | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        dtype: Dtype = "auto",
    ) -> None:
        score_map_of(score_map)  # before the model is loaded
        place = judge_device(device)
        weights = weights_dtype(dtype, place)
        encoder = _load(str(model), place, weights, revision)
        self.batch_size = batch_size
        longest = longest_input(encoder.config, getattr(encoder, "max_length", None))
        commit = str(getattr(encoder.config, "_commit_hash", None) or revision or "main")
        settings = {"dtype": str(weights).removeprefix("torch.")}
        super().__init__("cross-encoder", model, encoder, score_map, longest, commit, settings)

    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        pairs = ([q.query for q in questions], [q.document for q in questions])
        return [len(ids) for ids in self._encoder.tokenizer(*pairs, truncation=False, verbose=False)["input_ids"]]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        # raw scores: a second sigmoid after the model's own activation would squeeze relevance into 0.5 to 0.73
        scores = self._encoder.predict(
            list(pairs), batch_size=self.batch_size, show_progress_bar=False, activation_fn=nn.Identity()
        )
        return np.asarray(scores, dtype=np.float64)


def _load(name: str, device: torch.device, dtype: torch.dtype, revision: str | None) -> Any:
    try:
        with quiet_loading():
            encoder = CrossEncoder(name, device=str(device), revision=revision, model_kwargs={"dtype": dtype})
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
