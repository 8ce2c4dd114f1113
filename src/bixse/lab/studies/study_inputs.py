"""The inputs of a study, written once into its folder: training pairs, dev and test collections, the student."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from bixse.converting import transforms
from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.corpus import files_of_split
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_several, save_graded_pairs
from bixse.data.pydocs import load_pydocs
from bixse.data.task_instructions import load_instructions
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.encoders.loading.static import static_encoder
from bixse.encoders.relevance_model import save_whole
from bixse.errors import InputError
from bixse.files.files import hash_files
from bixse.lab.experiments import INPUTS_FOLDER
from bixse.lab.lab_config import PYDOCS, StudyConfig, StudyData
from bixse.relevance import GradeScale
from bixse.training.checks import check_not_trained_on

log = logging.getLogger(__name__)
STATIC = "static"
STATIC_DIMENSIONS = 128
"""Half of the usual number: faster, and enough to compare losses."""


@dataclass(frozen=True)
class StudyInputs:
    """The inputs of a study's runs."""

    pairs: Path
    dev: tuple[Path, ...]
    """The collections that choose a checkpoint."""
    dev_split: str
    tests: Mapping[str, Path]
    """Name -> collection to measure on, split test."""
    model: str
    min_relevant_grade: float
    extra_test: Mapping[str, Path] = field(default_factory=dict)
    """Name -> collection to measure on without a claim, split test."""
    exclude_self: bool = False


def prepare_inputs(config: StudyConfig, out: Path) -> StudyInputs:
    """Write the pairs and collections of a study below `out/inputs`, unless they are there."""
    folder = out / INPUTS_FOLDER
    model = config.model
    if model == STATIC:
        model = str(folder / STATIC)
        if not Path(model).is_dir():
            save_whole(static_encoder(build_encoder("demo", device="cpu"), STATIC_DIMENSIONS), folder / STATIC)
    data = config.data
    tests = _named(data.test) if data.pairs else {_name(data): folder / _name(data)}
    extra, path = _named(data.extra_test, tests), folder / "train.parquet"
    if not path.exists():
        pairs = load_several(list(data.pairs)) if data.pairs else _pairs_of_collection(data, folder)
        held_out = {}
        for name, test in {**tests, **extra}.items():
            collection = load_collection(test, ["test"])
            held_out[f"test {name}"] = {query: collection.queries[query] for query in collection.qrels["test"]}
            _warn(f"{name}/{line}" for line in collection.warnings)
        _warn(check_not_trained_on(held_out, pairs.queries, bool(config.train.get("allow_shared_queries"))))
        save_graded_pairs(pairs, path)
    dev, split = (data.dev, _dev_split(data.dev)) if data.pairs else (tuple(tests.values()), "dev")
    return StudyInputs(path, dev, split, tests, model, data.min_relevant_grade, extra, data.exclude_self)


def _pairs_of_collection(data: StudyData, folder: Path) -> Pairs:
    """Return the training pairs of a collection, whose splits are saved in the folder."""
    if data.collection == PYDOCS:
        complete = load_pydocs()
    else:
        path = Path(data.collection)
        loaded = load_collection(path, list(dict.fromkeys(data.splits or _splits_of(path))))
        _warn(f"{_name(data)}/{line}" for line in loaded.warnings)
        complete = Collection(_name(data), loaded.corpus, loaded.queries, loaded.qrels)
    collection = divided(complete, data)
    save_collection(collection, folder / collection.name)
    pairs = Pairs.from_collection(collection, "train", GradeScale(*data.scale))
    # some published collections hold judged documents without text, which teach nothing
    return Pairs.from_rows(row for row in pairs.rows() if row["document"])


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        log.warning("%s", line)


def input_hashes(config: StudyConfig) -> dict[str, str]:
    """Return content hashes of the files of a study. The version of the sample collection is in the run's record."""
    data = config.data
    files: dict[str, Path] = {f"pairs/{number}": path for number, path in enumerate(data.pairs)}
    if data.pairs:
        folders = [("test", folder, "test") for folder in data.test]
        folders += [("dev", folder, _dev_split(data.dev)) for folder in data.dev]
    else:
        folder = Path(data.collection)
        splits = () if data.collection == PYDOCS else data.splits or _splits_of(folder)
        folders = [("collection", folder, split) for split in splits]
    folders += [("extra_test", folder, "test") for folder in data.extra_test]
    for kind, folder, split in folders:
        files |= {
            f"{kind}/{folder.resolve().name}/{name}": path for name, path in files_of_split(folder, split).items()
        }
    hashes = hash_files(files) | model_hashes(config.model)
    instructions = config.train.get("instructions")
    if instructions is not None:
        hashes["instructions"] = load_instructions(Path(instructions)).content_hash()
    return hashes


