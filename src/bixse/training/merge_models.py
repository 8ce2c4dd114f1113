"""Merge models that exist already, for `bixse merge`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.head import RelevanceHead, at_lengths
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.encoders.relevance_model import save_whole
from bixse.encoders.weights import mean_weights, trained_weights
from bixse.errors import ModelError
from bixse.files.files import alone_in, file_hash, storage_errors
from bixse.training.config import MODEL_FOLDER, MergeModelsConfig
from bixse.training.dev_evaluation import (
    Split,
    check_not_trained_on,
    load_watched,
    queries_of,
    split_hashes,
    warnings_of,
)
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.merge import MergeResult, merge, refitted_head

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class MergedModel:
    """The result of a merge."""

    model_path: Path
    result: MergeResult
    warnings: list[str]
    reused: bool = False


def merge_models(config: MergeModelsConfig, out: str | Path, progress: bool = False) -> MergedModel:
    """Average the weights of models of one architecture and save the result to `out/model`.

    Example:
        Half of the way from the base model to the tuned one::

            config = MergeModelsConfig(models=["demo", "runs/mine/model"], weights=[0.5, 0.5])
            merge_models(config, "runs/merged")
    """
    names, folder = config.models, Path(out)
    splits = [Split(path, config.dev_split, "dev") for path in config.dev]
    splits += [Split(path, config.guard_split, "guard") for path in config.guard]
    watched = load_watched(splits, config.documents)
    graded = load_graded_pairs(config.pairs) if config.pairs is not None else None
    warnings = warnings_of(watched)
    warnings += check_not_trained_on(queries_of(watched), graded.queries if graded else [], allowed=True)
    inputs = {f"{number}/{name}": value for number, m in enumerate(names) for name, value in model_hashes(m).items()}
    inputs |= split_hashes(splits)
    if config.pairs is not None:
        inputs["pairs"] = file_hash(config.pairs)
    record = open_run(folder, "merge", config.identity(), inputs)
    if record.status == "finished" and (folder / MODEL_FOLDER).is_dir():
        result = TypeAdapter(MergeResult).validate_python(record.results["merge"])
        return MergedModel(folder / MODEL_FOLDER, result, record.results["warnings"], reused=True)
    base = build_encoder(names[0], config.max_length, trust_remote_code=config.trust_remote_code).float()
    states, heads = [trained_weights(base)], [base.heads]
    for number, name in enumerate(names[1:]):
        other = build_encoder(name, trust_remote_code=config.trust_remote_code)
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
        del other
    with alone_in(folder), storage_errors(folder):
        record.save("running")
        if config.weights is not None:
            result = merge(base, states[0], mean_weights(states, config.weights), [1.0], [])
            result = replace(result, given=config.weights)
        else:
            tuned = mean_weights(states[1:])
            result = merge(base, states[0], tuned, config.candidates, watched, config.guard_tolerance, progress)
        warnings += result.warnings()
        base.heads = {}
        if graded is not None:
            trained = next((part for part in reversed(heads) if part), {None: RelevanceHead(20.0, 0.0)})
            shorter = [cut for cut in trained if cut is not None]
            plain = trained.get(None, next(iter(trained.values()))).as_trained()
            with tempfile.TemporaryDirectory() as scratch:
                arguments = GradedTrainingArguments(scratch, report_to="none", per_device_train_batch_size=16)
                head = refitted_head(GradedTrainer(base, arguments, graded), plain, shorter)
            base.heads = at_lengths(head, shorter)
        else:
            warnings.append(
                "the merged model has no relevance head, as its cosines are those of neither model; fix: give --pairs, "
                "or run `bixse calibrate` on it"
            )
        save_whole(base, folder / MODEL_FOLDER, result.card())
        record.results = {"merge": asdict(result), "warnings": warnings}
        record.save("finished")
    return MergedModel(folder / MODEL_FOLDER, result, warnings)


def check_same_kind(first: SentenceTransformer, second: SentenceTransformer, names: tuple[str, str]) -> None:
    """Refuse, by a ModelError, two encoders that differ in parameters, modules or tokenizer."""
    states = [{name: tuple(part.shape) for name, part in model.named_parameters()} for model in (first, second)]
    differing = [name for name in {**states[0], **states[1]} if states[0].get(name) != states[1].get(name)]
    kinds = [[repr(module) for module in model] for model in (first, second)]  # with settings, such as the pooling
    vocabularies = [_vocabulary(model) for model in (first, second)]
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


def _vocabulary(model: SentenceTransformer) -> object:
    tokenizer = getattr(model, "tokenizer", None)
    vocabulary = getattr(tokenizer, "get_vocab", None)
    return vocabulary() if callable(vocabulary) else None
