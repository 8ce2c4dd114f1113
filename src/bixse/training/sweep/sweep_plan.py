"""The cells of a sweep: every training run, checked before the first one begins."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from bixse.data.collection_files import files_of_split
from bixse.data.io.files import file_hash, read_settings
from bixse.data.task_instructions import load_instructions
from bixse.encoders.identity import model_hashes
from bixse.errors import ERRORS_SHOWN, ConfigError, InputError
from bixse.losses.catalogue import check_loss_options
from bixse.settings import paths_in
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import dev_hashes
from bixse.training.sweep.sweep_config import MOST_CELLS, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.training.sweep.sweep_config import SweepConfig

NAME_LENGTH = 80
"""Characters of a cell's folder at most."""


@dataclass(frozen=True)
class Cell:
    """One combination of the varied settings."""

    number: int
    """From 1 on."""
    settings: dict[str, Any]
    """Varied key -> its value, as the training run reads it."""
    configs: tuple[TrainConfig, ...]
    """The training runs, one a seed."""

    @property
    def label(self) -> str:
        """The varied settings in words."""
        return _label(self.settings)

    @property
    def folder(self) -> str:
        """Name of the cell's folder: readable, and a hash where that is too long or holds signs no folder may."""
        plain = self.label.replace(", ", ",")
        name = re.sub(r"[^\w.+=,-]", "_", plain, flags=re.ASCII)
        if name == plain and len(name) <= NAME_LENGTH:
            return name
        return f"{name[: NAME_LENGTH - 9]}-{hashlib.sha256(plain.encode('utf-8', 'replace')).hexdigest()[:8]}"


def run_folder(cell: Cell, config: TrainConfig) -> str:
    """Folder of a training run within that of all cells: the cell's own, or one in it where it has several seeds."""
    return cell.folder if len(cell.configs) == 1 else f"{cell.folder}/seed-{config.seed}"


def base_settings(config: SweepConfig) -> dict[str, Any]:
    """The settings that all cells share, from their file where `base` names one.

    Raises:
        InputError: the file cannot be read.
    """
    if isinstance(config.base, Path):
        return TrainConfig.from_folder(read_settings(config.base), config.base.parent)
    return config.base


def plan_cells(config: SweepConfig) -> list[Cell]:
    """Every cell of a sweep with its validated training settings, in order; one that equals an earlier is left out.

    A random cell depends on the seed of the sweep and its own number alone.

    Raises:
        InputError: the file that `base` names cannot be read.
        ConfigError: a varied key is unknown or may not vary, a cell's settings are outside their range, or there is
            no dev collection to rank by; all faults together, each with the cells it concerns.

    Example:
        >>> from bixse.training.sweep.sweep_config import SweepConfig
        >>> vary = {"scale": [10, 20], "optimizer.epochs": [3]}
        >>> config = SweepConfig(base={"pairs": "pairs.jsonl", "dev": "toy"}, vary=vary)
        >>> [cell.label for cell in plan_cells(config)]
        ['scale=10, epochs=3', 'scale=20, epochs=3']
    """
    base = base_settings(config)
    _refuse(_key_faults(config))
    cells: dict[str, Cell] = {}
    faults: dict[str, list[str]] = {}
    draws = 0
    for choice in _choices(config):
        draws += 1
        try:
            train_config = TrainConfig.load(None, deepcopy({**base, **choice})).resolved()
        except ConfigError as error:
            found = str(error).splitlines()[1:]
        else:
            found = _cell_faults(train_config, choice)
            settings = {key: _as_read(train_config, key, value) for key, value in choice.items()}
            seeds = config.seeds or [train_config.seed]
            configs = tuple(train_config.model_copy(update={"seed": seed}) for seed in seeds)
            cells.setdefault(train_config.model_dump_json(), Cell(len(cells) + 1, settings, configs))
        for line in found:
            faults.setdefault(line, []).append(_label(choice))
    _refuse([line + _where(labels, draws) for line, labels in faults.items()])
    folders = Counter(cell.folder.casefold() for cell in cells.values())
    _refuse(
        [
            f"  vary: got two cells for the folder {name!r}; expected values that differ as text; fix: drop one"
            for name, number in folders.items()
            if number > 1
        ]
    )
    return list(cells.values())


