"""The merge after training: weights between base and tuned encoder, the best on dev within the guard tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from accelerate.utils import gather_object

from bixse.encoders.embedding import embed_features
from bixse.encoders.loading.precision import autocast
from bixse.encoders.platt import fit_platt
from bixse.encoders.processes import is_sharded
from bixse.encoders.weights import Weights, has_lora, interpolate
from bixse.evaluation.statistics import Floats, paired_difference, paired_differences
from bixse.progress import Progress
from bixse.rendering.table import Cell, Table, format_number
from bixse.results import MergePoint, too_few
from bixse.search.store import EmbeddingStore
from bixse.training.config import TOLERANCE
from bixse.training.dev_evaluation import EvalCorpus, Role, Scores, search, sets_of
from bixse.training.distributed import is_main_process, raise_together, rank, world_size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead
    from bixse.relevance import Ranking
    from bixse.training.loop.trainer import GradedTrainer

AtWeight: TypeAlias = "Callable[[float], SentenceTransformer]"
"""Function that sets the encoder to a merge weight and returns it."""
Runs: TypeAlias = "Mapping[tuple[float, int], Mapping[str, Ranking]]"
"""Merge weight and number of a collection -> name of a query set -> run."""
HALF = 0.5
"""First weight of a search, and the weight if nothing decides: neither training nor the base model is undone."""
SEARCHED_WEIGHTS = 4
"""Maximum weights of a search, the tuned model among them; the base model is scored too."""
HEAD_ENTRIES = 60_000
"""Minimum entries of the training batches to which scale and bias of a merged encoder are fitted."""


@dataclass(frozen=True)
class Change:
    """The nDCG@10 of a model minus that of the base model, with its 95 % interval over several queries."""

    collection: str
    role: Role
    model: Literal["tuned", "merged"]
    mean: float
    low: float | None
    high: float | None
    queries: int
    few: str = ""
    """Why the sample carries no verdict, see `Difference.few`."""
    p_value: float | None = None
    """See `Difference.p_value`; older records have none."""


@dataclass(frozen=True)
class MergeResult(Table):
    """The merge weight, and the figures behind its choice; prints nDCG@10 at each scored weight."""

    weight: float
    """w of (1 - w) base + w tuned."""
    points: list[MergePoint]
    """Scored weights in order; empty if the weight was given."""
    changes: list[Change]
    """Tuned and merged against the base model on every dev and guard collection."""
    tolerance: float
    candidates: int = 1
    documents: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Collection -> number of searched documents, size of its corpus."""
    given: tuple[float, ...] = ()
    """The weight of each model, if all were given; `weight` is 1 then."""
    undecided: str = ""
    """Why the weight was not chosen; "" if it was, or if it was given."""
    unresolved: dict[str, str] = field(default_factory=dict)
    """Guard collection that cannot tell the tolerance, and limits no weight -> the reason."""

    @property
    def keeps_guard(self) -> bool:
        """Return True if every guard collection that decides is within the tolerance of the base model."""
        merged = [change for change in self.changes if change.model == "merged"]
        return all(change.mean >= -self.tolerance for change in merged if change.collection in self._guards())

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        if not self.points:
            return ["weight", "chosen"], [[self.given[-1] if self.given else self.weight, "*"]]
        names = list(self.points[0].scores)
        rows = [
            [
                point.weight,
                *(point.scores[name] for name in names),
                f"{format_number(point.below_best)} ± {format_number(point.error)}" if point.error > 0 else "",
                "*" if point.weight == self.weight else "",
            ]
            for point in self.points
        ]
        return ["weight", *names, "below the best on dev", "chosen"], rows

    def dev(self, weight: float) -> float | None:
        """Return the mean nDCG@10 over the dev collections at a scored weight, or None."""
        return next((self._dev(point) for point in self.points if point.weight == weight), None)

    def warnings(self) -> list[str]:
        """Warn of guard collections that decide nothing or that no weight keeps, and of a weight that none chose."""
        warned = [
            f"merge: guard {name} decides nothing ({why}); give it more queries, or leave it out"
            for name, why in self.unresolved.items()
        ]
        if not self.keeps_guard:
            chosen = next((self._worst_guard(point) for point in self.points if point.weight == self.weight), "")
            warned.append(
                f"merge: no weight keeps every guard collection within {self.tolerance:g} of the base model; "
                f"{self.weight:g}, which loses least{f' ({chosen})' if chosen else ''}, is taken: train more gently or "
                "raise guard_tolerance"
            )
        elif self.undecided:
            more = "; give dev more queries, or queries that the base model fails" * (not self.unresolved)
            warned.append(f"merge: {self._undecided_line()}{more}")
        return warned

    def lines(self) -> list[str]:
        """Return the choice in words, one fact per line."""
        chosen = f"{'not ' * bool(self.undecided)}chosen on dev among {self.candidates}"
        chosen = chosen if self.candidates > 1 else "as given"
        what = f"{1 - self.weight:g} base + {self.weight:g} tuned"
        if self.given:
            what = f"{' + '.join(f'{weight:g}' for weight in self.given)} of the models in their order"
        lines = [f"merged weights: {what} ({chosen})", *self.reason()]
        base = self.points[0].scores if self.points else {}
        for name in dict.fromkeys(change.collection for change in self.changes):
            of = {change.model: change for change in self.changes if change.collection == name}
            searched, size = self.documents[name]
            sample = "" if searched == size else f", over {searched:,} of {size:,} documents"
            lines.append(
                f"{of['merged'].role} {name}, {of['merged'].queries} queries{sample}: nDCG@10 {base[name]:.4f} before; "
                f"tuned {_difference(of['tuned'])}; merged {_difference(of['merged'])}"
            )
        if self.points and not any(change.role == "guard" for change in self.changes):
            lines.append("guard: none given, so the effect of training on other queries is unknown (`guard: DIR`)")
        return lines

    def reason(self) -> list[str]:
        """Return the facts that decided: the best on dev, the standard error, the limit of the guard."""
        if self.candidates < 2 or not self.keeps_guard:
            return []
        lines = []
        chosen = next(point for point in self.points if point.weight == self.weight)
        # a higher point that the guard left out
        out = [point for point in self.points if point.weight > 0 and not self._keeps(point)]
        better = max(out, key=self._dev, default=None)
        if better is not None and self._dev(better) > self._dev(chosen):
            lines.append(
                f"guard leaves out {', '.join(f'{point.weight:g}' for point in out)}: {better.weight:g}, with "
                f"{self._dev(better):.4f} on dev, loses {self._worst_guard(better)}, more than {self.tolerance:g}"
            )
        if self.undecided:
            return [*lines, self._undecided_line()]
        guarded = " that keeps guard" * bool(self._guards())
        best = max((p for p in self.points if p.weight > 0 and self._keeps(p)), key=self._dev)
        lines.append(f"best on dev{guarded}: {best.weight:g} ({self._dev(best):.4f})")
        if chosen.below_best > 0:
            error = f"within one standard error ({chosen.error:.4f}) of it, and changes the base model least"
            return [*lines, f"{self.weight:g} is the smallest candidate {error}"]
        return [*lines, "no smaller candidate lies within one standard error of it"]

    def _undecided_line(self) -> str:
        guarded = " that keeps the guard" * bool(self._guards())
        which = "highest below" if guarded and self.weight < HALF else "candidate nearest to"
        why = f", the {which} {HALF:g}{guarded}" * (self.weight != HALF)
        return f"nothing decides ({self.undecided}): {self.weight:g} is taken{why}"

    def _dev(self, point: MergePoint) -> float:
        return _on_dev(point, self._of("dev"))

    def _of(self, role: Role) -> list[str]:
        return list(dict.fromkeys(change.collection for change in self.changes if change.role == role))

    def _guards(self) -> list[str]:
        return [name for name in self._of("guard") if name not in self.unresolved]

    def _keeps(self, point: MergePoint) -> bool:
        return _largest_loss(point, self.points[0], self._guards())[0] <= self.tolerance

    def _worst_guard(self, point: MergePoint) -> str:
        loss, name = _largest_loss(point, self.points[0], self._guards())
        return f"{loss:.4f} on guard {name}"

    def card(self) -> str:
        """Return a section of the model card, in Markdown."""
        lines = "".join(f"- {line}\n" for line in self.lines())
        return f"## Weights merged with the base model\n\n{lines}" + f"\n{self.to_markdown()}\n" * bool(self.points)


