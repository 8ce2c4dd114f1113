"""One pair as pages show it, and the forms that say something of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bixse.errors import InputError, shorten
from bixse.ui.label_log import LabelEvent

if TYPE_CHECKING:
    from bixse.judging.audit.labels import LabelStatus
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

SHOWN = 4000
"""Characters of a document that are shown at once."""
LONGEST_EXPLANATION = 10_000
ANSWERS: dict[str, LabelStatus] = {"cannot-tell": "cannot-tell", "skip": "skipped"}
"""Answers that are no grade."""


@dataclass(frozen=True)
class Card:
    """A pair with its texts, what the judge said, and what people did."""

    row: int
    query_id: str
    document_id: str
    query: str
    document: str
    cut: int
    """Characters of the document that are not shown."""
    judge: float | None
    bounds: tuple[float, float] | None
    probabilities: list[float] | None
    words: dict[str, LabelEvent]
    event: str
    """Name of the event that the card's form will be: sent twice it is the same one."""
    shown: float


def make_card(workspace: Workspace, row: int, whole: bool = False) -> Card:
    """The card of one row; a long document is cut unless `whole`."""
    pair, scale = workspace.index.pair(row), workspace.rubric.scale
    document = pair.document if whole else pair.document[:SHOWN]
    return Card(
        row=row,
        query_id=pair.query_id,
        document_id=pair.document_id,
        query=pair.query,
        document=document,
        cut=len(pair.document) - len(document),
        judge=workspace.index.grade(row, scale),
        bounds=workspace.index.bounds(row, scale),
        probabilities=workspace.index.probabilities(row),
        words=workspace.labels.words.get((pair.query_id, pair.document_id), {}),
        event=secrets.token_hex(8),
        shown=time.time(),
    )


def options(workspace: Workspace) -> list[tuple[str, str]]:
    """Key and label of each grade: the label itself where it is one character, else its position."""
    return [(x if len(x) == 1 else str(place), x) for place, x in enumerate(workspace.rubric.labels)]


def event_name(visit: Visit) -> str:
    """The name that a form has for its event, so that it is one event however often it is sent."""
    return visit.form.get("event", "").strip()[:64] or secrets.token_hex(8)


def event_of(workspace: Workspace, visit: Visit, final: bool = False, chosen: bool = False) -> LabelEvent:
    """What a card's form says; `chosen` is a pair that the person found, drawn by no plan and perhaps in no file.

    Raises:
        InputError: no such pair or answer.
    """
    form, labels = visit.form, workspace.rubric.labels
    pair = (form.get("query_id", ""), form.get("document_id", ""))
    row, answer = workspace.index.row_of.get(pair), form.get("answer", "")
    if row is None and not chosen:
        raise InputError(f"label: got the pair {shorten(pair)}; expected one of this folder; fix: load the page again")
    if answer not in labels and (final or answer not in ANSWERS):
        raise InputError(
            f"label: got the answer {shorten(answer)}; expected {', '.join(labels)}; fix: load the page again"
        )
    status: LabelStatus = "final" if final else ANSWERS.get(answer, "graded")
    seen = pair in workspace.labels.shown_to(visit.person)
    return LabelEvent(
        event=event_name(visit),
        person=visit.person,
        query_id=pair[0],
        document_id=pair[1],
        status=status,
        grade=workspace.rubric.values[labels.index(answer)] if answer in labels else None,
        explanation=form.get("explanation", "").strip()[:LONGEST_EXPLANATION] or None,
        seconds=_seconds(workspace, visit),
        probability=None if row is None or chosen else round(float(workspace.plan.probabilities[row]), 9),
        seen="judge" if seen else None,
    )


def _seconds(workspace: Workspace, visit: Visit) -> float | None:
    try:
        shown = float(visit.form.get("shown", ""))
    except ValueError:
        return None
    last = workspace.labels.last_of(visit.person)
    since = max(shown, datetime.fromisoformat(last.time).timestamp()) if last is not None else shown
    found = round(time.time() - since, 1)
    return found if 0 <= found < 1e6 else None