def _dev_split(folders: tuple[Path, ...]) -> str:
    """Return dev if every collection has that split, else test."""
    for split in ("dev", "test"):
        if all((folder / "qrels" / f"{split}.tsv").is_file() for folder in folders):
            return split
    lacking = next(folder for folder in folders if not (folder / "qrels" / "test.tsv").is_file())
    raise InputError(
        f"{lacking}: got neither qrels/dev.tsv nor qrels/test.tsv; expected one of them, the same in every collection "
        "of `data.dev`; fix: check the path"
    )


def divided(collection: Collection, data: StudyData) -> Collection:
    """Return the collection with the splits train, dev and test, each with at least two queries."""
    splits = data.splits or (("train", "dev", "test") if {"train", "dev", "test"} <= set(collection.qrels) else None)
    if splits is None and len(collection.qrels) != 1:
        raise InputError(
            f"collection {collection.name!r}: got splits {', '.join(sorted(collection.qrels)) or 'none'}; expected "
            "train, dev and test, or one split to divide; fix: set `data.splits`"
        )
    if splits is not None:
        qrels = {name: collection.qrels[split] for name, split in zip(("train", "dev", "test"), splits, strict=True)}
    else:
        ends = {"train": data.shares[0], "dev": data.shares[0] + data.shares[1], "test": sum(data.shares)}
        parts: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in ends}
        for query_id, judged in next(iter(collection.qrels.values())).items():
            text = " ".join(collection.queries[query_id].casefold().split())  # equal texts get the same split
            position = int(hashlib.sha256(text.encode("utf-8")).hexdigest()[:12], 16) / 16**12  # 48 bits: exact
            # shares may sum to less than 1: the other queries are left out
            split = next((name for name, end in ends.items() if position < end), None)
            if split is not None:
                parts[split][query_id] = judged
        qrels = {name: dict(part) for name, part in parts.items()}
    for name, part in qrels.items():
        if len(part) < 2:
            raise InputError(
                f"collection {collection.name!r}: got {len(part)} queries to {name} on; expected at least 2; "
                "fix: name other `data.splits`, or change `data.shares`"
            )
    return Collection(collection.name, collection.corpus, collection.queries, qrels)


def _splits_of(folder: Path) -> tuple[str, ...]:
    splits = tuple(sorted(path.stem for path in (folder / "qrels").glob("*.tsv")))
    if not splits:
        raise InputError(
            f"{folder}: got no qrels/*.tsv; expected a collection folder with judgements; fix: check the path"
        )
    return ("train", "dev", "test") if {"train", "dev", "test"} <= set(splits) else splits


def _name(data: StudyData) -> str:
    return PYDOCS if data.collection == PYDOCS else Path(data.collection).resolve().name


def _named(folders: Sequence[Path], used: Iterable[str] = ()) -> dict[str, Path]:
    names = [*used, *(folder.resolve().name for folder in folders)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"data.test, data.extra_test: got two collections named {twice[0]!r}; expected names of their own; "
            "fix: rename a folder"
        )
    return {folder.resolve().name: folder for folder in folders}


def transformed(pairs: Pairs, settings: Mapping[str, Any], seed: int) -> Pairs:
    """Apply an arm's transforms in the order below. The draws of a `seed` are the same for every loss.

    `settings` holds any of: `labels_per_query` (documents to keep per query, None for all), `cutoff` (lowest relevance
    to keep), `size` (number of pairs to keep, stratified). Then follow `binarise` (lowest relevance that becomes 1, all
    others 0) and `noise` (probability of swapped labels). `labels` is the budget for `labels_per_query`, None for all.
    """
    if settings.get("labels_per_query"):
        pairs = sample_label_budget(pairs, settings["labels_per_query"], settings.get("labels"), seed)
    steps = {name: settings.get(name) for name in ("cutoff", "size", "binarise")}
    pairs = transforms.transformed(pairs, seed=seed, **steps)
    if settings.get("noise"):
        pairs = transforms.transformed(pairs, noise=settings["noise"], seed=seed)
    if not len(pairs):
        raise InputError(f"pairs: got none after {dict(settings)}; expected some; fix: lower the cutoff, or add pairs")
    return pairs


def sample_label_budget(pairs: Pairs, per_query: int, labels: int | None, seed: int) -> Pairs:
    """Draw the pairs of a label budget: queries in random order, `per_query` random documents per query."""
    # draws ignore relevance: it is unknown before a label is paid; a larger budget contains a smaller one's queries
    groups = pairs.groups()
    if labels is None:
        labels = int(np.minimum(per_query, np.diff(groups.offsets)).sum())
    order = np.random.default_rng(seed).permutation(len(groups)).tolist()
    drawn = (np.random.default_rng((seed, number)).permutation(groups.rows(number))[:per_query] for number in order)
    rows = list(islice(chain.from_iterable(drawn), labels))
    if len(rows) < labels:
        raise InputError(
            f"labels: got a budget of {labels}, {per_query} per query; expected at most {len(rows)}, the number of "
            f"labels of {len(groups)} queries; fix: lower the budget, or draw more labels per query"
        )
    return pairs.select(np.array(rows))