def set_best_weights(
    model: SentenceTransformer,
    base: Weights,
    tuned: Weights,
    weights: Sequence[float] | None,
    eval_corpora: Sequence[EvalCorpus],
    tolerance: float = TOLERANCE,
    progress: bool = False,
) -> MergeResult:
    """Set an encoder to the best weights between base and tuned.

    The base and the tuned model search every dev and guard collection; `weights` are scored on a pool of judged
    documents and of their hits. None searches for a weight: 0.5, then the middle between the best weight so far and
    the better of its neighbours, at most `SEARCHED_WEIGHTS`. Several processes share the searches.

    Candidates are the weights that leave no guard collection more than `tolerance` below the base model. The smallest
    candidate within one standard error of the best one on dev wins (Breiman et al. 1984, section 3.4.3), as it changes
    the base model least. If dev or guard cannot tell, the candidate nearest to 0.5 wins, or the highest below it that
    keeps guard. If no weight keeps guard, the one whose worst guard collection loses least wins. Without a collection
    the first weight wins.

    The store keeps the embeddings of the base, the chosen and the tuned encoder, where `evaluate` finds them.
    """

    def at(weight: float) -> SentenceTransformer:
        interpolate(model, base, tuned, weight)
        return model

    if not eval_corpora:
        weight = weights[0] if weights else HALF
        at(weight)
        return MergeResult(weight, [], [], tolerance)
    # no saved model has the weights of sharded or adapted encoders
    cache = "none" if is_sharded(model) or has_lora(model) else None
    # processes of a sharded encoder search with every weight together
    mine = slice(None) if is_sharded(model) else slice(rank(), None, world_size())
    searches = _Searches(at, eval_corpora, cache, mine, progress and is_main_process())
    ends = searches([0.0, 1.0], [corpus.searched for corpus in eval_corpora])
    pools = [corpus.pool([ends[0.0, number], ends[1.0, number]]) for number, corpus in enumerate(eval_corpora)]
    roles = {queries.name: queries.role for _, queries in sets_of(eval_corpora)}
    at_ends = _scores(eval_corpora, ends, pools)
    scores, choice = _chosen(
        at_ends, lambda several: _scores(eval_corpora, searches(several, pools), pools), roles, weights, tolerance
    )
    # the candidates of every run would fill the disk; an interrupted merge reads its own when it is continued
    for weight in scores.keys() - {0.0, choice.weight, 1.0}:
        if (path := EmbeddingStore(at(weight), cache).path) is not None:
            path.unlink(missing_ok=True)
    at(choice.weight)
    return MergeResult(
        weight=choice.weight,
        points=choice.points,
        changes=_changes(scores, roles, choice.weight),
        tolerance=tolerance,
        candidates=len(set(weights or list(scores)[1:])),
        documents={
            queries.name: (len(pools[number]), len(corpus.corpus))
            for number, corpus in enumerate(eval_corpora)
            for queries in corpus.sets
        },
        undecided=choice.undecided,
        unresolved=choice.unresolved,
    )


