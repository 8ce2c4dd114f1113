"""Settle: the pairs where people differ, side by side, and the grade that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.ui.agreement_so_far import people_agreement
from bixse.ui.cards import event_of, make_card, options
from bixse.ui.ui_page import Page, with_pairs

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

AT_ONCE = 20
"""Pairs on one page."""


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """Pairs that are not settled, oldest first."""
    found = people_agreement(workspace.labels, workspace.rubric)
    rows = [row for pair in found.differing if (row := workspace.index.row_of.get(pair)) is not None]
    cards = [make_card(workspace, row, whole=visit.query.get("all") == str(row)) for row in rows[:AT_ONCE]]
    return {"found": found, "cards": cards, "more": len(rows) - len(cards), "options": options(workspace)}


def settle(workspace: Workspace, visit: Visit) -> str:
    """Write the final grade of a pair."""
    event = event_of(workspace, visit, final=True)
    if workspace.labels.add(event):
        visit.session.said.append(f"Settled: {event.grade:g} for {event.document_id}.")
    return "/adjudicate"


PAGE = Page("adjudicate", "Settle", show, {"settle": settle}, needs_person=True, fits=with_pairs)
