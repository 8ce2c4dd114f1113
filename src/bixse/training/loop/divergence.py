"""Training that ended with finite numbers and without a usable model: embeddings all alike, or a loss that exploded."""

from __future__ import annotations

from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, get_args

from bixse.encoders.encode import encode_here
from bixse.encoders.processes import local_part
from bixse.errors import DivergedError, NotFiniteError
from bixse.relevance import Kind
from bixse.training.distributed import raise_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import GradedPairs

TEXTS_COMPARED = 32
"""Distinct queries, and documents, whose embeddings are compared."""
SMALLEST_SPREAD = 1e-3
"""Embeddings have collapsed where no cosine is further from 1 than this, and some were before."""
LOSS_FACTOR = 10.0
"""The loss has exploded where it ends above so many times what it was at first."""
FEWEST_LOSSES = 3
"""Entries of the log of which "at first" and "ends" are medians: a tenth of all, these at least, or half of them."""
FIX = "lower learning_rate or set max_grad_norm, and give another --out folder"


def embedding_spreads(model: SentenceTransformer, pairs: GradedPairs) -> dict[Kind, float]:
    """1 minus the smallest cosine between distinct texts of a kind, without prompts.

    In float32, since rounding to bf16 makes embeddings differ by more than `SMALLEST_SPREAD`.
    """
    found: dict[Kind, float] = {}
    for kind in get_args(Kind):
        rows = pairs.distinct(kind)
        texts = pairs.texts(kind, rows[:: -(-len(rows) // TEXTS_COMPARED)])
        with _forward_of_its_own(model):
            embeddings = encode_here(model, texts, kind, None, "float32")
        found[kind] = 1 - float((embeddings @ embeddings.T).min())
    return found


@contextmanager
def _forward_of_its_own(model: SentenceTransformer) -> Iterator[None]:
    """Without the autocast that accelerate puts into `forward` where training computes in bfloat16."""
    own = model.__dict__.get("_original_forward")
    if own is None:
        yield
        return
    wrapped, model.__dict__["forward"] = model.__dict__["forward"], own
    try:
        yield
    finally:
        model.__dict__["forward"] = wrapped


def check_learned(
    before: Mapping[Kind, float], after: Mapping[Kind, float], losses: Sequence[float], kept_the_best: bool
) -> None:
    """Refuse a model that training has made useless.

    A loss says little by itself: for most objectives that of a collapsed encoder is near its start, so the
    `embedding_spreads` before and after are compared. An exploded loss counts where no checkpoint was chosen on dev.
    """
    for kind, spread in after.items():
        if spread < SMALLEST_SPREAD <= before[kind]:
            raise DivergedError(
                f"training: got nearly the same embedding for every {kind}; expected embeddings that differ, as before "
                f"training; the run has diverged; fix: {FIX}"
            ).of_all_processes()
    if not losses or kept_the_best:
        return
    compared = min(max(FEWEST_LOSSES, len(losses) // 10), max(1, len(losses) // 2))
    first, last = median(losses[:compared]), median(losses[-compared:])
    if last > LOSS_FACTOR * first > 0:
        raise DivergedError(
            f"training: got a loss of {last:.3g} at the end and {first:.3g} at first; expected it to fall; the run has "
            f"diverged; fix: {FIX}"
        ).of_all_processes()


def check_finite_together(model: torch.nn.Module, step: int) -> None:
    """As `check_finite`, in every process at once: where one has such weights, all are refused."""
    with raise_together():
        check_finite(model, step)


def check_finite(model: torch.nn.Module, step: int) -> None:
    """Refuse weights that are not finite, by a DivergedError; of sharded ones this process's part is looked at."""
    for name, parameter in model.named_parameters():
        if not bool(local_part(parameter.detach()).isfinite().all()):
            raise DivergedError(
                f"training: got weights that are not finite ({name}) after step {step}; expected finite ones; "
                f"fix: {FIX}"
            )


@contextmanager
def finite_embeddings(step: int) -> Iterator[None]:
    """Take embeddings that are not finite for divergence, by a DivergedError, once there was a step."""
    try:
        yield
    except NotFiniteError as error:
        if not step:  # the model came so
            raise
        raise DivergedError(
            f"training: got embeddings that are not finite after step {step}; expected finite ones; fix: {FIX}"
        ) from error