@dataclass
class _Searches:
    """The searches of every dev and guard collection with the encoder at some weights, shared by the processes."""

    at: AtWeight
    eval_corpora: Sequence[EvalCorpus]
    cache: str | None
    mine: slice
    """The part of the searches that this process does."""
    progress: bool

    def __call__(self, weights: Sequence[float], texts: Sequence[Mapping[str, str]]) -> Runs:
        """Search the `texts` of each collection with each weight."""
        mine = [(weight, number) for weight in weights for number in range(len(self.eval_corpora))][self.mine]
        names = ", ".join(f"{weight:g}" for weight in weights)
        bar = Progress(f"merge: weight {names}", len(mine)) if self.progress and mine else lambda done: None
        runs = {}
        with raise_together():
            for weight, number in mine:
                runs[weight, number] = search(
                    self.at(weight), texts[number], self.eval_corpora[number].sets, self.cache
                )
                bar(1)
        return {task: run for part in gather_object([runs]) for task, run in part.items()}


def _scores(eval_corpora: Sequence[EvalCorpus], runs: Runs, pools: Sequence[Mapping[str, str]]) -> dict[float, Scores]:
    scores: dict[float, Scores] = {}
    for weight, number in sorted(runs):  # the processes give them in another order
        scores.setdefault(weight, {}).update(eval_corpora[number].scores(runs[weight, number], pools[number]))
    return scores


