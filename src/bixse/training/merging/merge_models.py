"""`merge_models`: average models that exist, with weights that are given or chosen on dev and guard collections."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import file_hash, storage_errors
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import open_run
from bixse.encoders.identity import model_hashes
from bixse.encoders.interpolation import check_shares, check_weight
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.training.config import MergeConfig, paths_in
from bixse.training.dev_evaluation import split_hashes
from bixse.training.merging.merge import MergeResult, merge, refitted_head
from bixse.training.merging.watched import Split, check_not_trained_on, load_watched, queries_of
from bixse.training.recipe import MODEL_FOLDER, alone_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bixse.progress import Step


@dataclass(frozen=True)
class MergedModel:
    """What a merge left."""

    model_path: Path
    """Folder of the merged model."""
    result: MergeResult
    """The weight of the tuned models and what was scored."""
    warnings: list[str]
    """What the user should know."""
    reused: bool = False
    """The merge was finished before."""


def merge_models(
    models: Sequence[str | Path],
    out: str | Path,
    weights: Sequence[float] | None = None,
    dev: str | Path | Sequence[str | Path] | None = None,
    dev_split: str = "dev",
    guard: str | Path | Sequence[str | Path] | None = None,
    guard_split: str = "test",
    guard_tolerance: float = 0.01,
    candidates: Sequence[float] = MergeConfig.model_fields["weights"].default,
    documents: int | None = MergeConfig.model_fields["documents"].default,
    pairs: str | Path | None = None,
    max_length: int | None = None,
    allow_shared_queries: bool = False,
    trust_remote_code: bool = False,
    progress: Callable[[str, int], Step] | None = None,
) -> MergedModel:
    """Average the weights of models of one architecture and save the result to `out/model`.

    Either `weights` gives the share of each model, or `dev` chooses w of (1 - w) base + w tuned: the first model is
    the base, tuned is the mean of the others.

    Args:
        models: two or more model folders or hub names, trained from one base model.
        out: output folder.
        weights: share of each model, in [0, 1] and with sum 1.
        dev: collection folder, or several, on which w is chosen.
        dev_split: its split.
        guard: collection folder, or several, that may fall below the base model by `guard_tolerance` at most.
        guard_split: their split.
        guard_tolerance: nDCG@10.
        candidates: values of w that are tried.
        documents: documents of a collection that are searched; None for all.
        pairs: graded pairs to which scale and bias of the merged model are fitted; None leaves it without a relevance
            head.
        max_length: tokens of a text that are read; None keeps the base model's.
        allow_shared_queries: accept dev or guard queries that stand in the pairs.
        trust_remote_code: run code that comes with the models.
        progress: makes a progress callback (see `bixse.progress.Step`) from a title and a total.

    Raises:
        InputError: fewer than two models, both or neither of `weights` and `dev`, weights out of range, or collections
            or pairs that cannot be used.
        ModelError: models that differ in architecture or tokenizer.
        OutputExistsError: `out` holds another run.

    Example:
        Half of the way from the base model to the tuned one::

            merge_models(["demo", "runs/mine/model"], "runs/merged", weights=[0.5, 0.5])
    """
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.interpolation import check_same_kind, mean_weights, trained_weights
    from bixse.encoders.loading.build import build_encoder
    from bixse.encoders.loading.saving import save_whole
    from bixse.losses.bixse import BiXSELoss
    from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

    names, dev_folders, guard_folders = [str(model) for model in models], paths_in(dev), paths_in(guard)
    settings = _Settings(
        models=names, weights=weights, dev=dev_folders, guard=guard_folders, guard_tolerance=guard_tolerance,
        candidates=candidates, documents=documents, max_length=max_length,
    )  # fmt: skip
    settings.check()
    splits = [Split(folder, dev_split, "dev") for folder in dev_folders]
    splits += [Split(folder, guard_split, "guard") for folder in guard_folders]
    watched = load_watched(splits, documents)
    graded = load_graded_pairs(pairs) if pairs is not None else None
    held_out = queries_of(watched, "dev") | queries_of(watched, "guard")
    warnings = check_not_trained_on(held_out, set(graded.queries) if graded else set(), allow_shared_queries)
    inputs = {f"{number}/{name}": value for number, m in enumerate(names) for name, value in model_hashes(m).items()}
    inputs |= split_hashes(splits)
    if pairs is not None:
        inputs["pairs"] = file_hash(Path(pairs))
    folder = Path(out)
    record = open_run(folder, "merge", settings.config(), inputs)
    if record.status == "finished" and (folder / MODEL_FOLDER).is_dir():
        found = record.results
        return MergedModel(folder / MODEL_FOLDER, MergeResult.from_json(found["merge"]), found["warnings"], reused=True)
    base = build_encoder(names[0], max_length, trust_remote_code=trust_remote_code).float()
    states, heads = [trained_weights(base)], [base.head]
    for name in names[1:]:
        other = build_encoder(name, trust_remote_code=trust_remote_code)
        check_same_kind(base, other, (names[0], name))
        states.append(trained_weights(other))
        heads.append(other.head)
        del other
    with alone_in(folder), storage_errors(folder):
        record.save("running")
        if weights is not None:
            result = merge(base, states[0], mean_weights(states, weights), [1.0], [])
        else:
            step = progress("score weights", len({0.0, 1.0, *candidates})) if progress is not None else None
            result = merge(base, states[0], mean_weights(states[1:]), candidates, watched, guard_tolerance, step)
        warnings += result.warnings()
        base.head = None
        if graded is not None:
            head = next((head.as_trained() for head in reversed(heads) if head is not None), RelevanceHead(20.0, 0.0))
            with tempfile.TemporaryDirectory() as scratch:
                arguments = GradedTrainingArguments(
                    output_dir=scratch, report_to="none", per_device_train_batch_size=16
                )
                base.head = refitted_head(GradedTrainer(base, arguments, graded, BiXSELoss(base)), head)
        else:
            warnings.append(
                "the merged model has no relevance head, as its cosines are those of neither model; fix: give --pairs, "
                "or run `bixse calibrate` on it"
            )
        save_whole(base, folder / MODEL_FOLDER, result.card())
        record.results = {"merge": result.to_json(), "warnings": warnings}
        record.save("finished")
    return MergedModel(folder / MODEL_FOLDER, result, warnings)


@dataclass(frozen=True)
class _Settings:
    """What makes two merges the same, checked before any work."""

    models: list[str]
    weights: Sequence[float] | None
    dev: list[Path]
    guard: list[Path]
    guard_tolerance: float
    candidates: Sequence[float]
    documents: int | None
    max_length: int | None

    def check(self) -> None:
        """Refuse values out of range, and settings that do not go together."""
        if len(self.models) < 2:
            raise InputError(f"merge: got {len(self.models)} model; expected two or more; fix: name the base model too")
        if (self.weights is None) == (not self.dev):
            found = "weights and dev" if self.dev else "neither weights nor dev"
            raise InputError(f"merge: got {found}; expected one of them; fix: give weights, or dev to choose them on")
        if self.guard and not self.dev:
            raise InputError("merge: got guard without dev; expected both; fix: give dev, or leave guard out")
        if self.weights is not None:
            check_shares(self.weights, len(self.models))
        for weight in self.candidates:
            check_weight(weight)
        if not self.candidates or self.guard_tolerance < 0 or (self.documents is not None and self.documents < 1):
            raise InputError(
                f"merge: got {len(self.candidates)} candidates, guard_tolerance {self.guard_tolerance} and documents "
                f"{self.documents}; expected at least one candidate, a tolerance of 0 or more, and 1 document or more; "
                "fix: leave them out for the defaults"
            )

    def config(self) -> dict[str, Any]:
        """As the record holds them."""
        chosen = {
            "candidates": list(self.candidates), "documents": self.documents, "guard_tolerance": self.guard_tolerance,
        }  # fmt: skip
        return {
            "models": self.models,
            "weights": list(self.weights or ()),
            "max_length": self.max_length,
            "precision": resolve_precision(),
            **(chosen if self.dev else {}),
        }
