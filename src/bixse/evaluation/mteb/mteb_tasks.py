"""mteb's tasks with data from local folders: where they are, what lacks, and grades as mteb can hold them."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bixse.data.collection import Collection, Document
from bixse.data.collection_files import save_collection
from bixse.data.io.files import file_hash
from bixse.errors import InputError, did_you_mean
from bixse.evaluation.suites.folder_stream import check_corpus, read_judged_queries, stream_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mteb.abstasks import AbsTask
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    from bixse.relevance import Qrels

DEFAULT_SUBSET = "default"
"""mteb's name for the only part of a task that has no parts."""
FACTORS = (1, 2, 3, 4, 5, 6, 8, 10, 20, 100, 1_000, 10_000)
"""What fractional grades are multiplied by to become whole numbers: the first that fits, else the last."""


def import_mteb() -> Any:
    """The library mteb.

    Raises:
        InputError: it is not installed.
    """
    try:
        import mteb
    except ImportError as error:
        raise InputError(
            f"mteb: got no usable package ({error}); expected mteb, which runs this suite; fix: "
            "pip install 'bixse[mteb]' (Python 3.11 or newer)"
        ) from error
    return mteb


def benchmark_tasks(benchmark: str, names: Sequence[str] | None = None) -> list[AbsTask]:
    """The tasks of one of mteb's benchmarks, or some of them.

    Args:
        benchmark: mteb's name.
        names: tasks to keep; None keeps all.

    Raises:
        InputError: mteb is not installed, or the benchmark has no such task.
    """
    tasks = {task.metadata.name: task for task in import_mteb().get_benchmark(benchmark).tasks}
    for name in names or ():
        if name not in tasks:
            hint = did_you_mean(name, tasks, "choose some of its tasks")
            raise InputError(f"task: got {name!r}; expected one of {benchmark}: {', '.join(tasks)}; fix: {hint}")
    return [task for name, task in tasks.items() if names is None or name in names]


def parts_of_task(task: AbsTask) -> list[AbsTask]:
    """The tasks that a task is the mean of (CQADupStack), or the task itself."""
    parts: list[AbsTask] | None = getattr(task, "tasks", None)
    return list(parts) if parts else [task]


def not_retrieval(tasks: Sequence[AbsTask]) -> list[str]:
    """The names of those tasks that are not about finding documents."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    return [
        task.metadata.name
        for task in tasks
        if not all(isinstance(part, AbsTaskRetrieval) for part in parts_of_task(task))
    ]


def local_folders(task: AbsTask, data: Path | None) -> dict[str, Path] | None:
    """Subset -> collection folder of a retrieval task below `data`, or None where a file lacks.

    A task without subsets lies in <data>/<task>, one with subsets (languages) in <data>/<task>/<subset>.
    """
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    if data is None or not isinstance(task, AbsTaskRetrieval):
        return None
    folder = data / task.metadata.name
    subsets = list(task.hf_subsets)
    folders = {subset: folder if subset == DEFAULT_SUBSET else folder / subset for subset in subsets}
    needed = ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in task.eval_splits)]
    return folders if all((path / name).is_file() for path in folders.values() for name in needed) else None


def missing_data(tasks: Sequence[AbsTask], data: Path | None) -> list[str]:
    """What neither lies below `data` nor in the hub's cache on this machine, with the command that brings it."""
    lacking = []
    for task in tasks:
        for part in parts_of_task(task):
            if local_folders(part, data) is None and not in_hub_cache(part):
                where = part.metadata.dataset
                revision = f" --revision {where['revision']}" if where.get("revision") else ""
                command = f"hf download --repo-type dataset {where['path']}{revision}"
                lacking.append(f"{part.metadata.name}: {command}, or --download")
    return lacking


def in_hub_cache(task: AbsTask) -> bool:
    """Whether the hub's cache on this machine holds the revision of a task's data set; the network is not asked."""
    from huggingface_hub import snapshot_download

    where = task.metadata.dataset
    try:
        snapshot_download(where["path"], repo_type="dataset", revision=where.get("revision"), local_files_only=True)
    except Exception:  # the library has an error of its own for each reason
        return False
    return True


def with_local_data(task: AbsTaskRetrieval, folders: Mapping[str, Path]) -> AbsTaskRetrieval:
    """A task of mteb, in all but its data, which are read from collection folders when mteb asks for them.

    Args:
        task: the task; it is not changed.
        folders: subset -> collection folder.
    """

    def load_data(self: AbsTaskRetrieval, *_: Any, **__: Any) -> None:
        if not self.data_loaded:
            self.dataset = {
                subset: {split: _split_data(folder, split) for split in self.eval_splits}
                for subset, folder in folders.items()
            }
            self.data_loaded = True

    kind = type(task)
    local: AbsTaskRetrieval = type(kind.__name__, (kind,), {"load_data": load_data})()
    local.__dict__.update(task.__dict__)
    return local