def _chosen(
    ends: Mapping[float, Scores],
    score: Callable[[Sequence[float]], Mapping[float, Scores]],
    roles: Mapping[str, Role],
    weights: Sequence[float] | None,
    tolerance: float,
) -> tuple[Mapping[float, Scores], _Choice]:
    """Score weights, or those of a search if None, next to 0 and 1, and choose one."""
    following = [HALF] if weights is None else [weight for weight in dict.fromkeys(weights) if weight not in ends]
    scores = ends
    while True:
        scores = dict(sorted({**scores, **score(following)}.items()))
        choice = _choose(scores, roles, weights or list(scores)[1:], tolerance)
        following = choice.following if weights is None else []
        if not following:
            return scores, choice


class _Choice(NamedTuple):
    """The choice among scored weights."""

    points: list[MergePoint]
    """Scored weights, compared with the best that keeps guard."""
    weight: float
    undecided: str
    """See `MergeResult.undecided`."""
    unresolved: dict[str, str]
    following: list[float]
    """The next weight of a search; empty at its end."""


def _choose(
    scores: Mapping[float, Scores], roles: Mapping[str, Role], weights: Sequence[float], tolerance: float
) -> _Choice:
    """Choose one of `weights`, by the rules of `set_best_weights`; `scores` holds weight 0 too."""
    dev = [name for name, role in roles.items() if role == "dev"]
    candidates = sorted(set(weights))
    unresolved = {
        name: why
        for name, role in roles.items()
        if role == "guard" and len(candidates) > 1 and (why := _unresolved(scores, name, candidates, tolerance))
    }
    guards = [name for name, role in roles.items() if role == "guard" and name not in unresolved]

    points = {
        weight: MergePoint(weight, {name: float(np.mean([*queries.values()])) for name, queries in values.items()})
        for weight, values in scores.items()
    }
    losses = {weight: _largest_loss(point, points[0.0], guards)[0] for weight, point in points.items()}
    keeping = [weight for weight in candidates if losses[weight] <= tolerance]
    best = max(keeping or candidates, key=lambda weight: _on_dev(points[weight], dev))
    for weight, values in scores.items():
        differences = [paired_differences(scores[best][name], values[name]) for name in dev]
        below = float(np.mean([of_query.mean() for of_query in differences]))  # 0 for equal weights, figures round
        points[weight] = replace(points[weight], below_best=below, error=_standard_error(differences))
    # the base model too: if it is worse than all of them, the smallest weight has the whole gain
    compared = [point for weight, point in points.items() if weight in (0.0, *keeping)]
    following = _following(list(points.values()), compared, dev)
    if not keeping:
        return _Choice(list(points.values()), min(candidates, key=losses.__getitem__), "", unresolved, following)
    undecided = _undecided({name: len(scores[0.0][name]) for name in dev}, compared)
    if unresolved and not guards:
        undecided = undecided or "; ".join(f"guard {name}: {why}" for name, why in unresolved.items())
    if undecided and len(candidates) > 1:
        nearest = min(candidates, key=lambda weight: abs(weight - HALF))
        chosen = max((weight for weight in keeping if weight <= nearest), default=keeping[0])
        following = [] if chosen == HALF else following
    else:
        undecided, chosen = "", next(w for w in keeping if points[w].below_best <= points[w].error)
    return _Choice(list(points.values()), chosen, undecided, unresolved, following)


def _undecided(queries: Mapping[str, int], compared: Sequence[MergePoint]) -> str:
    """Return why dev does not choose among weights, or "" if it does."""
    if not any(point.below_best for point in compared):
        return "all weights have the same nDCG@10"
    # each dev collection counts the same in the mean, however many queries it has
    few = next((f"{name}: {few}" for name, number in queries.items() if (few := too_few(number))), "")
    if not few and all(abs(point.below_best) <= point.error for point in compared):
        return "no weight differs from the best by more than its standard error"
    return few


