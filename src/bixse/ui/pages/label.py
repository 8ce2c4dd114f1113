"""Label: one query with its documents; the judge's and other people's grades show when all of them have one's own."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bixse.ui.cards import event_name, event_of, make_card, options
from bixse.ui.label_log import LabelEvent
from bixse.ui.rubric_trials import current_rubric
from bixse.ui.ui_page import Page, with_pairs

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The next query, or the one that is named; above it the one that `done` names, if it is complete."""
    desk, person = workspace.desk, visit.person
    query_id = visit.query.get("query") or desk.next_query(person)
    rows = desk.rows_for(query_id, person) if query_id is not None else []
    cards = [make_card(workspace, row, whole=visit.query.get("all") == str(row)) for row in rows]
    still_open = [card.row for card in cards if desk.is_open(card.row, person)]
    shown = workspace.labels.shown_to(person)
    done = [make_card(workspace, row) for row in desk.rows_for(visit.query.get("done", ""), person)]
    return {
        "query_id": query_id,
        "cards": cards,
        "open": still_open,
        "focus": next(iter(still_open or rows), None),
        "shown": shown,
        "done": [card for card in done if (card.query_id, card.document_id) in shown],
        "options": options(workspace),
        "rubric": current_rubric(workspace),
        "answered": sum(not desk.is_open(row, person) for row in workspace.plan.rows),
        "planned": len(workspace.plan.rows),
        "agreement": workspace.agreement,
        "later": sum(bool(event.seen) for event in workspace.labels.events),
        "last": workspace.labels.last_of(person),
        "event": secrets.token_hex(8),
    }


def save(workspace: Workspace, visit: Visit) -> str:
    """Write what a form says, once, and go to what is next; with the last document the judge's grades are shown."""
    event, desk = event_of(workspace, visit), workspace.desk
    row = workspace.index.row_of[event.pair]
    others = [other for other in desk.rows_for(event.query_id, event.person) if other != row]
    if event.status != "skipped" and not any(desk.is_open(other, event.person) for other in others):
        event = replace(event, shows="judge")
    workspace.labels.add(event)
    visit.session.said.append(f"Saved: {_word(workspace, event)} for {event.document_id}.")
    if event.shows:
        return f"/label?{urlencode({'done': event.query_id})}"
    left = any(event.person not in desk.words(other) for other in others)
    return f"/label?{urlencode({'query': event.query_id})}" if left else "/label"


def undo(workspace: Workspace, visit: Visit) -> str:
    """Take back the person's last event, and show its pair again."""
    last = workspace.labels.last_of(visit.person)
    if last is None:
        visit.session.said.append("There is nothing to undo.")
        return "/label"
    seen = "judge" if last.pair in workspace.labels.shown_to(visit.person) else None
    name, person = event_name(visit), visit.person
    if workspace.labels.add(LabelEvent(name, person, *last.pair, status="undone", undoes=last.event, seen=seen)):
        visit.session.said.append(f"Undone: {_word(workspace, last)} for {last.document_id}.")
    return f"/label?{urlencode({'query': last.query_id})}"


def _word(workspace: Workspace, event: LabelEvent) -> str:
    rubric = workspace.rubric
    if event.grade in rubric.values:
        return rubric.labels[rubric.values.index(event.grade)]
    return f"{event.grade:g}" if event.grade is not None else event.status.replace("-", " ")


PAGE = Page("label", "Label", show, {"save": save, "undo": undo}, needs_person=True, fits=with_pairs)
