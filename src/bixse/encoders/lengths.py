"""Warnings of texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.encoders.instructions import prompt_for

if TYPE_CHECKING:
    from bixse.relevance import Kind

KINDS: dict[str, Kind] = {"queries": "query", "documents": "document"}
TEXTS_COUNTED = 1000
"""Texts tokenised to count the ones that are too long."""


class SampledTexts(NamedTuple):
    """Texts, or pairs of texts that a reranker reads together, and the number of texts that they stand for."""

    texts: Sequence[Any]
    number: int


def sampled(texts: Sequence[Any]) -> SampledTexts:
    """Return every n-th text, 1,000 at most."""
    return SampledTexts(texts[:: -(-len(texts) // TEXTS_COUNTED) or 1], len(texts))


def check_lengths(model: Any, pairs: Any, prompts: Mapping[Kind, Sequence[str]] | None = None) -> list[str]:
    """Warn of texts of `Pairs` that are longer than the model reads, by their share of a sample.

    `prompts` are all that may precede a query or a document; None means those of the model.
    """
    from sentence_transformers import CrossEncoder  # not at the top: it imports torch

    samples = {}
    if isinstance(model, CrossEncoder):
        rows, number = sampled(range(len(pairs)))
        texts = zip(pairs.texts("query", rows), pairs.texts("document", rows), strict=True)
        samples["pairs"] = SampledTexts(list(texts), number)
    else:
        for name, kind in KINDS.items():
            rows, number = sampled(pairs.distinct(kind).tolist())
            samples[name] = SampledTexts(pairs.texts(kind, rows), number)
    return warn_of_samples(model, samples, prompts)


def warn_of_samples(
    model: Any, samples: Mapping[str, SampledTexts], prompts: Mapping[Kind, Sequence[str]] | None = None
) -> list[str]:
    """Count the texts of samples ("queries", "documents" or "pairs") that are too long, and warn of them."""
    counts, any_prompt = {}, False
    for name, (texts, number) in samples.items():
        kind = KINDS.get(name)
        before = [] if kind is None else prompts[kind] if prompts else [prompt_for(model, kind) or ""]
        any_prompt |= any(before)
        shown = f"sampled {name}" if len(texts) < number else name
        counts[shown] = (sum(too_long_of(model, texts, before)), len(texts))
    return warn_of_counts(model, counts, ", including the prompt before them" if any_prompt else "")


def too_long_of(model: Any, texts: Sequence[Any], before: Sequence[str]) -> list[bool]:
    """Return per text, or per pair of texts, whether it is too long after the longest of some prompts."""
    limit, tokenizer = model.max_seq_length, getattr(model, "tokenizer", None)
    if limit is None or not callable(tokenizer) or not texts:  # the model reads texts of any length, or no tokens
        return [False] * len(texts)
    longest = max((len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in before), default=0)
    columns = [texts] if isinstance(texts[0], str) else zip(*texts, strict=True)
    tokens = tokenizer(*map(list, columns), truncation=False, verbose=False)["input_ids"]
    return [len(ids) > limit - longest for ids in tokens]


def warn_of_counts(model: Any, counts: Mapping[str, tuple[float, int]], including: str = "") -> list[str]:
    """Return a warning of too long texts, by their name, their number and that of all, or no warning."""
    parts = [f"{round(cut):,} of {number:,} {name}" for name, (cut, number) in counts.items() if cut > 0]
    if not parts:
        return []
    limit = f"the {model.max_seq_length:,} tokens the model reads{including}"
    return [f"{' and '.join(parts)} are longer than {limit}: the rest of each is not read"]
