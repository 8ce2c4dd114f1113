"""Pages for two systems: hits side by side, wins and losses per query, and the calibration of probabilities."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bixse.errors import BixseError, InputError, shorten
from bixse.report.schema import QueryChange
from bixse.ui.pages.label import event_of, grading_form
from bixse.ui.workspace import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.report.plots import Plot
    from bixse.search.search_collection import Hit
    from bixse.ui.searcher import Searcher
    from bixse.ui.two_systems import TwoSystems
    from bixse.ui.workspace import Visit, Workspace

TOPS = (5, 10, 20)
SHOWN_QUERIES = 500
"""Number of queries in the list; other queries of the collection are found by typing."""
ROW = 10
"""Height of a row in the SVG of the lines."""
CHANGES_AT_ONCE = 50
"""Queries per page of wins and losses."""
LOWEST, HIGHEST = -4.0, -0.1
"""Ends of the slider, as log10 of the prior."""


@dataclass(frozen=True)
class HitRow:
    """A hit with its rank in both lists."""

    hit: Hit
    ranks: tuple[int | None, int | None]
    grade: float | None
    """Grade in the collection's judgements."""
    own: float | None
    """Grade by the person."""
    is_below: bool
    """True if the probability is below the threshold."""

    @property
    def move(self) -> str:
        return " → ".join("–" if rank is None else str(rank) for rank in self.ranks)

    @property
    def way(self) -> str:
        """The CSS class for the change from the first to the second system."""
        before, after = self.ranks
        if before is None or after is None:
            return "new" if before is None else "gone"
        return "up" if after < before else "down" if after > before else "same"


