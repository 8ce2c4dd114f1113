"""Compare evaluations on the same queries: differences with intervals, p-values and verdicts, and their tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bixse.data.run import Run, open_run
from bixse.errors import InputError, shorten
from bixse.evaluation.evaluate import Evaluation
from bixse.evaluation.evaluate_files import evaluate_query_sets
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC, ir_name
from bixse.evaluation.statistics import Floats, holm, mean_difference, paired_differences, sign_flip_test
from bixse.files.files import write_atomically
from bixse.files.run_folder import RUN_FILE
from bixse.rendering.table import Cell, Table, format_table
from bixse.rendering.wording import format_difference, format_interval, format_p_value, format_verdict, metric_title
from bixse.results import LOCAL, TestedDifference, Verdict

if TYPE_CHECKING:
    from bixse.evaluation.systems import System
    from bixse.progress import ProgressBars
    from bixse.search.tasks import Task

Values: TypeAlias = "Mapping[str, Mapping[str, float]]"
"""Task -> query id -> value of one metric."""
RESULTS_FILE = "results.json"
COLUMNS = ("95 % interval", "p", "p (Holm)", "better / worse", "verdict")


class Comparisons(Table, tuple[TestedDifference, ...]):
    """The differences of pairs of systems; each verdict is for one pair alone, p (Holm) corrects for all pairs.

    Example:
        >>> base = Evaluation("toy", {"ndcg@10": 0.3}, {"ndcg@10": {"q1": 0.1, "q2": 0.5}}, {}, 0.0)
        >>> pairs = compare({"a": base, "b": base})
        >>> pairs.verdict, pairs[0].difference.mean, pairs[0].holm_p
        ('no difference', 0.0, 1.0)
    """

    @property
    def verdict(self) -> Verdict:
        """The verdict of the only pair."""
        if len(self) != 1:
            raise InputError(f"verdict: got {len(self)} pairs; expected one; fix: read it of each: comparisons[0]")
        return self[0].verdict

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        metric = metric_title(self[0].metric) if self else ""
        rows = [[f"{pair.system} − {pair.baseline}", *difference_cells(pair)] for pair in self]
        return ["difference", metric, *COLUMNS], rows

    def text(self) -> str:
        """Return the table, and how its figures were made."""
        pairs = len(self)
        several = f" {pairs} pairs are compared: each verdict is for one pair alone, p (Holm) corrects for all pairs."
        end = several if pairs > 1 else ""
        how = "Intervals: Student's t, widened for skewed differences, over queries within tasks; "
        shown = any(pair.difference.low is not None for pair in self)
        return f"{self}\n\n{how if shown else ''}p: randomisation test.{end}"


def difference_cells(tested: TestedDifference) -> list[Cell]:
    """Return the cells of `COLUMNS` after that of the mean difference."""
    return [
        format_difference(tested.difference.mean),
        format_interval(tested.difference.low, tested.difference.high, signed=True),
        format_p_value(tested.randomisation_p),
        format_p_value(tested.holm_p),
        f"{tested.wins} / {tested.losses}",
        format_verdict(tested.difference),
    ]


def compare(
    systems: Evaluation | Mapping[str, Evaluation],
    baseline: Evaluation | str | None = None,
    metric: str = PRIMARY_METRIC,
) -> Comparisons:
    """Compare evaluations on the same queries: difference, interval, p-values, wins and losses, and a verdict.

    Args:
        systems: an evaluation, or name -> evaluation.
        baseline: the evaluation that is subtracted, or its name in `systems`. None compares every pair.
        metric: the metric to compare, such as "nDCG@10" or "R@100".

    Raises:
        InputError: evaluations of other queries, fewer than two, or an unknown baseline or metric.

    Example:
        >>> from bixse.evaluation.evaluate import Evaluation
        >>> queries = [f"q{n}" for n in range(50)]
        >>> base = Evaluation("t", {"ndcg@10": 0.5}, {"ndcg@10": dict.fromkeys(queries, 0.5)}, {}, 0)
        >>> tuned = Evaluation("t", {"ndcg@10": 0.6}, {"ndcg@10": dict(zip(queries, [0.5, 0.7] * 25))}, {}, 0)
        >>> compare(tuned, baseline=base).verdict, compare({"base": base, "tuned": tuned}, baseline="base")[0].wins
        ('better', 25)
    """
    named: dict[str, Evaluation] = {}
    if isinstance(systems, Evaluation) and isinstance(baseline, Evaluation):
        first, last = systems.system or "system", baseline.system or "baseline"
        last += " (baseline)" * (first == last)
        named, baseline = {first: systems, last: baseline}, last
    elif isinstance(systems, Mapping) and not isinstance(systems, Evaluation):
        named = dict(systems)
    every = all(isinstance(each, Evaluation) for each in named.values())
    if not every or len(named) < 2 or not (baseline is None or (isinstance(baseline, str) and baseline in named)):
        got = [type(each).__name__ for each in named.values()] or [type(systems).__name__]
        raise InputError(
            f"compare: got {', '.join(got)} with the baseline {shorten(baseline)}; expected two results of "
            "bixse.evaluate or more, one of which is the baseline; fix: compare(tuned, baseline=base), or "
            "compare({'base': base, 'tuned': tuned}, baseline='base')"
        )
    metric = {ir_name(name): name for name in METRICS}.get(metric, metric)
    return compare_tasks({name: {LOCAL: each} for name, each in named.items()}, baseline, metric)


def compare_tasks(
    scores: Mapping[str, Mapping[str, Evaluation]],
    baseline: str | None = None,
    metric: str = PRIMARY_METRIC,
    grouped: bool = True,
) -> Comparisons:
    """Compare every pair of systems (system -> task -> evaluation), or each with a baseline, on the same queries.

    With `grouped`, the tasks of a group count as one task.
    """
    every = [each for tasks in scores.values() for each in tasks.values()]
    if lacking := [each for each in every if metric not in each.by_query]:
        raise InputError(
            f"metric: got {metric!r}; expected one of {', '.join(lacking[0].by_query)}; fix: name one of these"
        )
    values = {name: {task: each.by_query[metric] for task, each in tasks.items()} for name, tasks in scores.items()}
    groups = {task: each.group for tasks in scores.values() for task, each in tasks.items() if grouped}
    # each task has the scatter of its own queries: the intervals cover the choice of queries, not the choice of tasks
    names = combinations(values, 2) if baseline is None else ((name, baseline) for name in values if name != baseline)
    pairs = [_compare(a, b, metric, values[a], values[b], groups) for a, b in names]
    p_values = holm([pair.randomisation_p for pair in pairs])
    by_task = iter(holm([task.randomisation_p for pair in pairs for task in pair.tasks]))
    return Comparisons(
        replace(pair, holm_p=p_value, tasks=tuple(replace(task, holm_p=next(by_task)) for task in pair.tasks))
        for pair, p_value in zip(pairs, p_values, strict=True)
    )


def _compare(
    a: str, b: str, metric: str, first: Values, second: Values, group_of: Mapping[str, str]
) -> TestedDifference:
    """Compare two systems, without correction of the p-values."""
    differences = {task: paired_differences(first[task], second[task]) for task in first}
    group = {task: group_of.get(task, task) for task in sorted(first)}
    sizes = Counter(group.values())
    weights = {task: 1 / (len(sizes) * sizes[name]) for task, name in group.items()}
    total = sum(map(len, differences.values()))
    counted = [differences[task] * (total * weight / len(differences[task])) for task, weight in weights.items()]

    def tested(strata: Sequence[Floats], shares: Sequence[float], counted: Floats, **of_task: Any) -> TestedDifference:
        wins, losses = (int((sign * counted > 0).sum()) for sign in (1, -1))
        difference, p_value = mean_difference(strata, shares), sign_flip_test(counted)
        return TestedDifference(
            system=a, baseline=b, metric=metric, difference=difference, randomisation_p=p_value, wins=wins,
            losses=losses, **of_task,
        )  # fmt: skip

    by_task = tuple(tested([each], [1.0], each, task=task) for task, each in differences.items())
    strata = [differences[task] for task in weights]
    return tested(strata, list(weights.values()), np.concatenate(counted), tasks=by_task)


@dataclass(frozen=True)
class EvaluatedSystems:
    """The evaluations of several systems on the same tasks, with the difference of every pair."""

    scores: Mapping[str, Mapping[str, Evaluation]]
    """System -> task -> evaluation."""
    means: Mapping[str, Mapping[str, float]]
    """System -> name of the mean -> mean of the headline metric, with equal weight per group of tasks."""
    comparisons: Comparisons = field(default_factory=Comparisons)
    precision: str | None = None
    suite: str = LOCAL
    headline: str = PRIMARY_METRIC
    """The metric of the table: ndcg@10, or main for mteb's suites."""
    notes: Sequence[str] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    """System and task -> reason of the failure."""

    def plain(self) -> dict[str, Any]:
        """Return all figures as JSON data, without the values per query."""
        return {
            "suite": self.suite,
            "headline": self.headline,
            "precision": self.precision,
            "systems": {
                system: {
                    "means": dict(self.means[system]),
                    "tasks": {
                        task: {**score.metrics, "queries": len(next(iter(score.by_query.values()), {}))}
                        for task, score in scores.items()
                    },
                }
                for system, scores in self.scores.items()
            },
            "comparisons": [
                {
                    "a": pair.system,
                    "b": pair.baseline,
                    **_plain(pair),
                    "tasks": {task.task: _plain(task) for task in pair.tasks},
                }
                for pair in self.comparisons
            ],
            "notes": list(self.notes),
            "failures": dict(self.failures),
        }

    def write(self, folder: Path) -> None:
        write_atomically(folder / RESULTS_FILE, json.dumps(self.plain(), indent=2) + "\n")

    def text(self) -> str:
        """Return the tables of one or more systems on one collection, with all metrics."""
        scores = {system: next(iter(scores_of.values())) for system, scores_of in self.scores.items()}
        metrics = list(next(iter(scores.values())).metrics)
        if len(scores) == 1:
            return format_table(
                [list(row) for score in scores.values() for row in score.metrics.items()], ["metric", "mean"]
            )
        rows: list[list[Cell]] = [
            [system, *(score.metrics[name] for name in metrics)] for system, score in scores.items()
        ]
        parts = [format_table(rows, ["system", *metrics]), *([self.comparisons.text()] if self.comparisons else [])]
        return "\n\n".join([*parts, *([f"Precision: {self.precision}."] if self.precision else [])])


