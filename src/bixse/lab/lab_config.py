"""Settings of quickstart, sweeps and studies, and the presets that come with bixse."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import yaml
from pydantic import AfterValidator, Field, field_validator, model_validator

from bixse.encoders.loading.precision import Setting
from bixse.engine import PlaceSettings
from bixse.errors import SEEDS, InputError, check_known, did_you_mean
from bixse.losses.catalogue import LOSSES
from bixse.settings import Flag, Settings, read_settings
from bixse.training.config import TrainConfig


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("expected different seeds; fix: name each seed once")
    return seeds


Seeds: TypeAlias = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=SEEDS)], ...], Field(min_length=1), AfterValidator(_different)
]


class QuickstartConfig(Settings):
    """Settings of `bixse quickstart`. The fields are also the keys of its YAML file."""

    fast: bool = False
    """Train on fewer documents and shorter texts, for a quick look."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of training."""
    compare: Annotated[tuple[str, ...], Flag(metavar="LOSS")] = ()
    """Losses to train on the same pairs in addition to BiXSE, for example infonce."""

    @field_validator("compare")
    @classmethod
    def _other_losses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        others = [word for word in LOSSES if word != "bixse"]
        wrong = [word for word in value if word not in others]
        if wrong or len(set(value)) < len(value):
            hint = did_you_mean(wrong[0], others) if wrong else "name each once"
            raise ValueError(f"expected one or more of {', '.join(others)}, each once; fix: {hint}")
        return value


class SweepConfig(PlaceSettings):
    """Settings of `bixse sweep`, also the keys of its YAML file. Relative paths start at the folder of that file."""

    base: dict[str, Any] | Path
    """Settings of `TrainConfig` that all arms share, or the YAML file of `bixse train` that holds them."""
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(min_length=1)
    """Setting (a dotted key of `TrainConfig`) -> a list of values. Every combination of the values is an arm."""
    seeds: Seeds | None = None
    """Training seeds of each arm. Arms are ranked by their mean over the seeds. null: the seed of `base`."""
    precision: Setting | None = None
    """The dtype that models compute in. null: the setting of `base`."""
    jobs: int | None = 1
    """Number of parallel runs, each in its own process. null: one per GPU, or one per CPU core."""

    @field_validator("base", mode="before")
    @classmethod
    def _mapping_or_path(cls, value: Any) -> Any:
        if not isinstance(value, (str, Path, Mapping)):
            raise ValueError("expected settings of `bixse train`, or the path of their YAML file; fix: base: run.yaml")
        return value

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        moved = super().from_folder(values, folder)
        for name in ("base", "vary"):
            if isinstance(values.get(name), Mapping):
                moved[name] = TrainConfig.from_folder(values[name], folder)
        return moved

    def base_settings(self) -> dict[str, Any]:
        """The settings that all arms share, read from the file if `base` is a path."""
        base = self.base
        if isinstance(base, Path):
            base = TrainConfig.from_folder(read_settings(base), base.parent)
        return base if self.precision is None else {**base, "precision": self.precision}


DEFAULT_PRESET = "laptop"
"""The preset if neither a preset nor a file is given."""
PYDOCS = "pydocs"
"""The name of the sample collection."""
OWNED = ("pairs", "dev", "dev_split", "model", "seed", "min_relevant_grade", "report_to", "loss")
"""Training settings that a study sets itself."""


class StudyData(Settings):
    """The data of a study: one collection, or files of pairs with collections to test on."""

    collection: str = PYDOCS
    """Folder in the BEIR layout, or "pydocs". It provides training pairs, dev and test, if `pairs` is not given."""
    splits: tuple[str, str, str] | None = None
    """Splits of the collection for training, dev and test. null: train, dev and test if they exist. Otherwise the
    queries of the only split are divided by `shares`."""
    shares: tuple[float, float, float] = (0.5, 0.1, 0.4)
    """Shares of queries for training, dev and test if there is one split, divided by a hash of the query text."""
    scale: tuple[float, float] = (0, 3)
    """Lowest and highest grade of the collection."""
    min_relevant_grade: float = Field(default=2, gt=0)
    """Lowest relevant grade for recall and MRR."""
    exclude_self: bool = False
    """Remove the document with the query's id from the query's ranking, if queries are also documents."""
    pairs: tuple[Path, ...] = ()
    """Files of graded pairs to train on instead of the collection."""
    dev: tuple[Path, ...] = ()
    """Collections that choose the checkpoint (split dev, else test). Without them, the last weights are used."""
    test: tuple[Path, ...] = ()
    """Collections to measure on (split test) instead of the collection. Each has equal weight."""
    extra_test: tuple[Path, ...] = ()
    """Further collections to measure on (split test), in a table of their own without claims."""

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        moved = super().from_folder(values, folder)
        if isinstance(moved.get("collection"), str) and moved["collection"] != PYDOCS:
            moved["collection"] = str(folder / moved["collection"])
        return moved

    @model_validator(mode="after")
    def _usable(self) -> StudyData:
        if bool(self.pairs) != bool(self.test) or (self.dev and not self.pairs):
            raise ValueError("expected both pairs and test, or neither; fix: add what is missing (dev needs both)")
        if not self.scale[0] < self.scale[1]:
            raise ValueError("expected scale with the lowest grade first; fix: scale: [0, 3] for grades 0 to 3")
        if min(self.shares) <= 0 or sum(self.shares) > 1 + 1e-9:
            raise ValueError("expected three shares above 0 with a sum of at most 1; fix: shares: [0.6, 0.2, 0.2]")
        return self


