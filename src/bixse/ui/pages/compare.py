"""Pages for two systems: hits side by side, and the calibration of probabilities."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from bixse.calibration.scored_pairs import score_judged
from bixse.data.collection import Collection, load_collection
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import BixseError, InputError, shorten
from bixse.evaluation.metrics import evaluate_run
from bixse.index.vector_store import is_stored
from bixse.rendering.plots import reliability_diagram
from bixse.ui.pages.label import event_of, grading_form
from bixse.ui.ui_settings import SEED
from bixse.ui.workspace import BackgroundJob, Page, Visit, Workspace

if TYPE_CHECKING:
    from bixse.search.hits import Hit
    from bixse.ui.searcher import Searcher

TOPS = (5, 10, 20)
SHOWN_QUERIES = 500  # number of queries in the list; other queries of the collection are found by typing
ROW = 10  # height of a row in the SVG of the lines
SEARCHED = 100  # number of queries among which the page looks for the one to open with
LOWEST, HIGHEST = -4.0, -0.1  # ends of the slider, as log10 of the prior


@dataclass(frozen=True)
class HitRow:
    """A hit with its rank in both lists."""

    hit: Hit
    ranks: tuple[int | None, int | None]
    grade: float | None  # grade in the collection's judgements
    mine: float | None  # grade by the person
    is_below: bool  # true if the probability is below the threshold

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

    @property
    def line(self) -> str:
        """The SVG path of the document's line, from the first list to the second or to its end."""
        before, after = (None if rank is None else ROW * (rank - 0.5) for rank in self.ranks)
        if after is None:
            return f"M0 {before:g}H16"
        return f"M84 {after:g}H100" if before is None else f"M0 {before:g}C45 {before:g} 55 {after:g} 100 {after:g}"


class TwoSystems:
    """The systems of `--systems` and their collection; a thread loads them when the first page needs them."""

    def __init__(self, workspace: Workspace) -> None:
        self.settings, self.names = workspace.settings, workspace.settings.systems
        self.collection: Collection | None = None
        self.searchers: list[Searcher] = []
        self.first: str | None = None
        """The query whose two lists differ most; None without judged queries."""
        self.job = BackgroundJob("two systems", self._open)

    def _open(self, job: BackgroundJob) -> None:
        from bixse.ui.searcher import open_searcher

        settings = self.settings
        if settings.collection is not None:
            job.begin(f"reading {settings.collection}")
            self.collection = load_collection(settings.collection, [settings.split])
        for name in self.names:
            job.begin(f"loading {name}")
            self.searchers.append(open_searcher(name, self.collection, job.begin))
        pairs = None if settings.held_out is None else load_graded_pairs(settings.held_out)
        for searcher in self.searchers:
            if pairs is not None and searcher.head is not None:
                job.begin(f"encoding held-out pairs with {searcher.name}")
                searcher.judged = score_judged(searcher.model, pairs, job.begin, seed=SEED)
                job.begin(f"measuring the probabilities of {searcher.name}")
                with suppress(InputError):  # the page shows it
                    searcher.check(None)
        names = list(self.qrels)[:SEARCHED]
        step = job.begin("looking for the query that differs most", len(names))
        self.first = max(names, key=lambda name: self._difference(name, step), default=None)

    def _difference(self, query_id: str, step: Callable[..., None]) -> tuple[float, int]:
        """Return the difference of nDCG@10 of both lists, and the number of documents that one of them lacks."""
        step(1)
        text = "" if self.collection is None else self.collection.queries[query_id]
        try:
            lists = [[hit.document_id for hit in each.find(text, query_id, 10)] for each in self.searchers]
        except BixseError:  # a run need not answer every query
            return -1.0, 0
        before, after = _ndcg(self.qrels[query_id], lists, 10) or (0.0, 0.0)
        return abs(after - before), len({*lists[0]} ^ {*lists[1]})

    @property
    def qrels(self) -> Mapping[str, Mapping[str, float]]:
        """Judgements of the split."""
        return {} if self.collection is None else self.collection.qrels[self.settings.split]


def _opened(workspace: Workspace) -> TwoSystems:
    """Return the systems; raise NotReadyError until they are loaded, and InputError if that failed."""
    systems = workspace.once(TwoSystems)
    systems.job.check()
    return systems