def _plain(tested: TestedDifference) -> dict[str, Any]:
    return {
        "mean": tested.difference.mean,
        "low": tested.difference.low,
        "high": tested.difference.high,
        "bootstrap_p": tested.difference.p_value,
        "randomisation_p": tested.randomisation_p,
        "holm_p": tested.holm_p,
        "verdict": tested.verdict,
    }


def evaluate_systems(
    systems: Sequence[System], task: Task, out: Path | None = None, progress: ProgressBars | None = None
) -> EvaluatedSystems:
    """Evaluate systems on one task. Several systems have one folder each: <out>/<name and hash of the model>.

    The record of `out` names these folders. The same call with other systems adds theirs, and names them instead.
    """
    check_distinct(systems)
    root = _open_root(systems, task, out) if out is not None and len(systems) > 1 else None
    scores = {}
    for system, shown in zip(systems, shown_names(systems), strict=True):
        folder = out / system.name if out is not None and root is not None else out
        evaluation = evaluate_query_sets(system, task, folder, progress)[task.name]
        scores[shown] = {task.name: replace(evaluation, run={})}
        system.release()
        if root is not None:  # not before, so that a refused command leaves no record
            root.save("running")
    means = {shown: {PRIMARY_METRIC: tasks_of[task.name].metrics[PRIMARY_METRIC]} for shown, tasks_of in scores.items()}
    comparisons = compare_tasks(scores) if len(systems) > 1 else Comparisons()
    result = EvaluatedSystems(scores, means, comparisons, precision_of(systems))
    if root is not None:
        root.results |= result.plain()
        result.write(root.folder)
        root.save("finished" if all(system.complete for system in systems) else "interrupted")
    return result


