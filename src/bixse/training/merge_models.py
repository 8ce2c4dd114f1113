"""Merge models that exist already, for `bixse merge`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter

from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import paths_or_pairs
from bixse.data.run import open_run
from bixse.encoders.head import RelevanceHead, at_lengths
from bixse.encoders.loading.build import IN_MEMORY, build_encoder, model_hashes
from bixse.encoders.relevance_model import save_whole
from bixse.encoders.weights import Weights, mean_weights, take_map, trained_weights
from bixse.errors import ModelError
from bixse.files.files import alone_in, storage_errors, work_folder
from bixse.rendering.table import Cell, Table
from bixse.settings import paths_in
from bixse.training.checks import check_held_out
from bixse.training.config import MODEL_FOLDER
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.merge import MergeResult, refitted_head, set_best_weights
from bixse.training.merge_config import MergeModelsConfig, with_settings_of_run
from bixse.training.sources import (
    Sources,
    given_collections,
    load_eval_corpora,
    model_source,
    read_pairs,
    split_hashes,
    splits_of,
)

if TYPE_CHECKING:
    import pandas
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.relevance_model import RelevanceModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergedModel:
    """The result of a merge."""

    model_path: Path
    result: MergeResult
    warnings: list[str]
    reused: bool = False


@dataclass(frozen=True)
class Merged(Table):
    """A merged model in memory, and the figures behind its weight; prints nDCG@10 at each scored weight.

    Example:
        ::

            merged = merge("demo", trained.model, dev=dev)
            merged.weight, merged.table.loc[merged.weight, "dev"]
    """

    model: RelevanceModel
    result: MergeResult

    @property
    def weight(self) -> float:
        """The share w of (1 - w) base + w tuned."""
        return self.result.given[-1] if self.result.given else self.result.weight

    @property
    def table(self) -> pandas.DataFrame:
        """The nDCG@10 as a frame: one row per scored weight, one column per collection."""
        import pandas

        scores = {point.weight: point.scores for point in self.result.points} or {self.weight: {}}
        return pandas.DataFrame.from_dict(scores, orient="index").rename_axis("weight")

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        return self.result.cells()


def merge(
    base: str | Path | SentenceTransformer,
    tuned: Any = None,
    *,
    dev: Any = None,
    guard: Any = None,
    pairs: Any = None,
    out: str | Path | None = None,
    verbose: bool = True,
    **settings: Any,
) -> Merged:
    """Merge the weights of a base model and of models that were tuned from it.

    Args:
        base: a name, a folder, or a `SentenceTransformer`, which stays as it is; or the folder of a run of `train`,
            whose base and tuned model are merged again. Its dev, guard and pairs are the defaults.
        tuned: a tuned model in the same forms, or a list of several, whose mean counts; None for a run.
        dev: a collection that chooses the weight, in the forms of `train`; or give `weights`, one per model.
        guard: a collection that must not get worse.
        pairs: graded pairs for scale and bias of the merged model, in the forms of `train`. None gives no relevance
            head.
        out: folder of the run, which the same call reads again; None leaves no file.
        verbose: show progress.
        settings: options of `bixse merge` under the same names, such as `guard_tolerance`.

    Raises:
        InputError: models, collection or settings cannot be used, or the models differ in architecture.

    Example:
        >>> merged = merge("static:demo", "static:demo", weights=[0.5, 0.5])
        >>> merged.weight, merged.model.rank("copy", ["shutil.copy", "os.remove"])[0]["corpus_id"]
        (0.5, 0)
    """
    several = tuned if isinstance(tuned, list | tuple) else [] if tuned is None else [tuned]
    objects = {name: value for name, value in (("dev", dev), ("guard", guard), ("pairs", pairs)) if value is not None}
    settings = with_settings_of_run({**settings, **objects, "models": [base, *several]})
    dev, guard, pairs = (settings.pop(name, None) for name in ("dev", "guard", "pairs"))
    models = [model_source(each) for each in settings.pop("models")]
    read = () if pairs is None else paths_or_pairs(pairs)
    collections, named = given_collections(dev, guard, settings)
    config = MergeModelsConfig.of_options(
        settings,
        models=[each if isinstance(each, str) else f"model {n} {IN_MEMORY}" for n, each in enumerate(models, 1)],
        pairs=IN_MEMORY if isinstance(read, Pairs) else read or None,
        **named,
    )
    given = Sources(models, read, splits_of(config, collections))
    with work_folder(out, "merge") as run:
        merged = merge_into(config, run, verbose, given)
        for line in merged.warnings:
            log.warning("%s", line)
        return Merged(build_encoder(merged.model_path, trust_remote_code=config.trust_remote_code), merged.result)


def merge_into(
    config: MergeModelsConfig, out: str | Path, progress: bool = False, given: Sources | None = None
) -> MergedModel:
    """Average the weights of models of one architecture and save the result to `out/model`.

    `given` replaces the paths of the configuration.
    """
    names, folder = config.models, Path(out)
    models, source, splits = given or Sources(names, paths_in(config.pairs), splits_of(config))
    eval_corpora = load_eval_corpora(splits, config.documents)
    graded, _, inputs = read_pairs(source) if len(source) else (None, "", {})
    warnings = check_held_out(eval_corpora, graded.queries if graded else [], allowed=True)
    for number, model in enumerate(models):
        inputs |= {f"{number}/{name}": value for name, value in model_hashes(model).items()}
    inputs |= split_hashes(splits)
    record = open_run(folder, "merge", config.identity(), inputs)
    if record.status == "finished" and (folder / MODEL_FOLDER).is_dir():
        result = TypeAdapter(MergeResult).validate_python(record.results["merge"])
        return MergedModel(folder / MODEL_FOLDER, result, record.results["warnings"], reused=True)
    base = build_encoder(models[0], config.max_length, trust_remote_code=config.trust_remote_code).float()
    states, heads = _weights_and_heads(base, config, models)
    with alone_in(folder), storage_errors(folder):
        record.save("running")
        if config.weights is not None:
            result = set_best_weights(base, states[0], mean_weights(states, config.weights), [1.0], [])
            result = replace(result, given=config.weights)
        else:
            tuned = mean_weights(states[1:])
            tolerance = config.guard_tolerance
            result = set_best_weights(base, states[0], tuned, config.candidates, eval_corpora, tolerance, progress)
        warnings += result.warnings()
        # at the ends of the line between two models nothing was mixed
        is_line = len(models) == 2 and config.tuned_share == 1 and not result.given
        unmixed = {0.0: heads[0], 1.0: heads[1]} if is_line else {}
        base.heads = unmixed.get(result.weight, {}) if graded is None else _fitted_heads(base, heads, graded)
        if not base.heads:
            warnings.append(
                "the merged model has no relevance head, as its cosines are those of neither model; fix: give pairs "
                "(--pairs), or calibrate it"
            )
        save_whole(base, folder / MODEL_FOLDER, result.card())
        record.results = {"merge": asdict(result), "warnings": warnings}
        record.save("finished")
    return MergedModel(folder / MODEL_FOLDER, result, warnings)


def _weights_and_heads(
    base: RelevanceModel, config: MergeModelsConfig, models: Sequence[str | SentenceTransformer]
) -> tuple[list[Weights], list[dict[int | None, RelevanceHead]]]:
    """Return weights and heads of each model; the base gets the prompts of the tuned models."""
    names, heads = config.models, [base.heads]
    states: list[Weights] = []
    for number, name in enumerate(names[1:]):
        other = build_encoder(models[number + 1], trust_remote_code=config.trust_remote_code)
        if number == 0 and base.backbone_files is not None:
            take_map(base, other)  # training had standardised the bare backbone
        check_same_kind(base, other, (names[0], name))
        if number == 0:  # tuned weights expect the prompts that they were trained with
            base.instructions, base.prompts = other.instructions, other.prompts
            base.default_prompt_name = other.default_prompt_name
        elif (other.instructions, other.prompts) != (base.instructions, base.prompts):
            raise ModelError(
                f"merge: got {names[1]} and {name} with different prompts or instructions; expected the same, which "
                "become those of the merged model; fix: merge models that were trained with the same instructions"
            )
        states.append(trained_weights(other))
        heads.append(other.heads)
    states.insert(0, trained_weights(base))
    if config.tuned_share < 1:  # w of the training's merge: base + (merged - base) / w
        states[1] = {n: torch.lerp(states[0][n], part, 1 / config.tuned_share) for n, part in states[1].items()}
    return states, heads


def _fitted_heads(
    model: RelevanceModel, heads: Sequence[Mapping[int | None, RelevanceHead]], graded: Pairs
) -> dict[int | None, RelevanceHead]:
    """Return heads of the merged model, fitted to graded pairs from the last head that there is."""
    trained = next((part for part in reversed(heads) if part), {None: RelevanceHead(20.0, 0.0)})
    shorter = [cut for cut in trained if cut is not None]
    plain = trained.get(None, next(iter(trained.values()))).as_trained()
    model.heads = {}
    with tempfile.TemporaryDirectory() as scratch:
        on_gpu = model.device.type == "cuda"
        arguments = GradedTrainingArguments(
            scratch, report_to="none", per_device_train_batch_size=16, dataloader_pin_memory=on_gpu
        )
        head = refitted_head(GradedTrainer(model, arguments, graded), plain, shorter)
    return at_lengths(head, shorter)


def check_same_kind(first: SentenceTransformer, second: SentenceTransformer, names: tuple[str, str]) -> None:
    """Refuse, by a ModelError, two encoders that differ in parameters, modules or tokenizer."""
    states = [{name: tuple(part.shape) for name, part in model.named_parameters()} for model in (first, second)]
    differing = [name for name in {**states[0], **states[1]} if states[0].get(name) != states[1].get(name)]
    kinds = [[repr(module) for module in model] for model in (first, second)]  # with settings, such as the pooling
    readers = [getattr(getattr(model, "tokenizer", None), "get_vocab", None) for model in (first, second)]
    vocabularies = [read() if callable(read) else None for read in readers]
    if differing:
        examples = [(name, *(shapes.get(name, "missing") for shapes in states)) for name in differing[:3]]
        shown = ", ".join(f"{name} ({mine} and {other})" for name, mine, other in examples)
        difference = f"{len(differing)} tensors that differ: {shown}"
    elif kinds[0] != kinds[1]:
        difference = f"other modules: {', '.join(kinds[0])} and {', '.join(kinds[1])}"
    elif vocabularies[0] != vocabularies[1]:
        difference = "other tokenizers: the same text gives other tokens"
    else:
        return
    raise ModelError(
        f"merge: got {difference}, in {names[0]} and {names[1]}; expected models of one architecture and tokenizer; "
        "fix: merge a base model with models that were trained from it"
    )