def local_task(name: str, folder: Path, split: str = "test", exclude_self: bool = False) -> AbsTaskRetrieval:
    """A task of mteb made from any collection folder.

    Args:
        name: its name in mteb's results.
        folder: collection folder in the BEIR layout.
        split: qrels file to score against.
        exclude_self: leave the document with the query's own id out of its answers.

    Raises:
        InputError: mteb is not installed, or a file of the folder is missing.
    """
    import_mteb()
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    files = (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / f"{split}.tsv")
    lacking = [str(file) for file in files if not file.is_file()]
    if lacking:
        raise InputError(f"{folder}: got no {', '.join(lacking)}; expected a collection folder; fix: check the path")
    metadata = TaskMetadata(
        name=name,
        description=f"The collection {name}, from a local folder",
        dataset={"path": f"local/{name}", "revision": "-".join(file_hash(file)[:8] for file in files)},
        type="Retrieval",
        category="t2t",
        eval_splits=[split],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        is_public=False,
    )
    kind = type(name, (AbsTaskRetrieval,), {"metadata": metadata, "ignore_identical_ids": exclude_self})
    return with_local_data(kind(), {DEFAULT_SUBSET: folder})


def whole_grades(qrels: Qrels) -> dict[str, dict[str, int]]:
    """Judgements as whole numbers, which is all that mteb keeps of them.

    Linear gain does not see a common factor, so nDCG stays as it is. Grades above 0 stay above 0; every one of them
    then counts as relevant for mteb's binary metrics, whose level is 1.

    Example:
        >>> whole_grades({"q": {"a": 0.5, "b": 2.25, "c": 0.0}})
        {'q': {'a': 2, 'b': 9, 'c': 0}}
        >>> whole_grades({"q": {"a": 3.0, "b": 1.0}})
        {'q': {'a': 3, 'b': 1}}
    """
    grades = {grade for judged in qrels.values() for grade in judged.values()}

    def fits(factor: int) -> bool:
        return all(math.isclose(grade * factor, round(grade * factor), abs_tol=1e-6) for grade in grades)

    factor = next((factor for factor in FACTORS if fits(factor)), FACTORS[-1])
    return {
        query_id: {name: max(1, round(grade * factor)) if grade > 0 else 0 for name, grade in judged.items()}
        for query_id, judged in qrels.items()
    }


def download_collection(name: str, folder: Path, splits: Sequence[str]) -> None:
    """Fetch a retrieval task of mteb from the hub and write it as a collection folder.

    Raises:
        InputError: mteb is not installed or has no such task, or the hub does not answer.
        StorageError: the folder cannot be written.
    """
    task: Any = import_mteb().get_task(name, eval_splits=list(splits))
    try:
        task.load_data()
    except Exception as error:  # whatever the hub's and the data sets' libraries raise
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise InputError(
            f"{name}: got {type(error).__name__} ({said}); expected its data from the hub; fix: check the network "
            "(HF_HUB_OFFLINE must not be set), or fetch the data by hand into a folder"
        ) from error
    task.convert_v1_dataset_format_to_v2(None)
    for split in splits:
        data = task.dataset[DEFAULT_SUBSET][split]
        corpus = {row["id"]: Document(row.get("title") or "", row["text"]) for row in data["corpus"]}
        queries = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
        save_collection(Collection(name, corpus, queries, {split: data["relevant_docs"]}), folder)


@contextmanager
def hub_offline(offline: bool) -> Iterator[None]:
    """Keep the libraries of the hub from asking the network, where that is wanted."""
    import datasets
    import huggingface_hub.constants as constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if offline:
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def quiet_data_sets() -> Iterator[None]:
    """Keep the library of data sets from drawing a bar for each step of its own."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()


def _split_data(folder: Path, split: str) -> Any:
    """A split as mteb holds it; the queries are the judged ones, and a title stands before its text already."""
    from datasets import Dataset
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    queries, qrels = read_judged_queries(folder, split)
    check_corpus(folder, qrels)
    ids, texts = [], []
    for document_id, text in stream_documents(folder):
        ids.append(document_id)
        texts.append(text)
    return RetrievalSplitData(
        corpus=Dataset.from_dict({"id": ids, "text": texts}),
        queries=Dataset.from_dict({"id": list(queries), "text": list(queries.values())}),
        relevant_docs=whole_grades(qrels),
        top_ranked=None,
    )
