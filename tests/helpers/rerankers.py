"""Tiny models that score pairs: rerankers, late interaction and sparse encoders of random weights."""

import shutil

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.relevance_model import save_whole
from bixse.encoders.scorers import LateInteractionEncoder, Reranker, SparseScorer
from bixse.files.files import HASHES_FILE

DAMAGES = ("changed", "cut", "head", "config.json", "modules.json")
"""What `damaged` can do to a folder: "changed" is "cut" beside the hash of the whole file."""
EMBEDDING_KINDS = ("late-interaction", "sparse")


def scorer_of(encoder, kind):
    """Make a model of a kind of the folder of an encoder."""
    options = {"device": "cpu", "model_kwargs": {"dtype": "float32"}}
    if kind == "reranker":
        return Reranker(str(encoder), num_labels=1, **options)
    first, *rest = SentenceTransformer(str(encoder), **options)
    if kind == "late-interaction":
        modules = [first, MultiVectorMask(), Normalize("token_embeddings")]
        return LateInteractionEncoder(modules=modules, similarity_fn_name="meanmaxsim", device="cpu")
    size = first.get_embedding_dimension()
    modules = [first, *rest, SparseAutoEncoder(size, 2 * size, k=size // 4, k_aux=0), Normalize()]
    return SparseScorer(modules=modules, similarity_fn_name="dot", device="cpu")


def save_reranker(encoder, folder, head=RelevanceHead(1.0, 0.0), seed=0, kind="reranker"):  # noqa: B008 a frozen dataclass
    """Save a model of a kind with random weights and hashes; without a head if it is None."""
    torch.manual_seed(seed)
    model = scorer_of(encoder, kind)
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
