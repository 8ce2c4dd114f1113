"""What judges that run a language model here share: prompts, tokens of the options, and answers from probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from bixse.grading.judge import Answer, Usage
from bixse.grading.local.local_prompts import PromptRenderer
from bixse.grading.local.option_tokens import option_token_ids
from bixse.grading.reading.expected_grade import OptionProbabilities, expected_grade

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.grading.judge import Question
    from bixse.grading.local.local_model import LocalModel
    from bixse.grading.rubrics import Rubric

MODE: Final = "token-ids"


class OptionJudge:
    """Grades by the probabilities of a rubric's options as the next token; a subclass says how these are computed.

    Raises:
        InputError: a label that is no single token of the model.
    """

    at_once = 1
    kind: ClassVar[str]
    """What runs the model, in the judge's identity."""

    def __init__(self, loaded: LocalModel, rubric: Rubric, min_mass: float) -> None:
        self.rubric, self.min_mass = rubric, min_mass
        self._loaded = loaded
        self._renderer = PromptRenderer(loaded.tokenizer)
        example = [rubric.variants[0].messages("query", "document")]
        prompt, ids = self._renderer.texts(example)[0], self._renderer.encode(example)[0]
        self._option_ids = option_token_ids(loaded.tokenizer, rubric.labels, prompt, ids)
        self.name, self.scale = loaded.name, rubric.scale
        self.warnings = list(self._renderer.notes)

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides an answer besides the question."""
        return {
            "kind": self.kind,
            "model": self.name,
            "revision": self._loaded.revision,
            "mode": MODE,
            "dtype": self._loaded.dtype,
            "template": self._renderer.template_hash,
            "labels": list(self.rubric.labels),
            "values": list(self.rubric.values),
            "min_mass": self.min_mass,
        }

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        return [len(ids) for ids in self._prompts(questions)]

    def _prompts(self, questions: Sequence[Question]) -> list[list[int]]:
        return self._renderer.encode([self._messages(question) for question in questions])

    def _messages(self, question: Question) -> Sequence[Mapping[str, str]]:
        """By the rubric where the question comes without messages."""
        if question.messages:
            return question.messages
        variants = {variant.name: variant for variant in self.rubric.variants}
        return variants.get(question.variant, self.rubric.variants[0]).messages(question.query, question.document)

    def _without_grade(self, tokens: int, detail: str) -> Answer:
        return Answer(
            "too-long", MODE, usage=Usage(prompt=tokens), judge=self.name, detail=f"prompt of {tokens} tokens: {detail}"
        )

    def _answer(self, options: tuple[float, ...], text: str, length: int, seconds: float) -> Answer:
        common: dict[str, Any] = {"usage": Usage(prompt=length), "seconds": seconds, "judge": self.name}
        found = OptionProbabilities(options)
        if not all(0 <= share <= 1.001 for share in options):
            return Answer("failed", MODE, detail="the model gave no numbers (NaN or infinity)", **common)
        if found.mass < max(self.min_mass, 1e-30):
            detail = f"the options have probability {found.mass:.2g} together"
            return Answer("no-option", MODE, text=text[:200], detail=detail, **common)
        return Answer("graded", MODE, options, *expected_grade(self.rubric.values, found), text=text[:200], **common)