def input_hashes(cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Run folder -> hashes of what the run reads, a name a setting.

    Raises:
        InputError: a file or folder is not there.
    """

    @cache
    def content(files: tuple[Path, ...]) -> str:
        for path in files:
            if not path.is_file():
                raise InputError(f"{path}: got no such file; expected one to read; fix: correct the path in `base`")
        return _hash([file_hash(path) for path in files])

    @cache
    def model_content(model: str) -> str:
        return _hash(model_hashes(model))

    @cache
    def table_content(path: Path) -> str:
        return load_instructions(path).content_hash()

    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        for run in cell.configs:
            hashes = {"model": model_content(run.model)}
            for name in TrainConfig.path_settings():
                files = paths_in(getattr(run, name))
                if name == "dev":
                    files = [folder / part for folder in files for part in files_of_split(run.dev_split)]
                if name == "guard" and files:
                    hashes[name] = _hash(
                        {key: value for key, value in dev_hashes(run).items() if key.startswith("guard/")}
                    )
                    continue
                if name == "instructions" and files:
                    hashes[name] = table_content(files[0])
                    continue
                hashes[name] = content(tuple(files))
            found[run_folder(cell, run)] = hashes
    return found


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def setting(config: BaseModel, key: str) -> Any:
    """The value under a dotted key; None where its section is not there.

    Example:
        >>> setting(TrainConfig(pairs="pairs.csv"), "optimizer.batch_size")
        16
    """
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def show(value: Any) -> str:
    """A setting's value in a table, a label or a name.

    Example:
        >>> show(1e-4), show(20.0), show(True), show(None), show({"bias": -3.0}), show("bixse")
        ('0.0001', '20', 'true', 'null', '{"bias": -3.0}', 'bixse')
    """
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return json.dumps(value, default=str)


def _as_read(config: TrainConfig, key: str, given: Any) -> Any:
    """A varied value as the training run reads it ("1e-4" of a YAML file is a text); a section as it was given."""
    value = setting(config, key)
    return given if isinstance(value, BaseModel) else value


def _label(choice: Mapping[str, Any]) -> str:
    """`learning_rate=0.0001, scale=10`: keys without their section where that leaves them distinct."""
    short = [key.rpartition(".")[2] for key in choice]
    names = {key: name if short.count(name) == 1 else key for key, name in zip(choice, short, strict=True)}
    return ", ".join(f"{names[key]}={show(value)}" for key, value in choice.items())


def _choices(config: SweepConfig) -> Iterator[dict[str, Any]]:
    """The varied settings of each cell, as given."""
    if config.search == "grid":
        for values in itertools.product(*config.vary.values()):
            yield dict(zip(config.vary, values, strict=True))
        return
    for number in range(1, (config.cells or 0) + 1):
        yield {key: _draw(values, f"{config.seed}/{number}/{key}") for key, values in config.vary.items()}


def _draw(values: list[Any] | Range, seed: str) -> Any:
    share = random.Random(seed).random()
    return values.draw(share) if isinstance(values, Range) else values[int(share * len(values))]


def _key_faults(config: SweepConfig) -> list[str]:
    """What is wrong with the sweep itself, before there are cells."""
    faults = []
    if config.search == "random" and config.cells is None:
        faults.append("  cells: got nothing; expected a number for random search; fix: set `cells`, such as 20")
    if config.search == "grid" and config.cells is not None:
        faults.append(
            f"  cells: got {config.cells}; expected none for a grid, which takes all combinations; "
            "fix: drop it, or set `search: random`"
        )
    if config.seeds is not None and len(set(config.seeds)) < len(config.seeds):
        faults.append("  seeds: got one twice; expected different ones; fix: drop the second")
    for key, values in config.vary.items():
        name = f"  vary.{key}: got"
        if isinstance(values, Range) and config.search == "grid":
            faults.append(f"{name} a range; expected a list in a grid; fix: list values, or set `search: random`")
        if key == "seed":
            faults.append(f"{name} the training seed; expected it as `seeds`: a cell is ranked by the mean over them; "
                          "fix: move the list to `seeds`")  # fmt: skip
        if key in ("dev", "merge", "merge.documents") or key.startswith(("dev_", "guard")):
            faults.append(f"{name} a setting of the measure; expected one of training: figures on other queries or "
                          "documents do not compare; fix: set it in `base`")  # fmt: skip
        for other in config.vary:
            if key.startswith(f"{other}."):
                faults.append(f"{name} a key within {other!r}, which varies too; expected one of the two; "
                              "fix: drop one")  # fmt: skip
    if not faults and config.search == "grid":
        number = math.prod(len(values) for values in config.vary.values())
        if number > MOST_CELLS:
            faults.append(f"  vary: got {number:,} combinations; expected at most {MOST_CELLS:,}; "
                          "fix: fewer values, or `search: random`")  # fmt: skip
    return faults


def _cell_faults(config: TrainConfig, choice: Mapping[str, Any]) -> list[str]:
    """What is wrong with a cell whose settings are within their ranges."""
    faults = []
    if config.dev is None:
        faults.append("  dev: got nothing; expected a collection folder to rank the cells by; fix: set it in `base`")
    for key in choice:
        section = key.rpartition(".")[0]
        if section and setting(config, section) is None:  # `lora: null` in base: the cell's value is nowhere
            faults.append(f"  {key}: got no section {section!r}; expected one; "
                          f"fix: write `{section}: {{}}` in `base`")  # fmt: skip
    try:
        check_loss_options(config.loss, config.loss_options)
    except ConfigError as error:
        faults.append(f"  {error}")
    return faults


def _where(labels: list[str], cells: int) -> str:
    """Which cells a fault concerns."""
    if len(labels) == cells:
        return " (in every cell)"
    others = len(labels) - 1
    return f" (in cell {labels[0]}{f' and {others} more' if others else ''})"


def _refuse(faults: list[str]) -> None:
    """Raise what was found, if anything."""
    if faults:
        head = f"sweep: {len(faults)} fault{'s' if len(faults) != 1 else ''}"
        rest = [f"  ... and {len(faults) - ERRORS_SHOWN} more"] if len(faults) > ERRORS_SHOWN else []
        raise ConfigError("\n".join([head, *faults[:ERRORS_SHOWN], *rest]))
