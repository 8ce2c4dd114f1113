"""Reports of results: `report` makes one self-contained page of objects in memory and of run folders."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import singledispatch
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from markupsafe import escape
from pydantic import TypeAdapter

from bixse.calibration.calibrate import Calibration
from bixse.calibration.calibrate_files import CalibrateResult
from bixse.data.run import finished_runs
from bixse.errors import InputError, check_known, first_fault
from bixse.evaluation.collection_task import CollectionSource, collection_task
from bixse.evaluation.compare_evaluations import Comparisons, compare
from bixse.evaluation.evaluate import Evaluation
from bixse.evaluation.gate import check_comparable, read_evaluation
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.files.files import read_text
from bixse.relevance import ranked
from bixse.rendering.page import render_report, write_report
from bixse.rendering.schema import (
    MergeCurve,
    QueryChange,
    RankedDocument,
    ReportData,
    Section,
    SystemScores,
    load_report_data,
    training_curve,
)
from bixse.rendering.table import format_number
from bixse.rendering.wording import format_threshold, format_verdict, metric_title
from bixse.results import VERDICT_IN_A_SENTENCE, Comparison, Difference
from bixse.search.tasks import Task
from bixse.training.dev_evaluation import dev_figures
from bixse.training.merge import MergeResult
from bixse.training.merge_models import Merged
from bixse.training.recipe import TrainResult
from bixse.training.train import Trained

Fields: TypeAlias = dict[str, Any]
"""Field of `ReportData` -> value, "systems" as name -> metrics; lists and mappings of several results are joined."""
SHOWN_CHANGES = 5
"""Number of gains, and of losses, whose rankings are shown."""
SHOWN_DOCUMENTS, SHOWN_LETTERS = 5, 240
LOWEST = 10
"""Number of queries with the lowest figures, in the report of a single system."""
SETTINGS = (
    "model", "models", "loss", "pairs", "scores", "collection", "split", "dev", "guard", "rerank", "seed", "precision",
)  # fmt: skip
"""Settings of a run that the page shows."""
TABLES = {"sweep": ("sweep.csv",), "study": ("findings.csv", "summary.csv")}


@dataclass(frozen=True, repr=False)
class Report:
    """A report in memory; it shows as its page in a notebook."""

    data: ReportData

    def save(self, path: str | Path = "report.html") -> Path:
        """Write the page, one file without scripts or network, and return its path."""
        write_report(self.data, path)
        return Path(path)

    def __repr__(self) -> str:
        decisive = [each for each in self.data.comparisons if each.metric == self.data.primary_metric]
        lines = [f"{each.system} against {each.baseline}: {format_verdict(each.difference)}" for each in decisive]
        return "\n".join(lines or self.data.verdicts or [self.data.title])

    def _repr_html_(self) -> str:
        page = escape(render_report(self.data))
        return f'<iframe srcdoc="{page}" sandbox style="width: 100%; height: 40rem; border: 0"></iframe>'


def report(
    *results: Any, baseline: str | None = None, collection: CollectionSource | Task | None = None, title: str = ""
) -> Report:
    """Make one page of results: verdicts with intervals, queries side by side, training, merge and probabilities.

    Args:
        results: folders of finished runs, results of `evaluate`, `compare`, `train`, `merge` and `calibrate`, lists of
            these, or mappings of a name to one of these.
        baseline: name of the evaluation that every other one is compared with. None: the first one.
        collection: the evaluated collection, in the forms of `evaluate`, for the texts of queries and documents. None
            reads the one that the run folders name; without it the page shows ids.
        title: title of the page.

    Raises:
        InputError: no result, an object or folder that is no result, evaluations of other queries, or an unknown
            baseline.

    Example:
        >>> data = ({"q1": "copy a tree"}, {"d1": "shutil.copytree: copy a tree", "d2": "os.remove"}, {"q1": {"d1": 3}})
        >>> from bixse.evaluation.evaluate_files import evaluate
        >>> page = report({"BM25": evaluate("bm25", data)}, collection=data)
        >>> page.data.systems[0].metrics["ndcg@10"], page.data.verdicts
        (1.0, [])
    """
    given = _with_names(results)
    (first, _), *_ = given.values()
    if isinstance(first, ReportData):
        return Report(first.model_copy(update={"title": title or first.title}))
    evaluations = {name: result for name, (result, _) in given.items() if isinstance(result, Evaluation)}
    if baseline is not None:
        check_known("baseline", baseline, evaluations, "name an evaluation")
    evaluations = dict(sorted(evaluations.items(), key=lambda item: item[0] != baseline))  # stable: the order stays
    parts = [_fields(result, name) for name, (result, _) in given.items() if name not in evaluations]
    if evaluations:
        records = {name: record for name, (_, record) in given.items() if name in evaluations and record}
        parts.insert(0, _of_evaluations(evaluations, records, collection))
    fields = _joined([*parts, *(_facts(name, record) for name, (_, record) in given.items() if record)])
    systems, notes = fields.get("systems", {}), fields.get("notes", [])
    if bare := ", ".join(name for name, metrics in systems.items() if not metrics):
        notes = [*notes, f"{bare}: differences alone, no mean and no query is shown."]
    # two results may share a difference: the first one stays
    differences = {(each.system, each.baseline, each.metric): each for each in reversed(fields.get("comparisons", []))}
    metrics = [metric for metrics in systems.values() for metric in metrics]
    primary = fields.get("primary_metric", PRIMARY_METRIC)
    return Report(ReportData(**fields | {
        "title": title or f"bixse: {', '.join(given)}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "primary_metric": primary if primary in metrics else next(iter(metrics), primary),
        "systems": [SystemScores(name=name, label=name, metrics=metrics) for name, metrics in systems.items()],
        "comparisons": [*reversed(differences.values())],
        "notes": notes,
    }))  # fmt: skip


def _with_names(results: Sequence[Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return name -> result and the record of its folder, empty for an object; evaluations have their system's name."""
    named = [each for result in results for each in _read(result)]
    if not named:
        raise InputError("report: got no result; expected run folders or results; fix: report('runs/mine')")
    if len(named) > 1 and any(isinstance(each, ReportData) for _, each, _ in named):
        raise InputError("report: got a quick start and other runs; expected it alone; fix: leave the others out")
    labels = [(each.system if isinstance(each, Evaluation) else "") or name for name, each, _ in named]
    unique: dict[str, tuple[Any, dict[str, Any]]] = {}
    for label, (name, each, record) in zip(labels, named, strict=True):
        shown = label if labels.count(label) == 1 else name
        unique[shown if shown not in unique else f"{shown} ({len(unique) + 1})"] = (each, record)
    return unique


