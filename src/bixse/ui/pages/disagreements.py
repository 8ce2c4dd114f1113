"""Disagreements: judge against people, in a table whose entries lead to the pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from bixse.errors import InputError, shorten
from bixse.judging.audit.agreement import nearest_level
from bixse.ui.agreement_so_far import people_agreement
from bixse.ui.cards import make_card
from bixse.ui.rubric_trials import current_rubric
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

AT_ONCE = 20
"""Pairs on one page."""


class Labelled(NamedTuple):
    """A pair that judge and people graded."""

    row: int
    human: int
    """Position of the grade on the scale."""
    judge: int
    """Position of the nearest grade."""
    gap: float
    """Judge - people, in grades."""


def labelled_pairs(workspace: Workspace) -> list[Labelled]:
    """Every one of them, the largest gap first."""
    index, rubric = workspace.index, workspace.rubric
    found = [
        (row, grade, judged)
        for pair, grade in workspace.labels.grades().items()
        if (row := index.row_of.get(pair)) is not None and (judged := index.grade(row, rubric.scale)) is not None
    ]
    if not found:
        return []
    rows, human, judge = zip(*found, strict=True)
    levels, gaps = np.array(rubric.values), np.subtract(judge, human)
    places = [nearest_level(np.array(side, dtype=np.float64), levels).tolist() for side in (human, judge)]
    labelled = [Labelled(*entry) for entry in zip(rows, *places, gaps.tolist(), strict=True)]
    return sorted(labelled, key=lambda entry: (-abs(entry.gap), entry.row))


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The table of counts, and the pairs that the address chooses: `human`, `judge`, `gap`, `query`, `page`."""
    everything, labels = labelled_pairs(workspace), workspace.rubric.labels
    unfinished = workspace.desk.unfinished(visit.person)
    entries = [entry for entry in everything if entry.row not in unfinished]
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    for entry in entries:
        counts[entry.human, entry.judge] += 1
    chosen = {name: visit.query.get(name, "") for name in ("human", "judge", "gap", "query")}
    found = _chosen(workspace, entries, chosen)
    page = int(_number("page", visit.query.get("page", ""), 1))
    shown = found[(page - 1) * AT_ONCE : page * AT_ONCE]
    whole = visit.query.get("all", "")
    return {
        "labels": labels,
        "counts": counts.tolist(),
        "total": len(entries),
        "hidden": len(everything) - len(entries),
        "chosen": chosen,
        "found": len(found),
        "cards": [(entry, make_card(workspace, entry.row, whole=whole == str(entry.row))) for entry in shown],
        "page": page,
        "pages_left": page * AT_ONCE < len(found),
        "address": f"/disagreements?{urlencode({name: value for name, value in chosen.items() if value})}",
        "agreement": workspace.agreement,
        "people": people_agreement(workspace.labels, workspace.rubric),
        "rubric": current_rubric(workspace),
        "command": workspace.audit_command(),
    }


def _chosen(workspace: Workspace, entries: list[Labelled], chosen: Mapping[str, str]) -> list[Labelled]:
    labels, index, word = workspace.rubric.labels, workspace.index, chosen["query"].casefold()
    for name in ("human", "judge"):
        if chosen[name]:
            if chosen[name] not in labels:
                raise InputError(f"{name}: got {shorten(chosen[name])}; expected {', '.join(labels)}; fix: choose one")
            place = labels.index(chosen[name])
            entries = [entry for entry in entries if getattr(entry, name) == place]
    least = _number("gap", chosen["gap"], 0)
    entries = [entry for entry in entries if abs(entry.gap) >= least]
    if word:
        texts = index.pairs.texts("query", [entry.row for entry in entries])
        entries = [
            entry
            for entry, text in zip(entries, texts, strict=True)
            if word in text.casefold() or word == index.query_ids[entry.row].casefold()
        ]
    return entries


def _number(name: str, text: str, least: float) -> float:
    try:
        found = float(text or least)
    except ValueError:
        found = -1.0
    if not least <= found < 1e9:
        raise InputError(f"{name}: got {shorten(text)}; expected a number from {least:g} up; fix: correct it")
    return found


def has_judge(workspace: Workspace) -> bool:
    """Whether there is a judge to disagree with."""
    return any(status == "graded" for status in workspace.index.status)


PAGE = Page("disagreements", "Disagreements", show, fits=has_judge)