def _unresolved(scores: Mapping[float, Scores], guard: str, candidates: Sequence[float], tolerance: float) -> str:
    """Return why a guard collection cannot tell whether any of the weights keeps the tolerance, or ""."""
    losses = [paired_differences(scores[0.0][guard], scores[weight][guard]) for weight in candidates]
    errors = [_standard_error([of_query]) for of_query in losses]
    few = too_few(len(losses[0]))
    if not few and any(abs(of_query.mean() - tolerance) > e for of_query, e in zip(losses, errors, strict=True)):
        return ""
    return f"{few or f'{len(losses[0])} queries'}, standard error {max(errors):.3f} for a tolerance of {tolerance:g}"


def _following(points: Sequence[MergePoint], keeping: Sequence[MergePoint], dev: Sequence[str]) -> list[float]:
    """Return the middle between the best of the weights that keep guard and the better of its neighbours."""
    if len(points) > SEARCHED_WEIGHTS:
        return []
    best = points.index(max(keeping, key=lambda point: _on_dev(point, dev)))
    neighbour = max(points[max(best - 1, 0) : best + 2], key=lambda p: (p is not points[best], _on_dev(p, dev)))
    return [(points[best].weight + neighbour.weight) / 2]


def _on_dev(point: MergePoint, dev: Sequence[str]) -> float:
    return float(np.mean([point.scores[name] for name in dev]))


def _largest_loss(point: MergePoint, base: MergePoint, guards: Sequence[str]) -> tuple[float, str]:
    """Return the largest loss of nDCG@10 against the base model, and the guard collection; 0 without one."""
    losses = [(base.scores[name] - point.scores[name], name) for name in guards]
    return max(losses, key=lambda entry: entry[0], default=(0.0, ""))


def _standard_error(differences: Sequence[Floats]) -> float:
    """Return the standard error of the mean over collections of their means over queries; a single query has none."""
    variances = [values.var(ddof=1) / len(values) if len(values) > 1 else 0.0 for values in differences]
    return float(np.sqrt(np.sum(variances))) / len(differences)


def _changes(scores: Mapping[float, Scores], roles: Mapping[str, Role], merged: float) -> list[Change]:
    return [
        _change(name, role, kind, scores[weight][name], scores[0.0][name])
        for name, role in roles.items()
        for kind, weight in (("tuned", 1.0), ("merged", merged))
    ]


def _change(name: str, role: Role, model: Any, scores: Mapping[str, float], base: Mapping[str, float]) -> Change:
    change = paired_difference(scores, base)
    return Change(name, role, model, change.mean, change.low, change.high, change.queries, change.few, change.p_value)


def _difference(change: Change) -> str:
    interval = "" if change.low is None or change.high is None else f" [{change.low:+.4f}, {change.high:+.4f}]"
    return f"{change.mean:+.4f}{interval}" + (f" (cannot tell: {change.few})" if change.few else "")


def refitted_head(trainer: GradedTrainer, head: RelevanceHead, dimensions: Iterable[int]) -> RelevanceHead:
    """Return scale and bias for weights that changed since training, for whole embeddings and the shorter lengths."""
    model, lengths = trainer.loss.model.eval(), (None, *dimensions)
    cosines: list[torch.Tensor] = []
    relevances: list[torch.Tensor] = []
    with torch.no_grad():
        for features, targets in trainer.global_batches():
            with autocast(model.device):
                vectors = [embed_features(model, part).float() for part in features]
            z, counts = targets.dense()
            for cut in lengths:
                queries, documents = (torch.nn.functional.normalize(part[:, :cut], dim=-1) for part in vectors)
                cosines.append((queries @ documents.T)[counts > 0].double().cpu())
                relevances.append(z[counts > 0].double().cpu())
            if sum(map(len, cosines)) >= HEAD_ENTRIES * len(lengths):
                break
    relevance = torch.cat(relevances).numpy()
    # least binary cross-entropy of sigma(alpha cos + beta), as in training: the cosines of a merged encoder lie closer
    # together and need a larger scale
    slope, intercept = fit_platt(head.logit_scale * torch.cat(cosines).numpy() + head.logit_bias, relevance)
    if slope <= 0:  # cosines that do not rise with relevance: the trained scale is as good as any
        return head
    scale, bias = slope * head.logit_scale, slope * head.logit_bias + intercept
    prior = float(relevance.mean())
    known = prior if 0 < prior < 1 else None
    return replace(head, logit_scale=scale, logit_bias=bias, trained_prior=known, prior=known)