def compare(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The values of the page: both lists, or the progress of loading."""
    systems = workspace.systems
    assert systems is not None
    if loading := systems.loading():
        return loading
    query = visit.query
    asked = query.get("query") or systems.query_of.get(query.get("text", "").strip())
    queries = systems.collection.queries if systems.collection is not None else {}
    query_id = asked if asked in queries else None
    text = query.get("text", "") if query_id is None else queries[query_id]
    probability = _probability(query.get("p", ""))
    top = next((number for number in TOPS if query.get("top") == str(number)), 10)
    sides: list[list[HitRow]] = []
    problem = None
    if text.strip():
        try:
            answers = [systems.answer(side, text, query_id, top) for side in (0, 1)]
            sides = _rows(workspace, visit, answers, query_id or "", probability)
        except BixseError as error:
            problem = str(error)
    return {
        "loading": None,
        "error": None,
        "text": text,
        "query_id": query_id,
        "top": top,
        "tops": TOPS,
        "p": probability,
        "names": systems.names,
        "kinds": [searcher.kind for searcher in systems.searchers],
        "queries": list(systems.queries.items())[:SHOWN_QUERIES],
        "sides": sides,
        "problem": problem,
        "lines": _lines(*sides) if sides else [],
        "height": ROW * max((len(rows) for rows in sides), default=0),
        "cuts": [_cut(systems, searcher, probability) for searcher in systems.searchers],
        **grading_form(workspace),
        "commands": _commands(workspace, systems.searchers, text if sides else "", top, probability),
        "address": urlencode({"text": text} if query_id is None else {"query": query_id}),
    }


def _probability(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        return 0.5
    return min(max(found, 0.001), 0.999) if math.isfinite(found) else 0.5  # 0 and 1 have no finite logit


def _rows(
    workspace: Workspace, visit: Visit, answers: list[list[Hit]], query_id: str, probability: float
) -> list[list[HitRow]]:
    assert workspace.systems is not None
    ranks = [{hit.document_id: rank for rank, hit in enumerate(hits, start=1)} for hits in answers]
    judged, words = workspace.systems.qrels.get(query_id, {}), workspace.labels.words

    def row(hit: Hit) -> HitRow:
        name = hit.document_id
        word = words.get((query_id, name), {}).get(visit.person)
        below = hit.probability is not None and hit.probability < probability
        grade = word.grade if word is not None else None
        return HitRow(hit, (ranks[0].get(name), ranks[1].get(name)), judged.get(name), grade, below)

    return [[row(hit) for hit in hits] for hits in answers]


def _lines(left: Sequence[HitRow], right: Sequence[HitRow]) -> list[tuple[str, str]]:
    """The CSS class and SVG path of each document's line, from the first list to the second or to its end."""

    def height(rank: int) -> float:
        return ROW * (rank - 0.5)

    found = []
    for row in [*left, *(row for row in right if row.ranks[0] is None)]:
        before, after = row.ranks
        if before is not None and after is not None:
            path = f"M0 {height(before):g}C45 {height(before):g} 55 {height(after):g} 100 {height(after):g}"
        elif before is not None:
            path = f"M0 {height(before):g}H16"
        else:
            path = f"M84 {height(after or 1):g}H100"
        found.append((row.way, path))
    return found


def _cut(systems: TwoSystems, searcher: Searcher, probability: float) -> dict[str, Any] | None:
    """The figures of the threshold for one system; None if it has no probabilities."""
    head = searcher.head
    if head is None:
        return None
    cut: dict[str, Any] = {"point": None, "problem": None, "cosine": None, "thresholds": head.thresholds}
    try:
        cut["cosine"] = head.cosine_at(probability)
        cut["point"] = systems.measured(searcher, head, probability)
    except InputError as error:
        cut["problem"] = str(error)
    return cut


def _commands(
    workspace: Workspace, searchers: Sequence[Searcher], text: str, top: int, probability: float
) -> list[str]:
    """The commands that find the same hits, and the commands that export the same threshold."""
    settings, found = workspace.settings, []
    for searcher in searchers if text else ():
        if searcher.kind in ("model", "index"):
            where = ["--collection", str(settings.collection)] if searcher.kind == "model" else []
            words = ["bixse", "search", searcher.name, *where, text, "--top", str(top)]
            found.append(words + (["--threshold", f"{probability:g}"] if searcher.head is not None else []))
    for searcher in searchers:
        if searcher.head is not None and settings.held_out is not None:
            pairs = ["--pairs", str(settings.held_out), "--seed", str(settings.seed)]
            words = ["bixse", "calibrate", searcher.name, *pairs, "--export", f"{probability:g}", "--out", "calibrated"]
            found.append(words)
    return [shlex.join(words) for words in found]


def grade(workspace: Workspace, visit: Visit) -> str:
    """Write a person's grade of a hit, and show the same lists again."""
    systems, form = workspace.systems, visit.form
    assert systems is not None
    query_id, document_id = form.get("query_id", ""), form.get("document_id", "")
    back = f"/compare?{urlencode({'query': query_id, 'p': form.get('p', ''), 'top': form.get('top', '')})}"
    if not visit.person:
        visit.session.said.append("Nothing is saved: give your name first, below the query.")
        return back
    collection = systems.collection
    if collection is None or query_id not in collection.queries or document_id not in collection.corpus:
        raise InputError(
            f"label: got the pair {shorten((query_id, document_id))}; expected ids of the collection, as labels keep "
            "no texts; fix: add the query to queries.jsonl"
        )
    event = event_of(workspace, visit, chosen=True)
    if workspace.labels.add(event):
        visit.session.said.append(f"Saved: {form.get('answer', '')} for {document_id}.")
    return back


def wins(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The verdict, and the queries from the largest gain of the second system to its largest loss."""
    from bixse.evaluation.metrics import METRICS

    systems = workspace.systems
    assert systems is not None
    if loading := systems.loading("compare"):
        return loading
    metric = visit.query.get("metric", "")
    metric = metric if metric in METRICS else METRICS[0]
    found = _changes(systems, metric)
    worst = visit.query.get("from") == "losses"
    start = min(visit.number("start"), max(0, len(found) - 1))
    ordered = found[::-1] if worst else found
    return {
        "loading": None,
        "error": None,
        "names": systems.names,
        "metric": metric,
        "metrics": METRICS,
        "changes": ordered[start : start + CHANGES_AT_ONCE],
        "start": start,
        "step": CHANGES_AT_ONCE,
        "queries": len(found),
        "worst": worst,
        "gained": sum(change.change > 0 for change in found),
        "lost": sum(change.change < 0 for change in found),
        "most": max((abs(change.change) for change in found), default=0.0) or 1.0,
        "means": [sum(values[metric].values()) / len(values[metric]) for values in systems.per_query],
        "difference": systems.difference(metric),
        "command": _evaluate_command(workspace),
    }


def _changes(systems: TwoSystems, metric: str) -> list[QueryChange]:
    """The change of every judged query, the largest gain first."""
    before, after = (values[metric] for values in systems.per_query)
    texts = systems.queries
    changes = [
        QueryChange(
            query_id=query_id, query=texts[query_id], baseline_score=before[query_id], system_score=after[query_id]
        )
        for query_id in before
    ]
    return sorted(changes, key=lambda change: (-change.change, change.query_id))


def draw_changes(workspace: Workspace, visit: Visit) -> Plot | None:
    """Plot all changes, sorted."""
    from bixse.evaluation.metrics import METRICS
    from bixse.report.plots import gains_and_losses_plot

    systems, metric = workspace.systems, visit.query.get("metric", "")
    if systems is None or metric not in METRICS or systems.loading("compare"):
        return None
    return gains_and_losses_plot(_changes(systems, metric), metric)


def _evaluate_command(workspace: Workspace) -> str:
    settings = workspace.settings
    where = ["--collection", str(settings.collection), "--split", settings.split]
    if settings.min_relevant_grade != 1:
        where += ["--min-relevant-grade", f"{settings.min_relevant_grade:g}"]
    return shlex.join(["bixse", "evaluate", *reversed(settings.systems), *where])


def calibration(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The figures before and after a calibration on half of the queries, measured on the other half."""
    systems = workspace.systems
    assert systems is not None
    if loading := systems.loading():
        return loading
    side, prior = _asked(systems, visit)
    values: dict[str, Any] = {"loading": None, "error": None, "names": systems.names, "side": side, "prior": prior}
    values |= {"ends": (LOWEST, HIGHEST), "sides": _sides(systems), "exponent": visit.query.get("exponent", "")}
    if not values["sides"]:
        error = "got no system with a relevance head; expected one; fix: run `bixse calibrate` on a model"
        return {**values, "error": error}
    command = ["bixse", "calibrate", systems.names[side], "--pairs", str(workspace.settings.held_out)]
    command += ["--seed", str(workspace.settings.seed)] + (["--prior", f"{prior:g}"] if prior else [])
    values["command"] = shlex.join([*command, "--out", "calibrated"])
    try:
        return {**values, "check": systems.check(side, prior), "problem": None}
    except InputError as error:
        return {**values, "check": None, "problem": str(error)}


def _sides(systems: TwoSystems) -> list[int]:
    """The indices of the systems that have probabilities."""
    return [side for side, searcher in enumerate(systems.searchers) if searcher.name in systems.judged]


def _asked(systems: TwoSystems, visit: Visit) -> tuple[int, float | None]:
    """The system and the prior that the address names; the prior None is that of the pairs."""
    sides = _sides(systems) or [0]
    asked = visit.query.get("side", "")
    side = int(asked) if asked in map(str, sides) else sides[0]
    try:
        exponent = float(visit.query.get("exponent", ""))
    except ValueError:
        return side, None
    return side, float(f"{10**exponent:.3g}") if LOWEST <= exponent <= HIGHEST else None  # as the command has it


def draw_reliability(workspace: Workspace, visit: Visit) -> Plot | None:
    """Plot the reliability diagram of the calibrated probabilities."""
    from bixse.report.plots import reliability_diagram

    systems = workspace.systems
    if systems is None or systems.loading() or not _sides(systems):
        return None
    side, prior = _asked(systems, visit)
    return reliability_diagram(systems.check(side, prior).calibrated, "calibrated, held-out half")


def _has_collection(workspace: Workspace) -> bool:
    return workspace.systems is not None and workspace.settings.collection is not None


PAGES = (
    Page(
        "compare",
        "Search",
        compare,
        lambda workspace: workspace.systems is not None,
        {"grade": grade},
        {"results": compare},
    ),
    Page("wins", "Wins and losses", wins, _has_collection, pictures={"changes": draw_changes}),
    Page(
        "calibration",
        "Calibration",
        calibration,
        lambda workspace: workspace.settings.held_out is not None,
        parts={"figures": calibration},
        pictures={"diagram": draw_reliability},
    ),
)
