"""Several systems on one collection folder, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.suites.known_suites import LOCAL
from bixse.evaluation.suites.suite_result import HEADLINE, SuiteResult, TaskScore
from bixse.evaluation.suites.suite_systems import check_distinct, make_system, precision_of
from bixse.evaluation.suites.suite_verdict import compare_systems
from bixse.retrieval.bm25 import BM25_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.collection_files import MissingDocuments
    from bixse.progress import ProgressBars


def compare_on_collection(
    models: Sequence[str],
    collection: str | Path,
    split: str = "test",
    out: str | Path | None = None,
    relevance_level: float = 1.0,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    exclude_self: bool = False,
    task: str | None = None,
    progress: ProgressBars | None = None,
    devices: Sequence[str] | None = None,
    cache: str | Path | None = None,
    missing_documents: MissingDocuments = "refuse",
) -> tuple[SuiteResult, list[str]]:
    """Evaluate several systems on one collection, with a verdict for every pair.

    Args:
        models: two or more, see `bixse.evaluation.evaluate.evaluate`, as all other arguments.
        collection: folder in the BEIR layout.
        split: qrels file to score against.
        out: each system's files go to <out>/<name and hash of the model>.
        relevance_level: grade from which a document counts as relevant for recall and MRR.
        max_length: tokens of a text that are read.
        trust_remote_code: run code that comes with a model.
        exclude_self: leave the document whose id equals the query's id out of its answers.
        task: task whose instructions the models put before the texts; BM25 takes none.
        progress: makes a progress callback from a title and a total.
        devices: where texts are encoded, see `evaluate`.
        cache: where document embeddings are kept, see `evaluate`.
        missing_documents: of judgements without their document, see `evaluate`.

    Returns:
        The table, and what the user should know.

    Raises:
        InputError: see `evaluate`; or one model twice.
        OutputExistsError: a folder holds another run.
    """
    systems = [make_system(model, max_length, task, trust_remote_code, devices) for model in models]
    check_distinct(systems)
    name = Path(collection).resolve().name
    scores: dict[str, dict[str, TaskScore]] = {}
    warnings: list[str] = []
    labels = [system.label for system in systems]
    for system in systems:
        system.release()
        found = evaluate(
            system.label,
            collection,
            split,
            Path(out) / system.name if out is not None else None,
            relevance_level,
            max_length,
            trust_remote_code,
            exclude_self,
            None if system.label == BM25_NAME else task,
            progress,
            devices,
            cache,
            missing_documents,
        )
        warnings += [warning for warning in found.warnings if warning not in warnings]
        shown = system.label if labels.count(system.label) == 1 else system.name
        scores[shown] = {
            name: TaskScore(name, found.metrics, found.per_query, name, found.seconds, found.reused),
        }
    values = {system: {name: own[name].per_query[HEADLINE]} for system, own in scores.items()}
    comparisons = compare_systems(values) if len(next(iter(values.values()))[name]) > 1 else []
    means = {system: {HEADLINE: own[name].metrics[HEADLINE]} for system, own in scores.items()}
    result = SuiteResult(LOCAL, HEADLINE, scores, means, tuple(comparisons), precision=precision_of(systems))
    if out is not None:
        result.write(Path(out))
    return result, warnings