def _read(result: Any, given: str | None = None) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return the name, the result and the record of each result; a `given` name becomes that of the system."""
    if isinstance(result, list | tuple) and not isinstance(result, Comparisons):
        return [read for each in result for read in _read(each, given)]
    if isinstance(result, Mapping) and not isinstance(result, Evaluation):
        return [read for name, each in result.items() for read in _read(each, str(name))]
    if isinstance(result, str | Path):
        runs = finished_runs(Path(result)).items()
        read = [(folder.resolve().name, _of_folder(folder, record), record) for folder, record in runs]
        if given is None or len(read) > 1:  # a folder of several systems, which have their own names
            return read
        ((_, result, record),) = read
    else:
        record = {}
    if given is not None and isinstance(result, Evaluation):
        result = replace(result, system=given)
    return [(given or type(result).__name__.lower(), result, record)]


def _of_folder(folder: Path, record: dict[str, Any]) -> Any:
    """Return the result of a run folder: the object that its function returns, or its fields."""
    command, results = record["command"].split()[0], record["results"]
    try:
        if command == "evaluate" and "suite" not in record["config"]:
            return read_evaluation(folder)
        if command == "train":
            return TypeAdapter(TrainResult).validate_python({**results, "model_path": folder, "reused": True})
        if command == "merge":
            return TypeAdapter(MergeResult).validate_python(results["merge"])
        if command == "calibrate":
            return TypeAdapter(CalibrateResult).validate_python(results)
        if command == "quickstart":
            return load_report_data(folder / "results.json")
        if command == "grade":
            return _of_grades(**results)
        if command == "evaluate":
            return _of_suite(results)
        tables = {Path(file).stem: list(csv.reader(io.StringIO(read_text(folder / file)))) for file in TABLES[command]}
        return {"sections": [Section(title=name, headers=head, rows=rows) for name, (head, *rows) in tables.items()]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: got results that cannot be read ({type(error).__name__}: {first_fault(error)}); expected those "
            f"of `bixse {command}`; fix: run the command again"
        ) from error


def _joined(parts: Iterable[Fields]) -> Fields:
    joined: Fields = {}
    for name, value in ((name, value) for part in parts for name, value in part.items()):
        if isinstance(value, list):
            joined[name] = [*joined.get(name, []), *value]
        elif isinstance(value, dict):
            earlier = joined.setdefault(name, {})
            joined[name] = earlier | {
                key: {**each, **earlier.get(key, {})} if isinstance(each, dict) else each for key, each in value.items()
            }
        else:
            joined[name] = value
    return joined


def _facts(name: str, record: Mapping[str, Any]) -> Fields:
    """Return how a run was made: its command, time, settings and versions, and the time of each stage."""
    config = {key: record["config"].get(key) for key in SETTINGS}
    texts = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in config.items()}
    shown = [f"{key} {value}" for key, value in texts.items() if value not in (None, "")]
    versions = record.get("versions", {}).get("bixse", metadata.version("bixse"))
    text = f"bixse {record['command']} ({versions}, {record['started'][:10]}){': ' * bool(shown)}{', '.join(shown)}"
    timings = {f"{name}: {stage}": seconds for stage, seconds in record["timings"].items()}
    return {"facts": {name: text}, "timings": timings, "notes": _warnings(name, record["results"].get("warnings"))}


def _warnings(name: str, warnings: Sequence[str] | None) -> list[str]:
    return [f"{name}: {warning}" for warning in warnings or ()]


# Evaluations


def _of_evaluations(
    evaluations: Mapping[str, Evaluation], records: Mapping[str, Any], collection: CollectionSource | Task | None
) -> Fields:
    """Compare every evaluation with the first one, on every metric, and show queries side by side."""
    for name, record in records.items():
        check_comparable(f"report: {name}", next(iter(records)), record, next(iter(records.values())))
    baseline, *others = evaluations
    systems = {name: dict(each.metrics) for name, each in evaluations.items()}
    lacking = [name for name, each in evaluations.items() if not each.by_query.get(PRIMARY_METRIC)]
    missing = {name: PRIMARY_METRIC if evaluations[name].by_query else "values" for name in lacking}
    notes = [f"{name} has no {what} per query: no interval and no query is shown." for name, what in missing.items()]
    fields: Fields = {"systems": systems, "notes": notes}
    notes += [line for name, each in evaluations.items() for line in _warnings(name, each.warnings)]
    others = [name for name in others if name not in lacking]
    if baseline in lacking:
        return fields
    task, note = _task_of(records, collection)
    notes += note
    if not others:
        return fields | {"sections": [_lowest(evaluations[baseline], task)]}
    compared = {name: evaluations[name] for name in (baseline, *others)}
    metrics = [
        name for name in evaluations[baseline].by_query if all(name in each.by_query for each in compared.values())
    ]
    comparisons = {metric: compare(compared, baseline, metric) for metric in metrics}
    decisive = comparisons[PRIMARY_METRIC]
    if len(decisive) > 1:
        corrected = "; ".join(f"{pair.system}: {format_number(pair.holm_p)}" for pair in decisive)
        notes.append(f"Each verdict is for one pair alone. p corrected for {len(decisive)} pairs (Holm): {corrected}.")
    last = decisive[-1]
    changes = query_changes(compared[baseline], compared[last.system], task)
    return fields | {
        "verdicts": [summary(last.system, {baseline: last.difference}, f"queries of {evaluations[baseline].task}")],
        "comparisons": [pair for pairs in comparisons.values() for pair in pairs],
        "per_query_baseline": baseline,
        "per_query_system": last.system,
        "per_query": changes,
    }


def _task_of(records: Mapping[str, Any], collection: CollectionSource | Task | None) -> tuple[Task | None, list[str]]:
    """Return the evaluated task, for its texts, or the reason why the page has ids alone."""
    record: Mapping[str, Any] = next(iter(records.values()), {})
    config, inputs = record.get("config", {}), record.get("inputs", {})
    # an earlier version recorded "." for a collection in memory
    recorded = "" if "collection" in inputs else str(config.get("collection") or "")
    if collection is None and not Path(recorded or "-").is_dir():
        got = f"{recorded} is not there" if recorded else "No collection was given"
        return None, [f"{got}, so queries and documents are shown by their ids."]
    source = recorded if collection is None else collection
    try:
        split = config.get("split", "test")
        task = source if isinstance(source, Task) else collection_task(source, split, missing_documents="drop")
    except InputError as error:
        if collection is not None:
            raise
        return None, [f"{recorded} cannot be read, so queries and documents are shown by their ids: {error}"]
    if record and (changed := [name for name, value in task.inputs.items() if inputs.get(name) != value]):
        return None, [f"{', '.join(changed)} changed since the evaluation, so queries and documents are shown by ids."]
    return task, []


def _lowest(evaluation: Evaluation, task: Task | None) -> Section:
    values = evaluation.by_query[PRIMARY_METRIC]
    queries = task.query_sets[0].queries if task else {}
    lowest = sorted(values, key=lambda name: (values[name], name))[:LOWEST]
    rows = [[queries.get(name, name), format_number(values[name])] for name in lowest]
    title = metric_title(PRIMARY_METRIC)
    return Section(title=f"The queries with the lowest {title}", headers=["Query", title], rows=rows)


def query_changes(before: Evaluation, after: Evaluation, task: Task | None) -> list[QueryChange]:
    """Return nDCG@10 before and after of each query, with both rankings of the queries that change most."""
    old, new = before.by_query[PRIMARY_METRIC], after.by_query[PRIMARY_METRIC]
    order = sorted(new, key=lambda name: (old[name] - new[name], name))
    gains, losses = ([name for name in order if sign * (new[name] - old[name]) > 0] for sign in (1, -1))
    shown = {*gains[:SHOWN_CHANGES], *losses[-SHOWN_CHANGES:]} if before.run and after.run else set[str]()
    best = {name: [ranked(each.run.get(name, {}))[:SHOWN_DOCUMENTS] for each in (before, after)] for name in shown}
    wanted = {document for lists in best.values() for each in lists for document in each}
    documents = task.documents() if task and wanted else ()
    texts = {n: text[:SHOWN_LETTERS] + " …" * (len(text) > SHOWN_LETTERS) for n, text in documents if n in wanted}
    queries, qrels = (task.query_sets[0].queries, task.query_sets[0].qrels) if task else ({}, {})

    def ranking(query: str, side: int) -> list[RankedDocument]:
        judged, names = qrels.get(query, {}), best[query][side] if query in best else []
        return [RankedDocument(document_id=n, text=texts.get(n, ""), grade=judged.get(n)) for n in names]

    return [
        QueryChange(
            query_id=name,
            query=queries.get(name, name),
            baseline_score=old[name],
            system_score=new[name],
            rankings=(ranking(name, 0), ranking(name, 1)),
        )
        for name in new
    ]


def summary(system: str, gaps: Mapping[str, Difference], where: str) -> str:
    """Return the verdicts on a system against each baseline as a sentence.

    Example:
        >>> summary("BiXSE", {"BM25": Difference(0.02, 0.01, 0.03, 0.01, 300)}, "held-out queries")
        'BiXSE is better than BM25 on the held-out queries.'
    """
    reason = {"no difference": " (the interval holds 0)"}
    parts = [
        f"{VERDICT_IN_A_SENTENCE[gap.verdict]} {other}" + (f" ({gap.few})" if gap.few else reason.get(gap.verdict, ""))
        for other, gap in gaps.items()
    ]
    return f"{system} is {' and '.join(parts)} on the {where}."


def _of_suite(results: Mapping[str, Any]) -> Fields:
    """Return the means of a suite, whose record has differences and no values per query."""
    systems = {name: each["means"] for name, each in results["systems"].items()}
    queries = {
        name: sum(task["queries"] for task in each["tasks"].values()) for name, each in results["systems"].items()
    }
    comparisons = [
        Comparison(each["a"], each["b"], next(iter(systems[each["a"]])),
                   Difference(each["mean"], each["low"], each["high"], each["bootstrap_p"], queries[each["a"]]))
        for each in results["comparisons"]
    ]  # fmt: skip
    notes = ["The record of a suite has no values per query: its queries are not shown.", *results["notes"]]
    return {"systems": systems, "comparisons": comparisons, "notes": notes}


# Other results


@singledispatch
def _fields(result: Any, name: str) -> Fields:
    """Return the fields of a result without values per query."""
    raise InputError(
        f"report: got {type(result).__name__} for {name}; expected run folders, or results of evaluate, compare, "
        "train, merge or calibrate; fix: report(evaluation), or report('runs/mine')"
    )


@_fields.register
def _(result: dict, name: str) -> Fields:  # type: ignore[type-arg]  # fields that a folder gave
    titled = [
        section.model_copy(update={"title": f"{name}: {section.title}"}) for section in result.get("sections", [])
    ]
    return {**result, "sections": titled}


@_fields.register
def _(result: Comparisons, name: str) -> Fields:
    systems: dict[str, Any] = {side: {} for pair in result for side in (pair.baseline, pair.system)}
    return {"systems": systems, "primary_metric": result[0].metric, "comparisons": [*result]}


@_fields.register(Trained)
@_fields.register(TrainResult)
def _(result: Trained | TrainResult, name: str) -> Fields:
    best_step, figures = getattr(result, "best_step", None), dev_figures(result.history)
    training: Fields = {"training": [training_curve(name, result.history, best_step)]}
    if result.merge is not None:
        return _joined([training, _fields(result.merge, name)])
    if best_step not in figures:
        return training
    steps = {"before training": 0, f"step {best_step}": best_step}
    return training | {
        "systems": {
            f"{name}, {label}": {"ndcg@10 on dev": figures[step]} for label, step in steps.items() if step in figures
        },
        "notes": [f"{name}: the log has no values per query on dev, so no interval is shown."],
    }


@_fields.register(Merged)
@_fields.register(MergeResult)
def _(result: Merged | MergeResult, name: str) -> Fields:
    result = result.result if isinstance(result, Merged) else result
    if not result.points:
        return {"sections": [Section(title=f"{name}: merge", lines=result.lines())]}
    labels = {0.0: "base model", 1.0: "tuned", result.weight: f"merged (weight {result.weight:g})"}
    kinds = {"tuned": labels[1.0], "merged": labels[result.weight]}
    points = {point.weight: point for point in result.points if point.weight in labels}
    comparisons: dict[str, list[Comparison]] = {"dev": [], "guard": []}
    for change in result.changes:
        if change.model == "merged" or result.weight != 1:  # at weight 1 both are one model
            gap = Difference(change.mean, change.low, change.high, change.p_value, change.queries)
            names = f"{name}, {kinds[change.model]}", f"{name}, {labels[0.0]}"
            comparisons[change.role].append(Comparison(*names, f"ndcg@10 on {change.collection}", gap))
    return {
        "systems": {
            f"{name}, {label}": {f"ndcg@10 on {each}": score for each, score in points[weight].scores.items()}
            for weight, label in sorted(labels.items())
        },
        "comparisons": comparisons["dev"],
        "guard": comparisons["guard"],
        "merges": [merge_curve(name, result)],
        "notes": [f"{name}: dev has chosen the weight, so its figures are optimistic; evaluate on other queries."]
        * (result.candidates > 1),
    }


def merge_curve(system: str, merged: MergeResult) -> MergeCurve:
    """Return a merge's scores as a curve of the report."""
    guards = sorted({change.collection for change in merged.changes if change.role == "guard"})
    drawn: Any = {"weight": merged.weight, "points": merged.points, "tolerance": merged.tolerance}
    return MergeCurve(system=system, reason=". ".join(merged.reason()), guards=guards, **drawn)


