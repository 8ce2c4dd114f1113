"""`StudyConfig`: what a study runs on, validated once; and the presets that come with bixse."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field, field_validator, model_validator

from bixse.data.io.files import read_settings
from bixse.errors import SEEDS, ConfigError, InputError, did_you_mean
from bixse.losses.catalogue import LOSSES
from bixse.settings import Settings
from bixse.studies.engine.preset_names import preset_names
from bixse.training.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

PYDOCS = "pydocs"
"""The word for the sample collection."""
OWNED = ("pairs", "dev", "dev_split", "model", "seed", "min_relevant_grade", "report_to", "loss")
"""Settings of training that a study sets itself."""


class StudyData(Settings):
    """What a study trains, chooses and measures on: one collection, or files of pairs and collections beside them."""

    collection: str = PYDOCS
    """Folder in the BEIR layout, or "pydocs"; gives all that the other keys do not."""
    splits: tuple[str, str, str] | None = None
    """Splits of the collection to train, choose and measure on. Null: train, dev and test where the collection has
    them; else the queries of its only split are divided by `shares`."""
    shares: tuple[float, float, float] = (0.5, 0.1, 0.4)
    """Shares of the queries to train, choose and measure on where there is one split; by a hash of the query's text."""
    scale: tuple[float, float] = (0, 3)
    """Lowest and highest grade of the collection."""
    min_relevant_grade: float = Field(default=2, gt=0)
    """Grade from which a document is relevant for recall and MRR."""
    exclude_self: bool = False
    """Leave the document whose id equals the query's id out of its answers, where queries are also documents."""
    pairs: tuple[Path, ...] = ()
    """Files of graded pairs to train on, in the place of the collection's."""
    dev: tuple[Path, ...] = ()
    """Collections to choose the checkpoint on (split dev, else test), in its place."""
    test: tuple[Path, ...] = ()
    """Collections to measure on (split test), in its place; each counts as much as the others."""

    @model_validator(mode="after")
    def _usable(self) -> StudyData:
        if bool(self.pairs) != bool(self.test) or bool(self.pairs) != bool(self.dev):
            raise ValueError("expected pairs, dev and test together, or none of them")
        if not self.scale[0] < self.scale[1]:
            raise ValueError("expected scale: [lowest, highest] with lowest below highest")
        if min(self.shares) <= 0 or sum(self.shares) > 1 + 1e-9:
            raise ValueError("expected three shares above 0 with a sum of at most 1")
        return self


class EncoderSize(Settings):
    """The size of an encoder, for a plan of memory and time without its files."""

    parameters: float = Field(gt=0)
    """Weights in all."""
    trained: float | None = Field(default=None, gt=0)
    """Weights that are trained; null: all."""
    layers: int = Field(ge=1)
    """Transformer layers."""
    hidden: int = Field(ge=1)
    """Width of a token's state."""
    query_tokens: int = Field(default=32, ge=1)
    """Assumed mean length of a query with its instruction."""
    document_tokens: int = Field(default=256, ge=1)
    """Assumed mean length of a document."""
    training_rows: int = Field(default=1_000_000, ge=1)
    """Assumed rows of training data where the files are not there."""


class StudyConfig(Settings):
    """Settings of `bixse study`; also the keys of its YAML file.

    Example:
        >>> config = StudyConfig(seeds=[0, 1], values={"losses": ["bixse", "infonce"]})
        >>> config.model, config.data.collection
        ('demo', 'pydocs')
    """

    data: StudyData = Field(default_factory=StudyData)
    """What is trained, chosen and measured on."""
    model: str = "demo"
    """Folder or hub name of the encoder that is trained; "demo", or "static": the demo model's token embeddings."""
    train: dict[str, Any] = Field(default_factory=dict)
    """Settings of `TrainConfig` that all cells share."""
    per_loss: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Loss -> settings of `TrainConfig` for its cells, on top."""
    values: dict[str, Any] = Field(default_factory=dict)
    """What the study goes through, in the place of its defaults; `bixse study --list` shows the keys."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=SEEDS)], ...] = Field(default=(0, 1, 2, 3, 4), min_length=1)
    """Training seeds; every cell is trained once with each."""
    size: EncoderSize | None = None
    """The encoder's size, for `--dry-run` where its files are not there."""
    note: str = ""
    """One line for the findings: what this configuration is."""

    @field_validator("seeds")
    @classmethod
    def _different(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("expected different seeds")
        return value

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
            raise ValueError(f"expected no {', '.join(owned)}, which the study sets; fix: use its own keys")
        return value


def load_study_config(
    study: str, preset: str | None, path: Path | None, flags: Mapping[str, Any] | None = None
) -> StudyConfig:
    """A study's configuration: a preset, the keys of a YAML file on top, and those of the command line on top of both.

    A preset's `studies` section holds keys for one study alone. Relative paths in the file are taken from its folder.

    Raises:
        InputError: an unknown preset, or a file that cannot be read.
        ConfigError: an unknown key or a value outside its range.
    """
    settings: dict[str, Any] = {}
    if preset is not None:
        if preset not in preset_names():
            raise InputError(
                f"preset: got {preset!r}; expected one of {', '.join(preset_names())}; "
                f"fix: {did_you_mean(preset, preset_names())}"
            )
        text = resources.files("bixse.studies").joinpath("presets", f"{preset}.yaml").read_text(encoding="utf-8")
        settings = yaml.safe_load(text)
        own = settings.pop("studies", {}).get(study, {})
        settings = merged(settings, own)
    if path is not None:
        settings = merged(settings, _from_its_folder(read_settings(path), path.parent))
    return StudyConfig.load(None, merged(settings, flags or {}))


def _from_its_folder(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings of a file with its relative paths taken from its folder."""
    data = settings.get("data")
    if isinstance(data, dict):
        data = StudyData.from_folder(data, folder)
        if isinstance(data.get("collection"), str) and data["collection"] != PYDOCS:
            data = {**data, "collection": str(folder / data["collection"])}
        settings = {**settings, "data": data}
    if isinstance(settings.get("train"), dict):
        settings = {**settings, "train": TrainConfig.from_folder(settings["train"], folder)}
    return settings


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others on top; mappings are merged key by key.

    Example:
        >>> merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}})
        {'a': {'x': 1, 'y': 4}, 'b': 3}
    """
    result = dict(below)
    for key, value in above.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """A cell's settings, checked.

    Raises:
        ConfigError: an unknown key or a value outside its range.
    """
    try:
        return TrainConfig.load(None, settings)
    except ConfigError as error:
        raise ConfigError(f"study: the settings of a cell cannot be used\n{error}") from error
