"""Run mteb's benchmarks through mteb: its tasks, search and scores, with models and a results folder of bixse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import datasets
import huggingface_hub.constants as constants
import mteb
from huggingface_hub import snapshot_download
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt_name
from mteb.models.model_meta import ScoringFunction

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.run import Run, open_run
from bixse.data.task_instructions import RESERVED
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.build import model_path_settings
from bixse.encoders.loading.precision import autocast
from bixse.errors import BixseError, InputError, check_known
from bixse.evaluation.evaluate import Evaluation
from bixse.evaluation.evaluate_files import PER_QUERY_NAME
from bixse.evaluation.gate import read_figures
from bixse.evaluation.metrics import PRIMARY_METRIC, PerQuery, evaluate_run
from bixse.evaluation.systems import EncoderSystem, System, instructions_of
from bixse.files.files import read_text, write_atomically
from bixse.suites.known_suites import INSTRUCTIONS

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from bixse.progress import ProgressBars

CACHE_FOLDER = "mteb"
"""mteb's results, inside a system's folder so that no other system reads them."""
RANKED_BY = "ndcg_at_10"
"""mteb's name of the metric with known values per query."""
KINDS: tuple[Literal["query"], Literal["document"]] = ("query", "document")


def benchmark_tasks(benchmark: str, names: Sequence[str] | None = None) -> list[AbsTask]:
    """Return the tasks of an mteb benchmark, or the named ones. An unknown name raises InputError."""
    tasks = {task.metadata.name: task for task in mteb.get_benchmark(benchmark).tasks}
    for name in names or ():
        check_known(f"task of {benchmark}", name, tasks)
    return [task for name, task in tasks.items() if names is None or name in names]


def missing_data(tasks: Sequence[AbsTask]) -> list[str]:
    """List the data missing from the hub's cache on this machine, each with its download command."""
    missing = []
    for part in (part for task in tasks for part in parts_of_task(task) if not in_hub_cache(part)):
        where = part.metadata.dataset
        revision = f" --revision {where['revision']}" if where.get("revision") else ""
        command = f"hf download --repo-type dataset {where['path']}{revision}"
        missing.append(f"{part.metadata.name}: {command}, or --download")
    return missing


def in_hub_cache(task: AbsTask) -> bool:
    """Return True if this machine holds the revision of a task's data set, without a network request."""
    where = task.metadata.dataset
    try:
        snapshot_download(where["path"], repo_type="dataset", revision=where.get("revision"), local_files_only=True)
    except Exception:  # the library raises another error for each reason
        return False
    return True


def download_collection(name: str, folder: Path, splits: Sequence[str]) -> None:
    """Download a retrieval task of mteb as a collection folder. A failure of the hub raises InputError."""
    task: Any = mteb.get_task(name, eval_splits=list(splits))
    try:
        task.load_data()
    except Exception as error:  # the libraries of the hub and of data sets raise many kinds of errors
        raise InputError(
            f"{name}: got {_one_line(error)}; expected its data from the hub; fix: check the network (HF_HUB_OFFLINE "
            "must not be set), or fetch the data by hand into a folder"
        ) from error
    task.convert_v1_dataset_format_to_v2(None)
    for split in splits:
        data = task.dataset["default"][split]
        corpus = {row["id"]: Document(row.get("title") or "", row["text"]) for row in data["corpus"]}
        queries = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
        save_collection(Collection(name, corpus, queries, {split: data["relevant_docs"]}), folder)


