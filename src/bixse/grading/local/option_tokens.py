"""Which tokens of a judge's vocabulary spell the options of a rubric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.grading.reading.expected_grade import spellings

if TYPE_CHECKING:
    from collections.abc import Sequence


def option_token_ids(
    tokenizer: Any, labels: Sequence[str], prompt: str = "", prompt_ids: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """For each label the ids, one or more, of the tokens that spell it, with and without a space before it.

    A label counts as far as one token spells it, alone or as what follows the rendered prompt: SentencePiece writes a
    label that begins a text in another way than one that goes on from a prompt.
    """
    found = tuple(_single_tokens(tokenizer, label, prompt, prompt_ids) for label in labels)
    for label, ids in zip(labels, found, strict=True):
        if not ids:
            tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(label, add_special_tokens=False))
            raise InputError(
                f"label {label!r}: got the tokens {tokens} of the judge; expected a single token that spells it; "
                "fix: use labels of one digit or letter, as 0, 1, 2, 3 or A, B, C"
            )
    return found


def _single_tokens(tokenizer: Any, label: str, prompt: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    known = list(prompt_ids)
    found = set()
    for spelling in spellings(label):
        alone = tokenizer.encode(spelling, add_special_tokens=False)
        following = tokenizer.encode(prompt + spelling, add_special_tokens=False) if prompt else []
        rest = following[len(known) :] if following[: len(known)] == known else []
        found |= {ids[0] for ids in (alone, rest) if len(ids) == 1}
    return tuple(sorted(token for token in found if tokenizer.decode([token]).strip() == label))