class StudyConfig(PlaceSettings):
    """Settings of `bixse study`. The fields are also the keys of its YAML file."""

    study: Annotated[str, Flag(positional=True, metavar="STUDY")]
    """Name of the study. --list shows all."""
    preset: str | None = None
    """Settings to start from. A file overrides them, and flags override both. Without preset and file: "laptop"."""
    data: Annotated[StudyData, Flag(flat=True)] = Field(default_factory=StudyData)
    """The data for training, dev and test."""
    model: str = "demo"
    """Encoder to train: folder, hub name, "demo" or "static" (token embeddings of the demo model). Presets set it."""
    train: dict[str, Any] = Field(default_factory=dict)
    """Settings of `TrainConfig` that all arms share."""
    precision: Setting | None = None
    """The dtype that models compute in. null: the setting of `train`."""
    per_loss: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Loss -> settings of `TrainConfig` for its arms, on top."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Values of the study instead of its defaults. `bixse study --list` shows the keys."""
    seeds: Seeds = (0, 1, 2, 3, 4)
    """Training seeds. Every arm is trained once per seed."""
    jobs: int | None = None
    """Number of parallel runs, each in its own process. null: one per GPU, or one per CPU core."""
    keep_models: bool = False
    """Keep the trained models in the folders of the runs."""
    note: str = ""
    """A line for the findings that describes this configuration."""

    @classmethod
    def load(cls, path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Load a preset, with the keys of a YAML file and then dotted overrides on top.

        A preset's `studies` section holds keys that apply to one study alone.
        """
        given = dict(overrides or {})
        file = cls.from_folder(read_settings(path), path.parent) if path is not None else {}
        read = {"preset": None if path is not None else DEFAULT_PRESET, "study": "", **file, **given}
        texts = (read[name] for name in ("preset", "study"))  # a list of one stands for its value
        preset, study = (text[0] if isinstance(text, list) and len(text) == 1 else text for text in texts)
        if "data.collection" in given and not {"data.scale", "data.min_relevant_grade"} <= set(given):
            raise InputError(
                "--collection: got it without --scale or --min-relevant-grade; expected all three, since the file does "
                "not show grades that nobody gave; fix: add for example --scale 0 3 --min-relevant-grade 2"
            )
        values: dict[str, Any] = {}
        if preset is not None:
            presets = _presets()
            check_known("preset", str(preset), presets)
            values = presets[str(preset)]
            values = merged(values, values.pop("studies", {}).get(str(study), {}))
        config = super().load(None, {**merged(values, file), **given, "preset": preset})
        if "data.collection" in given and config.data.pairs:
            raise InputError(
                "--collection: got it in addition to files of pairs in the configuration; expected one of the two; "
                "fix: use another preset, or name the collections in `data.dev` and `data.test`"
            )
        return config

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        moved = super().from_folder(values, folder)
        if isinstance(values.get("train"), dict):
            moved["train"] = TrainConfig.from_folder(values["train"], folder)
        return moved

    @property
    def shared(self) -> dict[str, Any]:
        """Settings of `TrainConfig` that all arms share, including the precision."""
        return self.train if self.precision is None else {**self.train, "precision": self.precision}

    @field_validator("per_loss")
    @classmethod
    def _known_losses(cls, value: dict[str, Any]) -> dict[str, Any]:
        for loss in value:
            if loss not in LOSSES:
                raise ValueError(f"expected losses as keys, not {loss!r}; fix: {did_you_mean(loss, LOSSES)}")
        return value

    @field_validator("train", "per_loss")
    @classmethod
    def _not_owned(cls, value: dict[str, Any]) -> dict[str, Any]:
        sections = [value, *(part for part in value.values() if isinstance(part, dict))]
        owned = sorted({key for section in sections for key in section if key in OWNED})
        if owned:
            raise ValueError(f"expected no {', '.join(owned)}, which the study sets; fix: use the study's keys")
        return value


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return list(_presets())


def _presets() -> dict[str, dict[str, Any]]:
    """Return the presets by name; a file with a table `models` holds one per model, with its settings on top."""
    presets: dict[str, dict[str, Any]] = {}
    for file in resources.files("bixse.lab").joinpath("presets").iterdir():
        shared = yaml.safe_load(file.read_text(encoding="utf-8"))
        name, models = file.name.removesuffix(".yaml"), shared.pop("models", {"": {}})
        presets |= {f"{name}-{model}".rstrip("-"): merged(shared, settings) for model, settings in models.items()}
    return dict(sorted(presets.items()))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings key by key. Values of `above` win."""
    result = dict(below)
    for key, value in above.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result
