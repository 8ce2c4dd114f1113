"""Tiny models that score pairs: rerankers, late interaction and sparse encoders of random weights."""

import shutil

import torch

from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.loading.build import build_scorer
from bixse.encoders.relevance_model import save_whole
from bixse.files.files import HASHES_FILE

DAMAGES = ("changed", "cut", "head", "config.json", "modules.json")
"""What `damaged` can do to a folder: "changed" is "cut" beside the hash of the whole file."""
EMBEDDING_KINDS = ("late-interaction", "sparse")


def save_reranker(encoder, folder, head=RelevanceHead(1.0, 0.0), seed=0, kind="reranker"):  # noqa: B008 a frozen dataclass
    """Save a model of a kind with random weights as `bixse train` does; without a head if it is None."""
    torch.manual_seed(seed)
    model = build_scorer(kind, encoder, convert=True, device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.head = head
    save_whole(model, folder)
    return folder


def damaged(folder, copy, damage):
    """Copy a folder and damage the copy."""
    shutil.copytree(folder, copy)
    if damage != "changed":
        (copy / HASHES_FILE).unlink()
    if damage.endswith(".json"):
        (copy / damage).write_text("{")
    elif damage == "head":
        (copy / HEAD_FILE).write_text('{"logit_scale": -1}')
    else:
        weights = copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    return copy