def _open_root(systems: Sequence[System], task: Task, out: Path) -> Run:
    """Return the record of a folder of several evaluations; an earlier version wrote none."""
    settings = {**task.settings, "exclude_self": task.exclude_self, "min_relevant_grade": task.min_relevant_grade}
    names = [system.name for system in systems]
    if not (out / RUN_FILE).exists() and any((out / name / RUN_FILE).is_file() for name in names):
        root = Run(out, "evaluate", settings, task.inputs, ("collection",))
    else:
        root = open_run(out, "evaluate", settings, task.inputs, ("collection",))
    root.results = {"folders": names}
    return root


def shown_names(systems: Sequence[System]) -> list[str]:
    """Return each system's label, or its name with the hash if two labels are equal."""
    labels = [system.label for system in systems]
    return [system.label if labels.count(system.label) == 1 else system.name for system in systems]


def precision_of(systems: Sequence[System]) -> str | None:
    """Return the dtype of the first system with a model."""
    return next((system.precision for system in systems if system.precision is not None), None)


def check_distinct(systems: Sequence[System]) -> None:
    """Raise InputError for a checkpoint that is named twice."""
    for first, second in combinations(systems, 2):
        if first.name == second.name:
            raise InputError(
                f"models: got {first.label!r} and {second.label!r}, which are the same checkpoint; expected each once; "
                "fix: leave one out"
            )