def run_mteb(
    system: System,
    tasks: Sequence[AbsTask],
    out: Path,
    settings: Mapping[str, Any],
    download: bool = False,
    progress: ProgressBars | None = None,
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Run a system through mteb. Return task -> evaluation, and task -> error. Finished tasks are read from `out`."""
    step = progress(f"{system.label}: tasks", len(tasks)) if progress is not None else None
    scores: dict[str, Evaluation] = {}
    failures: dict[str, str] = {}
    for task in tasks:
        name = task.metadata.name
        try:
            scores[name] = _run_task(system, task, out, settings, download)
        except (BixseError, MemoryError):
            raise
        except Exception as error:  # mteb raises many kinds of errors; the other tasks continue
            failures[name] = _one_line(error)
        if step is not None:
            step(1)
    return scores, failures


def _run_task(system: System, task: AbsTask, out: Path, settings: Mapping[str, Any], download: bool) -> Evaluation:
    name = task.metadata.name
    revisions = {part.metadata.name: str(part.metadata.dataset.get("revision")) for part in parts_of_task(task)}
    record = open_run(
        out / system.name / name,
        "evaluate",
        {**system.settings, "task": name, "mteb": mteb.__version__, **settings},  # scores may change with a version
        {**revisions, **system.inputs},
        paths=model_path_settings(system.settings["model"]),
    )
    reused = record.status == "finished"
    if not reused:
        record.save("running")
        # without --download, no request leaves this machine
        with _quiet_hub(offline=not download):
            _evaluate(system, task, record)
        record.save("finished")
    try:
        _, per_query = read_figures(record.folder)
        metrics, kind, seconds = (record.results[key] for key in ("metrics", "type", "seconds"))
    except (InputError, KeyError) as error:
        raise InputError(
            f"{record.folder}: got missing or damaged results; expected those of a finished task; fix: delete the "
            "folder and evaluate again"
        ) from error
    return Evaluation(name, metrics, per_query, {}, seconds, reused, precision=system.precision, group=kind)


def _evaluate(system: System, task: AbsTask, record: Run) -> None:
    parts = parts_of_task(task)
    model: Any = MtebEncoder(system, parts)
    cache, predictions = mteb.ResultCache(record.folder.parent / CACHE_FOLDER), record.folder / "predictions"
    started = time.perf_counter()
    per_query: PerQuery = {}
    mains = []
    for part in parts:
        part.load_data()
        result = mteb.evaluate(
            model, part, cache=cache, prediction_folder=predictions, co2_tracker=False, show_progress_bar=False
        )
        mains.append(float(result.task_results[0].get_score()))
        if part.metadata.main_score == RANKED_BY:
            _add_queries(per_query, part, predictions)
        part.unload_data()  # otherwise mteb keeps the data of a task
    main = sum(mains) / len(mains)
    record.timings["mteb"] = time.perf_counter() - started
    write_atomically(record.folder / PER_QUERY_NAME, json.dumps(per_query) + "\n")
    record.results = {
        "metrics": {"main": main, **({PRIMARY_METRIC: main} if task.metadata.main_score == RANKED_BY else {})},
        "main_score": task.metadata.main_score,
        "type": task.metadata.type,
        "seconds": record.timings["mteb"],
        "prompts": model.used,
        "model_name": model.mteb_model_meta.name,
        "model_revision": model.mteb_model_meta.revision,
    }


def _add_queries(per_query: PerQuery, task: Any, folder: Path) -> None:
    """Add mteb's rankings, scored per query. Each id begins with the name of its part."""
    path = folder / task.prediction_file_name
    if not path.is_file():  # an interrupted run had a score in mteb's cache but no rankings yet
        return
    predictions = json.loads(read_text(path))
    for subset in task.hf_subsets:
        for split in task.eval_splits:
            qrels, run = task.dataset[subset][split]["relevant_docs"], predictions[subset][split]
            if task.ignore_identical_ids:  # mteb drops self-matches when it scores, not in the file
                run = {query: {name: s for name, s in ranked.items() if name != query} for query, ranked in run.items()}
            for metric, values in evaluate_run(qrels, run).items():
                prefix = f"{task.metadata.name} {subset} {split}"
                per_query.setdefault(metric, {}).update({f"{prefix} {name}": value for name, value in values.items()})


class MtebEncoder(AbsEncoder):
    """An encoder for mteb's tasks. Retrieval texts are embedded as everywhere in bixse, normalised.

    Raises InputError for a system that is no encoder.
    """

    def __init__(self, system: System, tasks: Sequence[Any]) -> None:
        if not isinstance(system, EncoderSystem):
            raise InputError(
                f"{system.label}: got a system that is no encoder; expected an encoder for mteb's tasks; fix: leave it "
                "out"
            )
        self.encoder: Any = system.encoder
        self.prompts = mteb_prompts(system.encoder, tasks, system.task)
        # mteb names every model from a folder no_model_name_available, without revision: checkpoints would share scores
        parts = [part for part in Path(system.label).parts if part not in ("/", ".", "..")][-2:]
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": "/".join(parts if len(parts) == 2 else ["bixse", *parts]),
                "revision": system.weights,
                "framework": ["Sentence Transformers", "PyTorch"],
                "similarity_fn_name": ScoringFunction.COSINE,
                "embed_dim": self.encoder.get_embedding_dimension(),
                "max_tokens": self.encoder.max_seq_length,
                "n_parameters": sum(parameter.numel() for parameter in self.encoder.parameters()),
                "use_instructions": self.encoder.instructions is not None,
            }
        )
        self.used: dict[str, str | None] = {}
        """Task and kind of text -> the prompt before it. None: the model's default prompt, if it has one."""

    def encode(
        self, inputs: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, prompt_type: Any = None, **kwargs: Any
    ) -> Any:
        """Return the (N, D) embeddings of the texts in a loader."""
        texts = [text for batch in inputs for text in batch["text"]]
        name = get_prompt_name(self.prompts, task_metadata, prompt_type)
        prompt = self.prompts[name] if name is not None else None
        self.used[f"{task_metadata.name} {prompt_type.value if prompt_type else 'text'}"] = prompt
        if prompt_type is None:  # no retrieval: not normalised, as in mteb's own wrapper
            with autocast(self.encoder.device):
                return self.encoder.encode(
                    texts, prompt=prompt, batch_size=kwargs.get("batch_size", 32), show_progress_bar=False
                )
        kind: Literal["query", "document"] = "query" if prompt_type.value == "query" else "document"
        return encode_texts(self.encoder, texts, kind, prompt=prompt or "")


