"""The inputs of a run, by path or in memory: models, pairs, dev and guard collections; how they are read and hashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sentence_transformers import SentenceTransformer

from bixse.data.collection_folder import joined_collection, read_folder
from bixse.data.corpus import JudgedCorpus, as_collection, check_split, files_of_split, is_path
from bixse.data.pairs_files import load_several
from bixse.encoders.loading.build import IN_MEMORY
from bixse.errors import InputError
from bixse.files.files import hash_files
from bixse.files.run_folder import in_run
from bixse.settings import paths_in
from bixse.training.dev_evaluation import EvalCorpus, EvalQueries

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pairs
    from bixse.training.dev_evaluation import Role


PairsSource: TypeAlias = "Sequence[Path] | Pairs"


class Split(NamedTuple):
    """A split of a collection folder, or of a collection in memory, and its role."""

    source: Path | JudgedCorpus
    split: str
    role: Role

    @property
    def name(self) -> str:
        return self.source.name if isinstance(self.source, JudgedCorpus) else self.source.resolve().name


class Sources(NamedTuple):
    """The inputs of a run, each by its path or in memory."""

    models: Sequence[str | SentenceTransformer]
    pairs: PairsSource
    """Empty for none."""
    splits: Sequence[Split]


def model_source(model: str | Path | SentenceTransformer) -> str | SentenceTransformer:
    """Return the name or folder of a model as a text, or a model in memory; raise InputError for anything else."""
    if not isinstance(model, str | Path | SentenceTransformer):
        raise InputError(
            f"model: got {type(model).__name__}; expected a name, a folder or a SentenceTransformer; fix: give the "
            "model first and settings as keywords, as in bixse.train('demo', pairs, seed=1)"
        )
    return model if isinstance(model, SentenceTransformer) else in_run(str(model), "model")


def given_collections(
    dev: Any, guard: Any, settings: Mapping[str, Any]
) -> tuple[list[Path | JudgedCorpus], dict[str, list[Path | str]]]:
    """Return dev and guard collections, and the settings that name them: a path, or a word for one in memory."""
    sources = {
        "dev": _collections_of(dev, settings.get("dev_split", "dev"), "dev"),
        "guard": _collections_of(guard, settings.get("guard_split", "test"), "guard"),
    }
    named: dict[str, list[Path | str]] = {
        role: [each if isinstance(each, Path) else IN_MEMORY for each in several]
        for role, several in sources.items()
        if several
    }
    return [*sources["dev"], *sources["guard"]], named


def _collections_of(given: Any, split: str | Sequence[str], name: str) -> list[Path | JudgedCorpus]:
    """Return one collection or several, or none: folders as paths, and what `as_collection` takes under `name`.

    Objects have the judgements of their split alone: `split` has one for all, or one per collection.
    """
    is_one = not isinstance(given, list | tuple) or any(isinstance(each, Mapping) for each in given)
    several: list[Path | JudgedCorpus] = []
    for number, each in enumerate([given] if is_one and given is not None else given or ()):
        if is_path(each):
            several.append(Path(each))
            continue
        part = split if isinstance(split, str) else split[min(number, len(split) - 1)]
        held = as_collection(each, part)
        numbered = name if is_one else f"{name}-{number + 1}"
        several.append(replace(held, name=numbered, qrels={part: held.qrels[part]}))
    return several


def read_pairs(source: PairsSource) -> tuple[Pairs, str, dict[str, str]]:
    """Return pairs, their name in messages, and the hashes of their content."""
    if not isinstance(source, Sequence):
        return source, "pairs", {"pairs": source.content_hash()}
    names = ["pairs"] if len(source) == 1 else [f"pairs/{path.stem}" for path in source]
    pairs = load_several(source)
    return pairs, ", ".join(map(str, source)), hash_files(dict(zip(names, source, strict=True)))


def splits_of(config: Any, given: Sequence[Path | JudgedCorpus] = ()) -> list[Split]:
    """Return dev and guard splits of settings of train or merge; `given` collections replace the paths, in order."""
    dev, guard = paths_in(config.dev), paths_in(config.guard)
    of_guard = [config.guard_split] * len(guard) if isinstance(config.guard_split, str) else config.guard_split
    parts: list[tuple[str, Role]] = [(config.dev_split, "dev") for _ in dev] + [(part, "guard") for part in of_guard]
    return [Split(source, *part) for source, part in zip(given or [*dev, *guard], parts, strict=True)]


def load_eval_corpora(splits: Sequence[Split], documents: int | None) -> list[EvalCorpus]:
    """Read and check collections; each weight searches `documents` documents.

    Splits of one folder share its corpus.
    """
    sources = [each.name for each in splits]
    names = [
        name if sources.count(name) == 1 else f"{name}/{each.split}" for name, each in zip(sources, splits, strict=True)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"dev and guard: got two collections named {twice[0]!r}; expected distinct names, under which the "
            "figures are shown; fix: rename a folder, or leave one out"
        )
    parts: dict[object, list[tuple[str, Split]]] = {}
    for name, each in zip(names, splits, strict=True):
        parts.setdefault(each.source.resolve() if isinstance(each.source, Path) else name, []).append((name, each))
    loaded = []
    for several in parts.values():
        source = several[0][1].source
        if isinstance(source, Path):
            collection = read_folder(source, list(dict.fromkeys(each.split for _, each in several)))
        else:
            collection = joined_collection(source, dict.fromkeys(source.qrels, Path(source.name)))
        sets = [EvalQueries(n, collection.queries, collection.qrels[each.split], each.role) for n, each in several]
        texts = {name: document.content for name, document in collection.corpus.items()}
        loaded.append(EvalCorpus(collection.name, texts, tuple(sets), documents, collection.warnings))
    return loaded


def split_hashes(splits: Sequence[Split]) -> dict[str, str]:
    """Return content hashes of splits, keyed by role, and by name too if a role has several.

    A folder has a hash per file, a collection in memory has one.
    """
    hashes: dict[str, str] = {}
    for each in splits:
        alone = sum(other.role == each.role for other in splits) == 1
        where = each.role if alone else f"{each.role}/{each.name}/{each.split}"
        if isinstance(each.source, JudgedCorpus):
            hashes[where] = each.source.hash
            continue
        check_split(each.source, each.split)
        hashes |= hash_files({f"{where}/{n}": path for n, path in files_of_split(each.source, each.split).items()})
    return hashes
