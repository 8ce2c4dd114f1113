"""In which numbers weights are kept while they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.encoders.encode import bf16_is_fast

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def keep_trained_weights_exact(model: SentenceTransformer) -> None:
    """Make the weights that are trained float32, in place.

    Most published decoders are stored in bf16, and are loaded as they are stored. A step of training changes a weight
    by less than bf16 can tell apart (1 part in 256): the loss goes down slowly or not at all, without a word. Frozen
    weights, as those under low-rank adapters, stay as they are where the device is fast at bf16.

    Args:
        model: the encoder, adapters added.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point() and (parameter.requires_grad or not bf16_is_fast(model.device)):
            parameter.data = parameter.data.float()
    for buffer in model.buffers():
        if buffer.is_floating_point() and not bf16_is_fast(model.device):
            buffer.data = buffer.data.float()
