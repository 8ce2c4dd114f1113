"""Pages for graded pairs: labelling, settling labels that differ, and the judge against people."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import krippendorff
import numpy as np
import pandas as pd

from bixse.audit.agreement import nearest_level
from bixse.errors import InputError, shorten
from bixse.ui.label_log import LabelEvent
from bixse.ui.pages.rubric import current_rubric, has_judge, levels_of
from bixse.ui.workspace import Page, Visit, Workspace

if TYPE_CHECKING:
    from bixse.audit.labels import LabelStatus, PairIds

SHOWN = 4000  # number of characters of a document that are shown at first
LONGEST_EXPLANATION = 10_000
ANSWERS: dict[str, LabelStatus] = {"cannot-tell": "cannot-tell", "skip": "skipped"}  # answers that are not a grade
AT_ONCE = 20  # pairs per page
MOST_MARKED = 30  # number of words of a query that are marked in its documents
COMMON = """
all and any are but can does for from has have how into its never not only some than that the them then they this want
was what when where which who why will with without you your
""".split()  # noqa: SIM905
"""English words that are not marked."""


def make_card(workspace: Workspace, visit: Visit, row: int) -> dict[str, Any]:
    """The texts of a row, the judge's answer, and people's labels; a long text is cut unless `all` names the row."""
    index, scale = workspace.index, workspace.rubric.scale
    pair = index.pair(row)
    title = workspace.titles.get(pair.document_id, "")
    title = title if pair.document.startswith(title) else ""
    text = pair.document.removeprefix(title).lstrip()
    shown = len(text) if visit.query.get("all") == str(row) else SHOWN
    return {
        **asdict(pair),
        "row": row,
        "title": title if text else "",
        "pieces": marked(pair.query, text[:shown] or title),
        "cut": max(0, len(text) - shown),  # characters that are not shown
        "judge": index.grade(row, scale),
        "bounds": index.bounds(row, scale),
        "probabilities": index.probabilities.get(row),
        "words": workspace.labels.words.get((pair.query_id, pair.document_id), {}),
        "event": secrets.token_hex(8),  # the event that the form writes: a form that is sent twice is one event
        "shown": time.time(),
    }


def marked(query: str, text: str) -> list[tuple[str, bool]]:
    """Split a text into pieces; True marks a word of the query, with another ending too.

    Example:
        >>> marked("copy files", "Copying a file")
        [('', False), ('Copying', True), (' a ', False), ('file', True), ('', False)]
    """
    words = dict.fromkeys(word.casefold() for word in re.findall(r"\w{3,}", query))
    stems = [word.removesuffix("s") for word in words if word not in COMMON][:MOST_MARKED]
    if not stems:
        return [(text, False)]
    parts = re.split(rf"\b((?:{'|'.join(map(re.escape, stems))})\w{{0,3}})\b", text, flags=re.IGNORECASE)
    return [(part, bool(position % 2)) for position, part in enumerate(parts)]


def options(workspace: Workspace) -> list[tuple[str, str, str, float]]:
    """The key, label, meaning and value of each grade; the key is a label of one character, else its position."""
    rubric = workspace.rubric
    meanings = rubric.meanings or [""] * len(rubric.labels)
    grades = enumerate(zip(rubric.labels, meanings, rubric.values, strict=True))
    return [(grade[0] if len(grade[0]) == 1 else str(position), *grade) for position, grade in grades]


def grading_form(workspace: Workspace) -> dict[str, Any]:
    """The values of a form to grade a pair of the person's choice."""
    return {"options": options(workspace), "event": secrets.token_hex(8), "shown_at": time.time()}


def _event_name(visit: Visit) -> str:
    """The event name in a form, so that a form that is sent several times is one event."""
    return visit.form.get("event", "").strip()[:64] or secrets.token_hex(8)


def event_of(workspace: Workspace, visit: Visit, final: bool = False, chosen: bool = False) -> LabelEvent:
    """The event of a card's form; a person found a `chosen` pair, which is in no plan and perhaps in no file."""
    form, labels = visit.form, workspace.rubric.labels
    pair = (form.get("query_id", ""), form.get("document_id", ""))
    row, answer = None if chosen else workspace.index.row_of.get(pair), form.get("answer", "")
    if row is None and not chosen:
        raise InputError(
            f"label: got the pair {shorten(pair)}; expected a pair of this folder; fix: load the page again"
        )
    if answer not in labels and (final or answer not in ANSWERS):
        raise InputError(
            f"label: got the answer {shorten(answer)}; expected {', '.join(labels)}; fix: load the page again"
        )
    status: LabelStatus = "final" if final else ANSWERS.get(answer, "graded")
    seen = pair in workspace.labels.shown_to(visit.person)
    return LabelEvent(
        _event_name(visit),
        visit.person,
        *pair,
        status,
        grade=workspace.rubric.values[labels.index(answer)] if answer in labels else None,
        explanation=form.get("explanation", "").strip()[:LONGEST_EXPLANATION] or None,
        seconds=_seconds(workspace, visit),
        probability=None if row is None else round(float(workspace.plan.probabilities[row]), 9),
        plan=None if row is None else workspace.plan.name,
        seen="judge" if seen else None,
    )


