"""Load a model of any kind, which its folder tells, and refuse a wrong name before torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.encoders.loading.build import (
    STATIC,
    build_encoder,
    check_weights,
    keep_within_positions,
    loading,
    resolve_model,
    undamaged_source,
)
from bixse.encoders.loading.kinds import kind_of
from bixse.errors import ModelError

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.encoders.scorers import Scorer


def load_scorer(name_or_path: str | Path, device: str | None = None, dimensions: int | None = None) -> Any:
    """Load the encoder, or the model of another kind, of a name; the files of its folder say which it is."""
    kind = "encoder" if str(name_or_path).startswith(STATIC) else kind_of(resolve_model(name_or_path))
    if kind == "encoder":
        return build_encoder(name_or_path, device=device, dimensions=dimensions)
    if dimensions is not None:
        raise ModelError(
            f"dimensions: got {dimensions} for {str(name_or_path)!r} of the kind {kind}, whose embeddings are not cut; "
            "expected none; fix: leave it out"
        )
    name, source = str(name_or_path), undamaged_source(name_or_path)
    from bixse.encoders.scorers import SCORERS

    options: dict[str, Any] = {"num_labels": 1} if kind == "reranker" else {}  # refuses classifiers of more labels
    with loading(name, f"a model of the kind {kind}"):
        model: Any = SCORERS[kind](source, device=device, model_kwargs={"dtype": "float32"}, **options)
    check_weights(model, name)
    keep_within_positions(model)
    return model


def load_relevance_model(
    path: str | Path, device: str | None = None, dimensions: int | None = None
) -> RelevanceModel | Scorer:
    """Load a model that gives probabilities of relevance from a folder saved by bixse, of any kind.

    See `build_encoder` for the arguments and errors.

    Example:
        ::

            model = load_relevance_model("runs/quickstart/bixse/model")
            model.relevance("copy a folder", ["shutil.copytree ...", "shutil.copy ...", "os.remove ..."])
    """
    model: RelevanceModel | Scorer = load_scorer(path, device, dimensions)
    if model.head is None:
        cut = "" if dimensions is None else f" for {dimensions} dimensions"
        raise ModelError(
            f"{path}: got a model without a relevance head{cut}; expected a folder saved by bixse; "
            "fix: run `bixse calibrate MODEL --collection DIR`, or use SentenceTransformer for embeddings alone"
        )
    return model