def compare(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """Both lists of hits for a query."""
    systems, query = _opened(workspace), visit.query
    queries = {} if systems.collection is None else systems.collection.queries
    typed = query.get("text", "")
    query_id = query.get("query") or next((name for name, text in queries.items() if text == typed.strip()), None)
    is_opened = not query.keys() & {"text", "query"}
    query_id = systems.first if is_opened else query_id
    text = queries.get(query_id or "", typed)
    query_id = query_id if query_id in queries else None
    threshold = visit.real("p")
    probability = _first_threshold(systems.searchers) if threshold is None else threshold
    probability = min(max(probability, 0.001), 0.999)  # 0 and 1 have no finite logit
    top = next((number for number in TOPS if query.get("top") == str(number)), 10)
    judged, problem = systems.qrels.get(query_id or "", {}), None
    sides: list[list[HitRow]] = []
    if text.strip():
        try:
            answers = [searcher.find(text, query_id, top) for searcher in systems.searchers]
            sides = _rows(workspace, visit, answers, query_id or "", judged, probability)
        except BixseError as error:
            problem = str(error)
    return {
        "text": text,
        "query_id": query_id,
        "searched": min(len(systems.qrels), SEARCHED) if is_opened and query_id else 0,
        "top": top,
        "tops": TOPS,
        "p": probability,
        "systems": systems,
        "queries": [(name, queries[name]) for name in systems.qrels][:SHOWN_QUERIES],
        "neighbours": _neighbours(list(systems.qrels), query_id),
        "cutoff": min(top, 10),
        "scores": _ndcg(judged, [[row.hit.document_id for row in rows] for rows in sides], min(top, 10)),
        "limits": [getattr(searcher.model, "max_seq_length", None) for searcher in systems.searchers],
        "sides": sides,
        "problem": problem,
        "lines": [*sides[0], *(row for row in sides[1] if row.ranks[0] is None)] if sides else [],
        "height": ROW * max((len(rows) for rows in sides), default=0),
        "cuts": [_cut(searcher, probability) for searcher in systems.searchers],
        **grading_form(workspace),
        "commands": _commands(workspace, systems.searchers, text if sides else "", top, probability),
        "address": urlencode({"text": text} if query_id is None else {"query": query_id}),
    }


def _first_threshold(searchers: Sequence[Searcher]) -> float:
    """The threshold of the calibrated model, the second first; else the share of relevant pairs that a head is for."""
    heads = [searcher.head for searcher in reversed(searchers) if searcher.head is not None]
    calibrated = [head.thresholds[0].probability for head in heads if head.thresholds]
    priors = [prior for head in heads if (prior := head.prior or head.trained_prior)]
    return next(iter([*calibrated, *priors]), 0.5)


def _neighbours(names: list[str], query_id: str | None) -> list[tuple[str, str]]:
    """The previous and the next query of the split, each with its title; the first query before one is chosen."""
    at = names.index(query_id) if query_id in names else -1
    around = [("Previous query", at - 1), ("Next query", at + 1)]
    return [(title, names[position]) for title, position in around if 0 <= position < len(names)]


def _ndcg(grades: Mapping[str, float], lists: Sequence[Sequence[str]], cutoff: int) -> list[float]:
    """Return the nDCG of each list of document ids; nothing for a query without a relevant document."""
    if max(grades.values(), default=0) <= 0:
        return []
    name, runs = f"ndcg@{cutoff}", [{document: -float(rank) for rank, document in enumerate(each)} for each in lists]
    return [evaluate_run({"": grades}, {"": run}, [name])[name][""] for run in runs]


def _rows(
    workspace: Workspace,
    visit: Visit,
    answers: list[list[Hit]],
    query_id: str,
    judged: Mapping[str, float],
    probability: float,
) -> list[list[HitRow]]:
    ranks = [{hit.document_id: rank for rank, hit in enumerate(hits, start=1)} for hits in answers]

    def row(hit: Hit) -> HitRow:
        name = hit.document_id
        below = hit.probability is not None and hit.probability < probability
        mine = workspace.labels.grade_of((query_id, name), visit.person)
        return HitRow(hit, (ranks[0].get(name), ranks[1].get(name)), judged.get(name), mine, below)

    return [[row(hit) for hit in hits] for hits in answers]


def _cut(searcher: Searcher, probability: float) -> dict[str, Any] | None:
    """The figures of the threshold for one system; None if it has no probabilities."""
    head = searcher.head
    if head is None:
        return None
    cut: dict[str, Any] = {"point": None, "problem": None, "cosine": None, "thresholds": head.thresholds}
    try:
        cut["cosine"] = head.cosine_at(probability)
        if searcher.judged is not None:
            cut["point"] = searcher.judged.point_at(head, probability)
    except InputError as error:
        cut["problem"] = str(error)
    return cut


def _commands(
    workspace: Workspace, searchers: Sequence[Searcher], text: str, top: int, probability: float
) -> list[str]:
    """The commands that find the same hits, and the commands that export the same threshold."""
    lines = []
    for searcher in searchers if text else ():
        if searcher.model is not None:
            where = [] if is_stored(searcher.name) else ["--collection", str(workspace.settings.collection)]
            least = ["--threshold", f"{probability:g}"] if searcher.head is not None else []
            lines.append(shlex.join(["bixse", "search", searcher.name, *where, text, "--top", str(top), *least]))
    for searcher in searchers:
        if searcher.head is not None and workspace.settings.held_out is not None:
            lines.append(_calibrate(workspace, searcher.name, "--export", f"{probability:g}"))
    return lines


def _calibrate(workspace: Workspace, name: str, *options: str) -> str:
    words = ["bixse", "calibrate", name, "--pairs", str(workspace.settings.held_out), *options, "--out", "calibrated"]
    return shlex.join(words)


def grade(workspace: Workspace, visit: Visit) -> str:
    """Write a person's grade of a hit, and show the same lists again."""
    form = visit.form
    query_id, document_id = form.get("query_id", ""), form.get("document_id", "")
    back = f"/compare?{urlencode({'query': query_id, 'p': form.get('p', ''), 'top': form.get('top', '')})}"
    if not visit.person:
        visit.session.messages.append("Nothing is saved. Give your name first, below the query.")
        return back
    collection = _opened(workspace).collection
    if collection is None or query_id not in collection.queries or document_id not in collection.corpus:
        raise InputError(
            f"label: got the pair {shorten((query_id, document_id))}; expected ids of the collection; "
            "fix: add the query to queries.jsonl"
        )
    if workspace.labels.add(event_of(workspace, visit, chosen=True)):
        visit.session.messages.append(f"Saved: {form.get('answer', '')} for {document_id}.")
    return back


def calibration(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The figures before and after a calibration on half of the queries, measured on the other half."""
    systems = _opened(workspace)
    sides, side, prior = _selected(systems, visit)
    options = ["--prior", f"{prior:g}"] if prior else []
    return {
        "systems": systems,
        "sides": sides,
        "side": side,
        "prior": prior,
        "ends": (LOWEST, HIGHEST),
        "exponent": visit.query.get("exponent", ""),
        "command": _calibrate(workspace, systems.names[side], *options),
        "check": systems.searchers[side].check(prior),
    }


def _selected(systems: TwoSystems, visit: Visit) -> tuple[list[int], int, float | None]:
    """The systems with probabilities, the selected system and the prior, which is None for the prior of the pairs."""
    sides = [side for side, searcher in enumerate(systems.searchers) if searcher.judged is not None]
    if not sides:
        raise InputError(
            f"calibration: got {' and '.join(systems.names)}, without a relevance head; expected a system with a head; "
            "fix: run `bixse calibrate` on a model"
        )
    side = next((side for side in sides if visit.query.get("side") == str(side)), sides[0])
    exponent = visit.real("exponent")
    if exponent is None or not LOWEST <= exponent <= HIGHEST:
        return sides, side, None
    return sides, side, float(f"{10**exponent:.3g}")  # rounded as in the command


def draw_reliability(workspace: Workspace, visit: Visit) -> str | None:
    """Plot the reliability diagram of the calibrated probabilities."""
    systems = _opened(workspace)
    _, side, prior = _selected(systems, visit)
    return reliability_diagram(systems.searchers[side].check(prior).calibrated, "calibrated, held-out half").svg


FIGURES, DIAGRAM = {"figures": calibration}, {"diagram": draw_reliability}
PAGES = (
    Page("compare", "Compare", compare, lambda of: bool(of.settings.systems), {"grade": grade}, {"results": compare}),
    Page("calibration", "Calibration", calibration, lambda of: bool(of.settings.held_out), {}, FIGURES, DIAGRAM),
)
