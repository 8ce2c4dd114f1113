"""Any judge where a sentence-transformers CrossEncoder is expected: scores of pairs, and documents ranked by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from bixse.data.graded_pairs import Pair
from bixse.errors import InputError, shorten
from bixse.grading.grade_settings import AskSettings
from bixse.grading.judgements import judge_pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bixse.grading.judge import Answer, Judge
    from bixse.grading.rubrics import Rubric


class JudgeScorer:
    """`predict` and `rank` as a CrossEncoder has them; a score is the judge's relevance in [0, 1].

    A pair is asked in every prompt variant of the rubric and the relevances are averaged. A pair without a usable
    answer has the score NaN, never 0: it is not known to be irrelevant. `rank` puts such documents last. Nothing is
    stored: to grade many pairs through a server use `bixse.grading.grade.grade`, which asks nothing twice.

    Args:
        judge: any judge; not closed here.
        rubric: what it is asked; None for judges that read no rubric.

    Example:
        >>> from bixse.data.sources.judgement import Judgement
        >>> from bixse.grading.local.replay_judge import ReplayJudge
        >>> from bixse.relevance import GradeScale
        >>> rows = [Judgement("q1", "d1", GradeScale(0, 3), "copy a folder", "shutil.copytree", grade=3.0)]
        >>> scorer = JudgeScorer(ReplayJudge(rows))
        >>> scorer.predict([("copy a folder", "shutil.copytree"), ("copy a folder", "os.walk")]).tolist()
        [1.0, nan]
        >>> scorer.rank("copy a folder", ["os.walk", "shutil.copytree"], top_k=1)
        [{'corpus_id': 1, 'score': 1.0}]
    """

    def __init__(self, judge: Judge, rubric: Rubric | None = None) -> None:
        self.judge = judge
        self.rubric = rubric

    @overload
    def predict(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: Literal[True] = True,
        **named: Any,
    ) -> NDArray[np.float32]: ...

    @overload
    def predict(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: Literal[False] = ...,
        **named: Any,
    ) -> list[float]: ...

    def predict(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        **named: Any,
    ) -> NDArray[np.float32] | list[float]:
        """Relevance of (query, document) pairs.

        Args:
            sentences: N pairs.
            batch_size: taken for compatibility; the judge forms its own batches.
            show_progress_bar: show one.
            convert_to_numpy: give an array, else a list of numbers.
            named: other arguments of `CrossEncoder.predict`; refused, since a judge has none of them.

        Returns:
            (N,) float32 in [0, 1], NaN where the judge gave no usable answer.

        Raises:
            InputError: something that is no list of pairs of texts, or an argument that is not known.
        """
        if named:
            raise InputError(
                f"predict: got {', '.join(sorted(named))}; expected sentences, batch_size, show_progress_bar and "
                "convert_to_numpy; fix: leave it out, a judge's scores are relevance already"
            )
        pairs = [self._pair(number, given) for number, given in enumerate(_pairs(sentences))]
        scores = self._relevance(pairs, bool(show_progress_bar))
        return np.array(scores, dtype=np.float32) if convert_to_numpy else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Documents by falling relevance to a query; equal ones keep their order, those without a score stand last.

        Args:
            query: the query.
            documents: texts.
            top_k: how many to give; None: all.
            return_documents: give the texts too.
            batch_size: taken for compatibility; the judge forms its own batches.
            show_progress_bar: show one.

        Returns:
            `{"corpus_id": index in documents, "score": relevance}` each, with "text" where asked.
        """
        scores = self.predict([(query, document) for document in documents], batch_size, show_progress_bar, False)
        order = sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]), -scores[i]))
        return [
            {"corpus_id": i, "score": scores[i], **({"text": documents[i]} if return_documents else {})}
            for i in order[:top_k]
        ]

    def _pair(self, number: int, given: Any) -> Pair:
        """A pair whose query id is its place; raises InputError."""
        texts = list(given) if isinstance(given, (list, tuple, np.ndarray)) else [given]
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"predict: got {shorten(given)} at place {number}; expected a pair of texts (query, document); "
                "fix: give a list of pairs"
            )
        return Pair(str(number), texts[0], str(number), texts[1])

    def _relevance(self, pairs: Sequence[Pair], bar: bool) -> list[float]:
        """Mean relevance of each pair over the prompt variants, NaN where one of them has no grade."""
        from tqdm import tqdm

        asked = AskSettings(rubric=self.rubric)
        found: dict[str, list[Answer]] = {pair.query_id: [] for pair in pairs}
        questions = [question for pair in pairs for question in asked.questions(pair)]
        for question, answer in tqdm(
            self.judge.answers(questions), "judge", len(questions), unit="question", disable=not bar
        ):
            found[question.query_id].append(answer)
        relevance = [judge_pair(pair, found[pair.query_id], self.judge.scale).relevance for pair in pairs]
        return [math.nan if value is None else value for value in relevance]


def _pairs(sentences: Any) -> list[Any]:
    """The pairs; a single pair, which CrossEncoder takes too, is refused as it gives another shape."""
    if isinstance(sentences, (str, bytes)):
        raise InputError(f"predict: got {shorten(sentences)}; expected a list of pairs; fix: [(query, document)]")
    return list(sentences)
