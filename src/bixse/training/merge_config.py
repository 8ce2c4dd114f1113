"""`MergeModelsConfig`: everything `bixse merge` depends on, and what the folder of a training run stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from bixse.data.run import read_record
from bixse.encoders.loading.build import IN_MEMORY
from bixse.encoders.loading.precision import resolve_precision
from bixse.errors import InputError
from bixse.files.run_folder import RUN_FILE
from bixse.settings import Flag, Reads, Settings, paths_in
from bixse.training.config import (
    CHECKPOINT_FOLDER,
    MODEL_FOLDER,
    SEARCHED,
    TOLERANCE,
    TUNED_FOLDER,
    Weight,
    Weights,
    check_guard_splits,
)


class MergeModelsConfig(Settings):
    """Settings of `bixse merge`: either `weights` gives the share of each model, or `dev` chooses w.

    With `dev`, the first model is the base, tuned is the mean of the other models, and the result is (1 - w) base + w
    tuned.

    Example:
        >>> MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5]).guard_tolerance
        0.01
    """

    models: Annotated[tuple[str, ...], Field(min_length=2), Flag(metavar="MODEL", positional=True), Reads("model")]
    """Folders or hub names of two or more models of one architecture. With dev, the first is the base model. The folder
    of one run of `bixse train` names its base and its tuned model; its dev, guard and pairs are the defaults."""
    tuned_share: Annotated[float, Field(gt=0, le=1), Flag(hidden=True)] = 1.0
    """Merge weight of the second model, if it is merged with the first one already. The merge is undone."""
    weights: tuple[Weight, ...] | None = None
    """Share of each model; the shares add up to 1. Null chooses the share of the tuned models on dev."""
    dev: Annotated[tuple[Path, ...], Reads("collection")] = ()
    """Collection folders on which the share w of the tuned models is chosen."""
    dev_split: str = "dev"
    """Split of the dev collections."""
    guard: Annotated[tuple[Path, ...], Reads("collection")] = ()
    """Collection folders that must not get worse than the base model."""
    guard_split: str | tuple[str, ...] = "test"
    """Split of the guard collections, or one split per collection."""
    guard_tolerance: float = Field(default=TOLERANCE, ge=0)
    """Maximum drop of nDCG@10 on a guard collection, against the base model."""
    candidates: Weights | None = None
    """Values of w to score on dev and guard. Null searches as `merge.weights` of `bixse train` does."""
    documents: int | None = Field(default=SEARCHED, ge=1)
    """Maximum number of documents per collection that a weight searches: all judged documents and the best hits of the
    base and the tuned model. Null searches the complete corpus."""
    pairs: Annotated[Path | Annotated[tuple[Path, ...], Field(min_length=1)] | None, Reads("graded")] = None
    """File of graded pairs, or several, to fit scale and bias of the merged model. Null leaves the model without a
    relevance head."""
    max_length: int | None = Field(default=None, ge=4)
    """Maximum number of tokens per text. Null keeps the limit of the base model."""
    trust_remote_code: bool = False
    """Run code that comes with the models."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_run(cls, values: Any) -> Any:
        return with_settings_of_run(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _usable(self) -> Self:
        check_guard_splits(self.guard_split, self.guard)
        if (self.weights is None) == (not self.dev):
            got = "weights and dev" if self.dev else "neither weights nor dev"
            raise ValueError(f"got {got}; expected one of them; fix: give weights, or dev to choose them on")
        if self.guard and not self.dev:
            raise ValueError("got guard without dev; expected both; fix: give dev, or leave guard out")
        if self.weights is not None:
            from bixse.encoders.weights import check_shares  # not at the top: it imports torch

            check_shares(self.weights, len(self.models))
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that make two merges the same; settings of the choice of w count only with `dev`."""
        chosen = {"candidates", "documents", "guard_tolerance"} if self.dev else set()
        chosen |= {"tuned_share"} if self.tuned_share < 1 else set()
        values = self.model_dump(mode="json", include={"models", "weights", "max_length", *chosen})
        return {**values, "precision": resolve_precision()}


def with_settings_of_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings of a run of `bixse train` to settings of `bixse merge` whose only model is its folder.

    The tuned model is the one that `keep_tuned` saved, or else the merged model, whose merge is undone, or else the
    last checkpoint. Raises InputError for another run, and for one without a model that can be merged again.
    """
    models = values.get("models")
    given = [models] if isinstance(models, str | Path) else models
    folder = Path(given[0]) if isinstance(given, list | tuple) and len(given) == 1 else None
    if folder is None or not (folder / RUN_FILE).is_file():
        return dict(values)
    record = read_record(folder / RUN_FILE)
    config, merged = record["config"], record["results"].get("merge") or {"weight": 1.0}
    tuned = _tuned_in(folder, record["status"], merged["weight"])
    base = config.get("model", IN_MEMORY)
    if record["command"] != "train" or tuned is None or base == IN_MEMORY:
        got = f"a run of `bixse {record['command']}`"
        got += " without a tuned model" if tuned is None else f", base model {base}" * (record["command"] == "train")
        raise InputError(
            f"{folder}: got {got}; expected a run of `bixse train` with its base model and a tuned model; fix: name "
            "both models, or train with `merge: {keep_tuned: true}`"
        )
    # not trust_remote_code: a folder must not decide that code is run
    shared = ("pairs", "dev", "dev_split", "guard", "guard_split", "guard_tolerance", "max_length")
    in_memory = Path(IN_MEMORY)
    of_run = {n: config[n] for n in shared if config.get(n) is not None and in_memory not in paths_in(config[n])}
    of_run |= {"documents": config["merge"]["documents"]} if config.get("merge") else {}
    for name in ("dev", "guard"):
        if values.get(name) is not None or values.get("weights") is not None:
            of_run = {key: value for key, value in of_run.items() if key not in (name, f"{name}_split")}
    share = merged["weight"] if tuned.name == MODEL_FOLDER else 1.0
    return {**of_run, **values, "models": [base, str(tuned)], "tuned_share": share}


def _tuned_in(folder: Path, status: str, weight: float) -> Path | None:
    """Return the model of a run that holds the trained weights; the base model alone (weight 0) does not."""
    steps = (path.name.removeprefix("checkpoint-") for path in (folder / CHECKPOINT_FOLDER).glob("checkpoint-*"))
    last = max((int(step) for step in steps if step.isdigit()), default=0)
    models = [folder / TUNED_FOLDER]
    models += [folder / MODEL_FOLDER] if status == "finished" and weight > 0 else []
    models += [folder / CHECKPOINT_FOLDER / f"checkpoint-{last}"]
    return next((path for path in models if path.is_dir()), None)
