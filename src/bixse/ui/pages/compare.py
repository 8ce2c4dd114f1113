"""Search: the hits of two systems side by side, what moved between them, and what a threshold would keep."""

from __future__ import annotations

import math
import secrets
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bixse.errors import BixseError, InputError, shorten
from bixse.ui.cards import event_of, options
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.search.search_collection import Hit
    from bixse.ui.systems.searcher import Searcher
    from bixse.ui.systems.two_systems import TwoSystems
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

TOPS = (5, 10, 20)
SHOWN_QUERIES = 500
"""Of the collection, to pick from; others are found by typing."""
ROW = 10
"""Height of a row in the drawing of lines."""


@dataclass(frozen=True)
class HitRow:
    """A hit with its rank on both sides."""

    hit: Hit
    ranks: tuple[int | None, int | None]
    grade: float | None
    """Of the collection's judgements."""
    own: float | None
    """The person's."""
    is_below: bool
    """Less probable than the threshold."""

    @property
    def move(self) -> str:
        """From the first system's rank to the second's."""
        return " → ".join("–" if rank is None else str(rank) for rank in self.ranks)

    @property
    def way(self) -> str:
        """A word for the style: what the second system did."""
        before, after = self.ranks
        if before is None or after is None:
            return "new" if before is None else "gone"
        return "up" if after < before else "down" if after > before else "same"


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """Both lists, or what is still being loaded."""
    systems = workspace.systems
    assert systems is not None
    if not systems.start():
        return {"loading": systems.doing, "error": systems.error, "names": systems.names}
    return {"loading": None, "error": None, **_values(workspace, systems, visit)}


def _values(workspace: Workspace, systems: TwoSystems, visit: Visit) -> dict[str, Any]:
    query = visit.query
    query_id = query.get("query") or systems.query_of.get(query.get("text", "").strip())
    collection = systems.collection
    known = collection is not None and query_id in collection.queries
    text = collection.queries[query_id] if collection is not None and query_id and known else query.get("text", "")
    probability = _probability(query.get("p", ""))
    top = next((number for number in TOPS if query.get("top") == str(number)), 10)
    sides, problem = _sides(workspace, systems, visit, text, query_id if known else None, top, probability)
    return {
        "text": text,
        "query_id": query_id if known else None,
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
        "options": options(workspace),
        "event": secrets.token_hex(8),
        "shown_at": time.time(),
        "commands": _commands(workspace, systems.searchers, text if sides else "", top, probability),
        "address": urlencode({"query": query_id} if known else {"text": text}),
    }


def _probability(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        return 0.5
    return min(max(found, 0.001), 0.999) if math.isfinite(found) else 0.5


def _sides(
    workspace: Workspace,
    systems: TwoSystems,
    visit: Visit,
    text: str,
    query_id: str | None,
    top: int,
    probability: float,
) -> tuple[list[list[HitRow]], str | None]:
    """The rows of both systems, or why there are none."""
    if not text.strip():
        return [], None
    try:
        answers = [systems.answer(side, text, query_id, top) for side in (0, 1)]
    except BixseError as error:
        return [], str(error)
    ranks = [{hit.document_id: rank for rank, hit in enumerate(hits, start=1)} for hits in answers]
    judged, words = systems.qrels.get(query_id or "", {}), workspace.labels.words
    found = []
    for hits in answers:
        rows = []
        for hit in hits:
            name = hit.document_id
            own = words.get((query_id or "", name), {}).get(visit.person)
            below = hit.probability is not None and hit.probability < probability
            places = (ranks[0].get(name), ranks[1].get(name))
            rows.append(HitRow(hit, places, judged.get(name), own.grade if own is not None else None, below))
        found.append(rows)
    return found, None


def _lines(left: Sequence[HitRow], right: Sequence[HitRow]) -> list[tuple[str, str]]:
    """Style and path of a line for each document, from the first list to the second or to where it ends."""

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
    """What the threshold gives for one system; None for one without probabilities."""
    head = searcher.head
    if head is None:
        return None
    found: dict[str, Any] = {"point": None, "problem": None, "cosine": None, "thresholds": head.thresholds}
    try:
        found["cosine"] = head.cosine_at(probability)
        found["point"] = systems.measured(searcher, head, probability)
    except InputError as error:
        found["problem"] = str(error)
    return found


def _commands(
    workspace: Workspace, searchers: Sequence[Searcher], text: str, top: int, probability: float
) -> list[str]:
    """What finds the same hits, and what writes the same cut."""
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


def fits(workspace: Workspace) -> bool:
    """Where two systems were named."""
    return workspace.systems is not None


PAGE = Page("compare", "Search", show, {"grade": grade}, {"results": show}, fits)
