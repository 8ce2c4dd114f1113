"""Wins and losses: the difference of two systems query by query, and whether it is more than chance."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from bixse.report.plots import Plot
    from bixse.report.schema import QueryChange
    from bixse.ui.systems.two_systems import TwoSystems
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

AT_ONCE = 50
"""Queries on one page."""


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The verdict, and the queries from the largest gain of the second system to its largest loss."""
    from bixse.evaluation.metrics import METRICS

    systems = workspace.systems
    assert systems is not None
    if not systems.start("compare"):
        return {"loading": systems.doing, "error": systems.error, "names": systems.names}
    metric = visit.query.get("metric", "")
    metric = metric if metric in METRICS else METRICS[0]
    found = changes(systems, metric)
    worst = visit.query.get("from") == "losses"
    start = min(visit.number("start"), max(0, len(found) - 1))
    ordered = found[::-1] if worst else found
    return {
        "loading": None,
        "error": None,
        "names": systems.names,
        "metric": metric,
        "metrics": METRICS,
        "changes": ordered[start : start + AT_ONCE],
        "start": start,
        "step": AT_ONCE,
        "queries": len(found),
        "worst": worst,
        "gained": sum(change.change > 0 for change in found),
        "lost": sum(change.change < 0 for change in found),
        "most": max((abs(change.change) for change in found), default=0.0) or 1.0,
        "means": [sum(own[metric].values()) / len(own[metric]) for own in systems.per_query],
        "difference": systems.difference(metric),
        "command": _command(workspace, systems),
    }


def changes(systems: TwoSystems, metric: str) -> list[QueryChange]:
    """Of every judged query, the largest gain first."""
    from bixse.report.schema import QueryChange

    before, after = (own[metric] for own in systems.per_query)
    texts = systems.queries
    found = [
        QueryChange(
            query_id=query_id, query=texts[query_id], baseline_score=before[query_id], system_score=after[query_id]
        )
        for query_id in before
    ]
    return sorted(found, key=lambda change: (-change.change, change.query_id))


def picture(workspace: Workspace, visit: Visit) -> Plot | None:
    """All changes, sorted."""
    from bixse.evaluation.metrics import METRICS
    from bixse.report.plots import gains_and_losses_plot

    systems, metric = workspace.systems, visit.query.get("metric", "")
    if systems is None or metric not in METRICS or not systems.start("compare"):
        return None
    return gains_and_losses_plot(changes(systems, metric), metric)


def _command(workspace: Workspace, systems: TwoSystems) -> str:
    settings = workspace.settings
    where = ["--collection", str(settings.collection), "--split", settings.split]
    if settings.min_relevant_grade != 1:
        where += ["--min-relevant-grade", f"{settings.min_relevant_grade:g}"]
    return shlex.join(["bixse", "evaluate", *reversed(systems.names), *where])


def fits(workspace: Workspace) -> bool:
    """Where two systems and judgements were named."""
    return workspace.systems is not None and workspace.settings.collection is not None


PAGE = Page("wins", "Wins and losses", show, fits=fits, pictures={"changes": picture})
