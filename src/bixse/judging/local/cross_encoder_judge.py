"""A plain reranker as a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentence_transformers import CrossEncoder
from torch import nn

from bixse.encoders.loading.build import quiet_loading
from bixse.errors import InputError, ModelError
from bixse.judging.local.local_model import content_hash, judge_device, longest_input, unusable, weights_dtype
from bixse.judging.local.score_judge import ScoreJudge, score_map_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from bixse.judging.judge import Dtype, Question


class CrossEncoderJudge(ScoreJudge):
    """Grades by the raw score of a sentence-transformers CrossEncoder; see `ScoreJudge`.

    The activation that a model brings along is set aside, since it differs between models and a second sigmoid on top
    of it squeezes all relevance into 0.5 to 0.73 without a word. Other arguments as for `LocalJudge`.

    Raises:
        ModelError: no such model, or one without a trained head.
        InputError: a model with several scores per pair, one that gives all pairs the same, or no such map.

    Example:
        Grade pairs with a reranker::

            answers = CrossEncoderJudge("cross-encoder/ms-marco-MiniLM-L6-v2").answers(questions)
    """

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
        score_map_of(score_map)  # before the model is loaded
        place = judge_device(device)
        number = weights_dtype(dtype, place)
        self._encoder = _load(str(model), place, number, revision, trust_remote_code)
        self.batch_size = batch_size
        local = Path(model).is_dir()
        commit = getattr(self._encoder.config, "_commit_hash", None) or revision or "main"
        super().__init__(
            "cross-encoder",
            Path(model).name if local else str(model),
            score_map,
            longest_input(self._encoder.config, getattr(self._encoder, "max_length", None)),
            {
                "revision": content_hash(Path(model)) if local else str(commit),
                "dtype": str(number).removeprefix("torch."),
            },
        )

    def close(self) -> None:
        self._encoder = None

    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        pairs = ([q.query for q in questions], [q.document for q in questions])
        return [len(ids) for ids in self._encoder.tokenizer(*pairs, truncation=False, verbose=False)["input_ids"]]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Raw scores (N,), without the activation that the model brings along."""
        found = self._encoder.predict(
            list(pairs), batch_size=self.batch_size, show_progress_bar=False, activation_fn=nn.Identity()
        )
        return np.asarray(found, dtype=np.float64)


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