def parts_of_task(task: Any) -> list[Any]:
    """Return the parts of a task that is a mean (CQADupStack), or the task itself."""
    return list(getattr(task, "tasks", None) or [task])


def mteb_prompts(encoder: Any, tasks: Sequence[Any], task: str | None = None) -> dict[str, str]:
    """Return the model's prompts under the names that mteb looks up, by mteb's task name or by `task`."""
    table = encoder.instructions
    known = {*RESERVED, *(table.tasks if table is not None else ())}
    prompts = {name: prompt or "" for name, prompt in (encoder.prompts or {}).items() if name not in known}
    for each in tasks:
        name = each.metadata.name
        if name in prompts:
            continue
        # mteb looks up "<task>-query" and "<task>-document", then "<task>", which it puts before documents too
        if isinstance(each, AbsTaskRetrieval):
            names = (task,) if task is not None else (name, INSTRUCTIONS.get(name, name))
            with instructions_of(encoder, names, must=task is not None):
                pair = {f"{name}-{kind}": prompt_for(encoder, kind) or "" for kind in KINDS}
            prompts = {**pair, **prompts}
        elif table is not None:
            instruction = each.metadata.prompt if isinstance(each.metadata.prompt, str) else each.abstask_prompt
            prompts[name] = table.template.replace("{instruction}", instruction)
    return prompts


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


@contextmanager
def _quiet_hub(offline: bool) -> Iterator[None]:
    """Hide progress bars, and block the network if `offline`."""
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if offline:
            # both libraries read the variable only at import
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
        if bars:
            datasets.enable_progress_bars()
