"""`merge_models`: average models that exist, with weights that are given or chosen on dev and guard collections."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from bixse.data.io.files import file_hash, storage_errors
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import open_run
from bixse.encoders.identity import model_hashes
from bixse.encoders.interpolation import check_shares
from bixse.encoders.loading.precision import resolve_precision
from bixse.settings import Flag, Settings
from bixse.training.config import MergeConfig, Weight
from bixse.training.dev_evaluation import split_hashes
from bixse.training.merging.merge import MergeResult, merge, refitted_head
from bixse.training.merging.watched import Split, check_not_trained_on, load_watched, queries_of
from bixse.training.recipe import MODEL_FOLDER, alone_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

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


class MergeModelsConfig(Settings):
    """Settings of `bixse merge`: either `weights` gives the share of each model, or `dev` chooses w.

    With `dev`, the first model is the base, tuned is the mean of the others, and the result is
    (1 - w) base + w tuned.

    Example:
        >>> MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5]).documents
        10000
    """

    models: Annotated[tuple[str, ...], Field(min_length=2), Flag(metavar="MODEL", positional=True)]
    """Folders or hub names of two or more models of one architecture; with dev the base model first."""
    weights: tuple[Weight, ...] | None = None
    """Share of each model, with sum 1."""
    dev: tuple[Path, ...] = ()
    """Collection folders on which w is chosen."""
    dev_split: str = "dev"
    """Split of the dev collections."""
    guard: tuple[Path, ...] = ()
    """Collection folders that must not get worse than the base model."""
    guard_split: str = "test"
    """Split of the guard collections."""
    guard_tolerance: float = Field(default=0.01, ge=0)
    """nDCG@10 by which a guard collection may fall below the base model."""
    candidates: Annotated[tuple[Weight, ...], Field(min_length=1)] = MergeConfig.model_fields["weights"].default
    """Values of w that are tried."""
    documents: int | None = Field(default=MergeConfig.model_fields["documents"].default, ge=1)
    """Documents of a collection that are searched, judged ones first; null for all."""
    pairs: Path | None = None
    """Graded pairs to which scale and bias of the merged model are fitted; null leaves it without a relevance head."""
    max_length: int | None = Field(default=None, ge=4)
    """Tokens of a text that are read; null keeps the base model's."""
    allow_shared_queries: bool = False
    """Accept dev or guard queries that stand in the pairs."""
    trust_remote_code: bool = False
    """Run code that comes with the models."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.weights is None) == (not self.dev):
            found = "weights and dev" if self.dev else "neither weights nor dev"
            raise ValueError(f"got {found}; expected one of them; fix: give weights, or dev to choose them on")
        if self.guard and not self.dev:
            raise ValueError("got guard without dev; expected both; fix: give dev, or leave guard out")
        if self.weights is not None:
            check_shares(self.weights, len(self.models))
        return self

    def identity(self) -> dict[str, Any]:
        """What makes two merges the same; how w is chosen counts only where it is chosen."""
        chosen = {"candidates", "documents", "guard_tolerance"} if self.dev else set()
        return self.model_dump(mode="json", include={"models", "weights", "max_length", *chosen}) | {
            "precision": resolve_precision()
        }


def merge_models(
    config: MergeModelsConfig, out: str | Path, progress: Callable[[str, int], Step] | None = None
) -> MergedModel:
    """Average the weights of models of one architecture and save the result to `out/model`.

    Args:
        config: the models, and their weights or where these are chosen.
        out: output folder.
        progress: makes a progress callback (see `bixse.progress.Step`) from a title and a total.

    Raises:
        InputError: collections or pairs that cannot be used, or that share queries.
        ModelError: models that differ in architecture or tokenizer.
        OutputExistsError: `out` holds another run.

    Example:
        Half of the way from the base model to the tuned one::

            config = MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5])
            merge_models(config, "runs/merged")
    """
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.interpolation import check_same_kind, mean_weights, trained_weights
    from bixse.encoders.loading.build import build_encoder
    from bixse.encoders.loading.saving import save_whole
    from bixse.losses.bixse import BiXSELoss
    from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

    names = config.models
    splits = [Split(folder, config.dev_split, "dev") for folder in config.dev]
    splits += [Split(folder, config.guard_split, "guard") for folder in config.guard]
    watched = load_watched(splits, config.documents)
    graded = load_graded_pairs(config.pairs) if config.pairs is not None else None
    held_out = queries_of(watched, "dev") | queries_of(watched, "guard")
    warnings = check_not_trained_on(held_out, set(graded.queries) if graded else set(), config.allow_shared_queries)
    inputs = {f"{number}/{name}": value for number, m in enumerate(names) for name, value in model_hashes(m).items()}
    inputs |= split_hashes(splits)
    if config.pairs is not None:
        inputs["pairs"] = file_hash(config.pairs)
    folder = Path(out)
    record = open_run(folder, "merge", config.identity(), inputs)
    if record.status == "finished" and (folder / MODEL_FOLDER).is_dir():
        found = record.results
        return MergedModel(folder / MODEL_FOLDER, MergeResult.from_json(found["merge"]), found["warnings"], reused=True)
    base = build_encoder(names[0], config.max_length, trust_remote_code=config.trust_remote_code).float()
    states, heads = [trained_weights(base)], [base.head]
    for name in names[1:]:
        other = build_encoder(name, trust_remote_code=config.trust_remote_code)
        check_same_kind(base, other, (names[0], name))
        states.append(trained_weights(other))
        heads.append(other.head)
        del other
    with alone_in(folder), storage_errors(folder):
        record.save("running")
        if config.weights is not None:
            result = merge(base, states[0], mean_weights(states, config.weights), [1.0], [])
        else:
            step = progress("score weights", len({0.0, 1.0, *config.candidates})) if progress is not None else None
            result = merge(
                base, states[0], mean_weights(states[1:]), config.candidates, watched, config.guard_tolerance, step
            )
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
