"""Label: one query with its documents; the judge's grade and other people's stay hidden until one's own is saved."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bixse.grading.audit.label_events import LABELS
from bixse.ui.cards import event_name, event_of, make_card, options
from bixse.ui.label_log import LabelEvent
from bixse.ui.rubric_trials import current_rubric
from bixse.ui.ui_page import Page, with_pairs

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The next query, or the one that is named."""
    desk, person = workspace.desk, visit.person
    query_id = visit.query.get("query") or desk.next_query(person)
    rows = desk.rows_for(query_id, person) if query_id is not None else []
    cards = [make_card(workspace, row, whole=visit.query.get("all") == str(row)) for row in rows]
    still_open = [card.row for card in cards if desk.is_open(card.row, person)]
    answered = sum(not desk.is_open(row, person) for row in workspace.plan.rows)
    return {
        "query_id": query_id,
        "cards": cards,
        "open": still_open,
        "focus": next(iter(still_open or rows), None),
        "options": options(workspace),
        "rubric": current_rubric(workspace),
        "answered": answered,
        "planned": len(workspace.plan.rows),
        "agreement": workspace.agreement,
        "last": workspace.labels.last_of(person),
        "event": secrets.token_hex(8),
    }


def save(workspace: Workspace, visit: Visit) -> str:
    """Write what a form says, once, and go to what is next."""
    event = event_of(workspace, visit)
    workspace.labels.add(event)
    visit.session.said.append(_said(workspace, event))
    rows = workspace.desk.rows_for(event.query_id, event.person)
    left = any(workspace.desk.words(row).get(event.person) is None for row in rows)
    return f"/label?{urlencode({'query': event.query_id})}" if left else "/label"


def undo(workspace: Workspace, visit: Visit) -> str:
    """Take back the person's last event, and show its pair again."""
    last = workspace.labels.last_of(visit.person)
    if last is None:
        visit.session.said.append("There is nothing to undo.")
        return "/label"
    taken_back = LabelEvent(event_name(visit), visit.person, *last.pair, status="undone", undoes=last.event)
    if workspace.labels.add(taken_back):
        visit.session.said.append(f"Undone: {_word(workspace, last)} for {last.document_id}.")
    return f"/label?{urlencode({'query': last.query_id})}"


def _said(workspace: Workspace, event: LabelEvent) -> str:
    """What was saved, and now also what the judge and others said."""
    text = f"Saved: {_word(workspace, event)} for {event.document_id}."
    if event.status not in LABELS:
        return text
    judge = workspace.index.grade(workspace.index.row_of[event.pair], workspace.rubric.scale)
    others = [f"the judge {judge:.2f}"] if judge is not None else []
    words = workspace.labels.words[event.pair].values()
    others += [f"{word.person} {_word(workspace, word)}" for word in words if word.person != event.person]
    return f"{text} Others: {', '.join(others)}." if others else text


def _word(workspace: Workspace, event: LabelEvent) -> str:
    rubric = workspace.rubric
    if event.grade in rubric.values:
        return rubric.labels[rubric.values.index(event.grade)]
    return f"{event.grade:g}" if event.grade is not None else event.status.replace("-", " ")


PAGE = Page("label", "Label", show, {"save": save, "undo": undo}, needs_person=True, fits=with_pairs)