@_fields.register(Calibration)
@_fields.register(CalibrateResult)
def _(result: Calibration | CalibrateResult, name: str) -> Fields:
    auc = [] if result.check.auc is None else [f"{result.check.auc} of one threshold for all queries."]
    lines = [*auc, *(f"{format_threshold(point)}." for point in getattr(result, "points", ()))]
    return {
        "verdicts": [f"{name}: {result.check.finding}."],
        "calibrations": {f"{name}, {kind}": each for kind, each in result.check.reports.items()},
        "sections": [Section(title=f"{name}: thresholds on held-out pairs", lines=lines)] * bool(lines),
    }


def _of_grades(summary: Mapping[str, Any], judge: str, **rest: Any) -> Fields:
    """Return the statuses and the spread of a judge's grades."""
    graded, tenths = summary["statuses"].get("graded", 0), summary["relevance_tenths"]
    mean = "" if summary["mean_relevance"] is None else f", mean relevance {format_number(summary['mean_relevance'])}"
    rows = [[f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", str(count)] for tenth, count in enumerate(tenths)]
    statuses = ", ".join(f"{count} {status}" for status, count in summary["statuses"].items())
    lines = [f"{graded} of {summary['pairs'] + summary['not_asked']} pairs graded by {judge}{mean}.",
             f"Answers: {statuses or 'none'}."]  # fmt: skip
    return {"sections": [Section(title="grades", lines=lines, headers=["Relevance", "Pairs"], rows=rows)]}