def _seconds(workspace: Workspace, visit: Visit) -> float | None:
    last, shown = workspace.labels.last_of(visit.person), visit.real("shown")
    if shown is None:
        return None
    since = max(shown, datetime.fromisoformat(last.time).timestamp()) if last is not None else shown
    seconds = round(time.time() - since, 1)
    return seconds if 0 <= seconds < 1e6 else None


def label(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The next query or the named query, and above it the query of `done` if that is complete."""
    assignment, person = workspace.assignment, visit.person
    query_id = visit.query.get("query") or assignment.next_query(person)
    rows = assignment.rows_for(query_id, person) if query_id is not None else []
    cards = [make_card(workspace, visit, row) for row in rows]
    still_open = [row for row in rows if assignment.is_open(row, person)]
    shown = workspace.labels.shown_to(person)
    done = [make_card(workspace, visit, row) for row in assignment.rows_for(visit.query.get("done", ""), person)]
    last = workspace.labels.last_of(person)
    return {
        "query_id": query_id,
        "cards": cards,
        "open": still_open,
        "shown": shown,
        "done": [card for card in done if (card["query_id"], card["document_id"]) in shown],
        "options": options(workspace),
        "rubric": (rubric := current_rubric(workspace)),
        "levels": levels_of(rubric),
        "last": None if last is None else (_word(workspace, last), last.document_id),
        "answered": sum(not assignment.is_open(row, person) for row in workspace.plan.rows),
        "later": sum(bool(event.seen) for event in workspace.labels.events),
        "event": secrets.token_hex(8),
    }


def save_label(workspace: Workspace, visit: Visit) -> str:
    """Write the label of a form, once, and go on; the last document of a query reveals the judge's grades."""
    event, assignment = event_of(workspace, visit), workspace.assignment
    row = workspace.index.row_of[event.pair]
    others = [other for other in assignment.rows_for(event.query_id, event.person) if other != row]
    if event.status != "skipped" and not any(assignment.is_open(other, event.person) for other in others):
        event = replace(event, shows="judge")
    workspace.labels.add(event)
    word, name = assignment.words(row).get(event.person), event.document_id
    current = "no label" if word is None else _word(workspace, word)
    not_saved = f"Not saved: this form was sent before; {name} has {current}."
    visit.session.messages.append(f"Saved: {current} for {name}." if current == _word(workspace, event) else not_saved)
    if event.shows:
        return f"/label?{urlencode({'done': event.query_id})}"
    left = any(event.person not in assignment.words(other) for other in others)
    return f"/label?{urlencode({'query': event.query_id})}" if left else "/label"


def undo_label(workspace: Workspace, visit: Visit) -> str:
    """Take back the person's last event, and show its pair again."""
    last = workspace.labels.last_of(visit.person)
    if last is None:
        visit.session.messages.append("There is nothing to undo.")
        return "/label"
    seen = "judge" if last.pair in workspace.labels.shown_to(visit.person) else None
    name, person = _event_name(visit), visit.person
    if workspace.labels.add(LabelEvent(name, person, *last.pair, status="undone", undoes=last.event, seen=seen)):
        visit.session.messages.append(f"Undone: {_word(workspace, last)} for {last.document_id}.")
    return f"/label?{urlencode({'query': last.query_id})}"


def _word(workspace: Workspace, event: LabelEvent) -> str:
    rubric = workspace.rubric
    if event.grade in rubric.values:
        return rubric.labels[rubric.values.index(event.grade)]
    return f"{event.grade:g}" if event.grade is not None else event.status.replace("-", " ")


def people_agreement(workspace: Workspace) -> dict[str, Any]:
    """The agreement on pairs with grades of two people or more, as Krippendorff's alpha; None if all are the same."""
    words = workspace.labels.words
    several = list(_of_several(workspace.labels.independent).values())  # the judge's grade comes with other people's
    table = pd.DataFrame(several).to_numpy(np.float64).T  # (people, pairs)
    alpha = None
    if len(set(table[~np.isnan(table)])) > 1:
        domain = list(workspace.rubric.values)
        alpha = float(krippendorff.alpha(table, level_of_measurement="ordinal", value_domain=domain))
    differing = [
        pair for pair, grades in _of_several(words).items() if len(set(grades.values())) > 1 and "" not in words[pair]
    ]
    settled = sum("" in of_pair for of_pair in words.values())
    return {"pairs": len(several), "alpha": alpha, "differing": differing, "settled": settled}


def _of_several(words_of: Mapping[PairIds, Mapping[str, LabelEvent]]) -> dict[PairIds, dict[str, float]]:
    """Pair -> person -> grade, for pairs that two people or more graded."""
    grades_of = {
        pair: {p: word.grade for p, word in words.items() if word.status == "graded" and word.grade is not None}
        for pair, words in words_of.items()
    }
    return {pair: grades for pair, grades in grades_of.items() if len(grades) > 1}


def adjudicate(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The pairs that are not settled, oldest first, without those that the person still has to label."""
    people, hidden = people_agreement(workspace), workspace.assignment.unfinished(visit.person)
    differing = [row for pair in people["differing"] if (row := workspace.index.row_of.get(pair)) is not None]
    rows = [row for row in differing if row not in hidden]
    shown = {"cards": [make_card(workspace, visit, row) for row in rows[:AT_ONCE]], "more": len(rows[AT_ONCE:])}
    return {"people": people, **shown, "hidden": len(differing) - len(rows), "options": options(workspace)}


def settle(workspace: Workspace, visit: Visit) -> str:
    """Write the final grade of a pair."""
    event = event_of(workspace, visit, final=True)
    if workspace.labels.add(event):
        visit.session.messages.append(f"Settled: {event.grade:g} for {event.document_id}.")
    return "/adjudicate"


def disagreements(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The table of counts, and the pairs that the address selects by `human`, `judge`, `gap`, `query` and `page`."""
    labels, levels = workspace.rubric.labels, np.array(workspace.rubric.values)
    pairs = workspace.graded_by_both()
    pairs["gap"] = (pairs["judge"] - pairs["human"]).abs()
    for side in ("human", "judge"):
        pairs[side] = nearest_level(pairs[side].to_numpy(np.float64), levels)  # the label's position on the scale
    entries = pairs[~pairs["row"].isin(workspace.assignment.unfinished(visit.person))]
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(counts, (entries["human"], entries["judge"]), 1)
    chosen = {name: visit.query.get(name, "") for name in ("human", "judge", "gap", "query")}
    selected = _chosen(workspace, visit, entries, chosen).sort_values(["gap", "row"], ascending=[False, True])
    page = int(_number(visit, "page", 1))
    shown = selected[(page - 1) * AT_ONCE : page * AT_ONCE]
    return {
        "labels": labels,
        "counts": counts.tolist(),
        "total": len(entries),
        "hidden": len(pairs) - len(entries),
        "chosen": chosen,
        "selected": len(selected),
        "cards": [
            {**make_card(workspace, visit, row), "human": human, "nearest": judge}
            for row, human, judge in shown[["row", "human", "judge"]].itertuples(index=False)
        ],
        "largest": max(1, int(counts.max())),
        "options": options(workspace),
        "query": urlencode({name: value for name, value in visit.query.items() if name in (*chosen, "page")}),
        "page": page,
        "pages_left": page * AT_ONCE < len(selected),
        "address": f"/disagreements?{urlencode({name: value for name, value in chosen.items() if value})}",
        "people": people_agreement(workspace),
        "rubric": current_rubric(workspace),
    }


def correct(workspace: Workspace, visit: Visit) -> str:
    """Write a label of a person who sees the judge's grade: it is no independent one. Show the same pairs again."""
    if not visit.person:
        raise InputError("label: got no name; expected the name of the person; fix: give it on the page Home")
    event = replace(event_of(workspace, visit), seen="judge")
    if workspace.labels.add(event):
        visit.session.messages.append(f"Saved: {_word(workspace, event)} for {event.document_id}.")
    return f"/disagreements?{urlencode(parse_qsl(visit.form.get('address', '')))}"


def _chosen(workspace: Workspace, visit: Visit, entries: pd.DataFrame, chosen: Mapping[str, str]) -> pd.DataFrame:
    labels, word = workspace.rubric.labels, chosen["query"].casefold()
    for name in ("human", "judge"):
        if chosen[name]:
            if chosen[name] not in labels:
                raise InputError(
                    f"{name}: got {shorten(chosen[name])}; expected {', '.join(labels)}; fix: choose a label"
                )
            entries = entries[entries[name] == labels.index(chosen[name])]
    entries = entries[entries["gap"] >= _number(visit, "gap", 0)]
    if word:
        texts = workspace.index.pairs.texts("query", entries["row"].tolist())
        ids = entries["query_id"].tolist()
        matches = [word in text.casefold() or word == name.casefold() for name, text in zip(ids, texts, strict=True)]
        entries = entries.loc[np.array(matches, dtype=bool)]
    return entries


def _number(visit: Visit, name: str, least: float) -> float:
    number = visit.real(name) if visit.query.get(name) else least
    if number is None or not least <= number < 1e9:
        got = shorten(visit.query.get(name))
        raise InputError(f"{name}: got {got}; expected a number of at least {least:g}; fix: correct the address")
    return number


def with_pairs(workspace: Workspace) -> bool:
    """Return True if the folder has pairs to label."""
    return len(workspace.index) > 0


PAGES = (
    Page("label", "Label", label, with_pairs, {"save": save_label, "undo": undo_label}, needs_person=True),
    Page("adjudicate", "Settle", adjudicate, with_pairs, {"settle": settle}, needs_person=True),
    Page("disagreements", "Disagreements", disagreements, has_judge, {"correct": correct}),
)
