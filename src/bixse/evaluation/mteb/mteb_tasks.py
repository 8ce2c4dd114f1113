"""mteb's tasks: which a benchmark has, whose data are missing, and how to fetch them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bixse.data.collection import Collection, Document
from bixse.data.collection_files import save_collection
from bixse.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mteb.abstasks import AbsTask

DEFAULT_SUBSET = "default"
"""mteb's name for the only part of a task that has no parts."""


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
            "pip install 'bixse[mteb]'"
        ) from error
    return mteb


def benchmark_tasks(benchmark: str, names: Sequence[str] | None = None) -> list[AbsTask]:
    """The tasks of one of mteb's benchmarks, or some of them.

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


def missing_data(tasks: Sequence[AbsTask]) -> list[str]:
    """What is not in the hub's cache on this machine, with the command that brings it."""
    missing = []
    for part in (part for task in tasks for part in parts_of_task(task) if not in_hub_cache(part)):
        where = part.metadata.dataset
        revision = f" --revision {where['revision']}" if where.get("revision") else ""
        command = f"hf download --repo-type dataset {where['path']}{revision}"
        missing.append(f"{part.metadata.name}: {command}, or --download")
    return missing


def in_hub_cache(task: AbsTask) -> bool:
    """Whether the hub's cache on this machine holds the revision of a task's data set; the network is not asked."""
    from huggingface_hub import snapshot_download

    where = task.metadata.dataset
    try:
        snapshot_download(where["path"], repo_type="dataset", revision=where.get("revision"), local_files_only=True)
    except Exception:  # the library has an error of its own for each reason
        return False
    return True


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
def quiet_hub(offline: bool) -> Iterator[None]:
    """Keep the libraries of the hub from drawing bars, and from asking the network where that is wanted."""
    import datasets
    import huggingface_hub.constants as constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if offline:
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
        if bars:
            datasets.enable_progress_bars()
