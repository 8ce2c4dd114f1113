"""An embedding model as a judge: a cheap first judge, or the teacher of a smaller encoder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.judging.local.local_model import content_hash, judge_device, weights_dtype
from bixse.judging.local.score_judge import ScoreJudge, score_map_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bixse.encoders.head import RelevanceHead
    from bixse.judging.judge import Dtype, Question


class EncoderJudge(ScoreJudge):
    """Grades by an embedding model: the log-odds of its relevance head, or the cosine where it has none.

    The relevance of a model without a head has to come from a map: `platt:20,-10` is sigma(20 cos - 10). Queries and
    documents are embedded with the model's own prompts. Arguments as for `CrossEncoderJudge`; see `ScoreJudge`.

    Raises:
        ModelError: no such model, or one that is no encoder.
        InputError: no map for a model without a head, or weights asked for in another number type than float32 and
            bfloat16.

    Example:
        Grade pairs with a large embedding model that a small one is to learn from::

            answers = EncoderJudge("BAAI/bge-large-en-v1.5", "platt:20,-14").answers(questions)
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
        self._encoder: Any = build_encoder(model, device=str(place))
        head = self._encoder.head
        if head is None and score_map is None:
            raise InputError(
                f"encoder {str(model)!r}: got a model without a relevance head and no map of its cosines; expected one "
                "of both; fix: add --score-map platt:SLOPE,INTERCEPT (20,-10 is sigma(20 cos - 10)), or run "
                "`bixse calibrate` first"
            )
        local = Path(model).is_dir()
        super().__init__(
            "encoder",
            Path(model).name if local else str(model),
            score_map or "logit",
            self._encoder.max_seq_length,
            {
                "revision": content_hash(Path(model)) if local else "main",
                "head": None if head is None else asdict(head),
                "dtype": self._precision,
            },
        )

    def close(self) -> None:
        self._encoder = None

    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        """Of the longer one of query and document, as each is read by itself."""
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
