"""The merge after training: weights between base and tuned encoder, the best on dev within the guard tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
from bixse.results import MergePoint, too_few
from bixse.search.store import EmbeddingStore
from bixse.training.config import TOLERANCE
from bixse.training.dev_evaluation import Role, Scores, Watched, sets_of
from bixse.training.distributed import is_main_process, raise_together, rank, world_size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead
    from bixse.training.loop.trainer import GradedTrainer

AtWeight: TypeAlias = "Callable[[float], SentenceTransformer]"
"""Function that sets the encoder to a merge weight and returns it."""
HALF = 0.5
"""Merge weight if dev does not choose: neither training nor the base model is undone."""
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
class MergeResult:
    """The merge weight, and the figures behind its choice."""

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
    """Why dev has not chosen the weight; "" if it has, or if the weight was given."""

    @property
    def keeps_guard(self) -> bool:
        """Return True if every guard collection is within the tolerance of the base model, or there is none."""
        merged = [change for change in self.changes if change.role == "guard" and change.model == "merged"]
        return all(change.mean >= -self.tolerance for change in merged)

    def dev(self, weight: float) -> float | None:
        """Return the mean nDCG@10 over the dev collections at a scored weight, or None."""
        return next((self._dev(point) for point in self.points if point.weight == weight), None)

    def warnings(self) -> list[str]:
        """Warn of a guard collection that no weight keeps, and of a weight that dev has not chosen."""
        if self.undecided and self.keeps_guard:
            return [f"merge: {self._undecided_line()}; give dev more queries, or queries that the base model fails"]
        if self.keeps_guard:
            return []
        chosen = next((self._worst_guard(point) for point in self.points if point.weight == self.weight), "")
        return [
            f"merge: no weight keeps every guard collection within {self.tolerance:g} of the base model; "
            f"{self.weight:g}, which loses least{f' ({chosen})' if chosen else ''}, is taken: train more gently or "
            "raise guard_tolerance"
        ]

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
        """Return lines with each weight's score on dev and the reason for the chosen weight."""
        if self.candidates < 2:
            return []
        curve = ", ".join(
            f"{point.weight:g}: {self._dev(point):.4f}"
            + (f" ({-point.below_best:+.4f}, {point.error:.4f})" if point.error > 0 else "")
            for point in self.points
        )
        guarded = " that keeps guard" * bool(self._of("guard"))
        lines = [f"dev by weight (difference from the best weight{guarded}, its standard error): {curve}"]
        if not self.keeps_guard:
            return lines
        chosen = next(point for point in self.points if point.weight == self.weight)
        # a higher point that the guard left out, which the curve shows
        out = [point for point in self.points if point.weight > 0 and not self._keeps(point)]
        better = max(out, key=self._dev, default=None)
        if better is not None and self._dev(better) > self._dev(chosen):
            lines.append(
                f"guard leaves out {', '.join(f'{point.weight:g}' for point in out)}: {better.weight:g}, with "
                f"{self._dev(better):.4f} on dev, loses {self._worst_guard(better)}, more than {self.tolerance:g}"
            )
        best = f"is the best candidate on dev{guarded}, and no smaller one lies within one standard error of it"
        near = "is the smallest candidate within one standard error of the best: it changes the base model least"
        by_dev = f"{self.weight:g} {near if chosen.below_best > 0 else best}"
        return [*lines, self._undecided_line() if self.undecided else by_dev]

    def _undecided_line(self) -> str:
        guarded = " that keeps the guard" * bool(self._of("guard"))
        which = (
            f"the highest below {HALF:g}" if guarded and self.weight < HALF else f"the candidate nearest to {HALF:g}"
        )
        why = f", {which}{guarded}" * (self.weight != HALF)
        return f"dev has not chosen ({self.undecided}): {self.weight:g} is taken{why}"

    def _dev(self, point: MergePoint) -> float:
        return _on_dev(point, self._of("dev"))

    def _of(self, role: Role) -> list[str]:
        return list(dict.fromkeys(change.collection for change in self.changes if change.role == role))

    def _keeps(self, point: MergePoint) -> bool:
        return _largest_loss(point, self.points[0], self._of("guard"))[0] <= self.tolerance

    def _worst_guard(self, point: MergePoint) -> str:
        loss, name = _largest_loss(point, self.points[0], self._of("guard"))
        return f"{loss:.4f} on guard {name}"

    def card(self) -> str:
        """Return a section of the model card, in Markdown."""
        return "## Weights merged with the base model\n\n" + "".join(f"- {line}\n" for line in self.lines())


def set_best_weights(
    model: SentenceTransformer,
    base: Weights,
    tuned: Weights,
    weights: Sequence[float],
    watched: Sequence[Watched],
    tolerance: float = TOLERANCE,
    progress: bool = False,
) -> MergeResult:
    """Set an encoder to the best weights between base and tuned.

    Every weight, 0 and 1 among them, is scored on all dev and guard collections; several processes share the weights.
    Candidates are the weights that leave no guard collection more than `tolerance` below the base model. The smallest
    candidate within one standard error of the best candidate's mean over the dev collections wins. A smaller weight
    changes the base model less (Breiman et al. 1984, Classification and Regression Trees, section 3.4.3). The error is
    that of the difference, paired over queries. Dev has not chosen if it has too few queries for a verdict, or if all
    candidates and the base model lie within that error: the candidate nearest to 0.5 is taken, or the highest below it
    that keeps guard. If no weight keeps guard, the weight whose worst guard collection loses least wins. Without a
    collection the first weight wins.

    The store keeps the embeddings of the base, the chosen and the tuned encoder, where `evaluate` finds them.
    """

    def at(weight: float) -> SentenceTransformer:
        interpolate(model, base, tuned, weight)
        return model

    sharded = is_sharded(model)
    # no saved model has the weights of sharded or adapted encoders
    cache = "none" if sharded or has_lora(model) else None
    # processes of a sharded encoder search with every weight together; other processes share the weights
    mine = slice(None) if sharded else slice(rank(), None, world_size())
    find = [0.0, 1.0][mine] if any(corpus.is_sampled for corpus in watched) else []
    share = sorted({0.0, 1.0, *weights})[mine] if watched else []
    bar = Progress("merge: search", len(find) + len(share)) if progress and is_main_process() else lambda done: None
    pools = _pools(at, watched, find, bar, cache)
    roles = {queries.name: queries.role for _, queries in sets_of(watched)}
    scores, stored = _score(at, watched, pools, share, bar, cache)
    points, chosen, undecided = _choose(scores, roles, weights, tolerance)
    # the candidates of every run would fill the disk; an interrupted merge reads its own when it is continued
    for weight in stored.keys() - {0.0, chosen, 1.0}:
        stored[weight].unlink(missing_ok=True)
    at(chosen)
    return MergeResult(
        weight=chosen,
        points=points,
        changes=[
            _change(name, role, kind, scores[weight][name], scores[0.0][name])
            for name, role in roles.items()
            for kind, weight in (("tuned", 1.0), ("merged", chosen))
        ],
        tolerance=tolerance,
        candidates=len(set(weights)) if watched else 1,
        documents={
            queries.name: (len(pools[number]), len(corpus.corpus))
            for number, corpus in enumerate(watched)
            for queries in corpus.sets
        },
        undecided=undecided,
    )


def _pools(
    at: AtWeight, watched: Sequence[Watched], share: Sequence[float], bar: Callable[[int], None], cache: str | None
) -> list[Mapping[str, str]]:
    """Return per collection the documents that every weight searches: document id -> text."""
    runs: list[list[Any]] = [[] for _ in watched]
    with raise_together():
        for weight in share:
            model = at(weight)
            for corpus, hits in zip(watched, runs, strict=True):
                if corpus.is_sampled:
                    hits.append(corpus.hits(model, cache))
            bar(1)
    parts = gather_object([runs])
    return [corpus.pool([run for part in parts for run in part[number]]) for number, corpus in enumerate(watched)]


def _score(
    at: AtWeight,
    watched: Sequence[Watched],
    pools: Sequence[Mapping[str, str]],
    share: Sequence[float],
    bar: Callable[[int], None],
    cache: str | None,
) -> tuple[dict[float, Scores], dict[float, Path]]:
    """Return weight -> scores, 0 and 1 included, and weight -> file of the store, of this process's weights."""
    scores: dict[float, Scores] = {}
    stored: dict[float, Path] = {}
    with raise_together():
        for weight in share:
            model, scores[weight] = at(weight), {}
            path = EmbeddingStore(model, cache).path
            if path is not None:
                stored[weight] = path
            for corpus, pool in zip(watched, pools, strict=True):
                scores[weight] |= corpus.scores(model, pool, cache)
            bar(1)
    every = {weight: values for part in gather_object([scores]) for weight, values in part.items()}
    return dict(sorted(every.items())), stored


def _choose(
    scores: Mapping[float, Scores], roles: Mapping[str, Role], weights: Sequence[float], tolerance: float
) -> tuple[list[MergePoint], float, str]:
    """Return the scored weights, compared with the best that keeps guard, the weight, and why dev has not chosen it."""
    if not scores:
        return [], weights[0], ""
    dev = [name for name, role in roles.items() if role == "dev"]
    guards = [name for name, role in roles.items() if role == "guard"]

    points = {
        weight: MergePoint(weight, {name: _mean(of_query) for name, of_query in values.items()})
        for weight, values in scores.items()
    }
    candidates = sorted(set(weights))
    losses = {weight: _largest_loss(points[weight], points[0.0], guards)[0] for weight in candidates}
    keeping = [weight for weight in candidates if losses[weight] <= tolerance]
    best = max(keeping or candidates, key=lambda weight: _on_dev(points[weight], dev))
    for weight, values in scores.items():
        differences = [paired_differences(scores[best][name], values[name]) for name in dev]
        below = float(np.mean([of_query.mean() for of_query in differences]))  # 0 for equal weights, figures round
        points[weight] = replace(points[weight], below_best=below, error=_standard_error(differences))
    if not keeping:
        return list(points.values()), min(candidates, key=losses.__getitem__), ""
    # the base model too: if it is worse than all of them, the smallest weight has the whole gain
    compared = [point for weight, point in points.items() if weight in (0.0, *keeping)]
    # each dev collection counts the same in the mean, however many queries it has
    undecided = next((f"{name}: {few}" for name in dev if (few := too_few(len(scores[0.0][name])))), "")
    if not any(point.below_best for point in compared):
        undecided = "all weights have the same nDCG@10"
    elif not undecided and all(abs(point.below_best) <= point.error for point in compared):
        undecided = "no weight differs from the best by more than its standard error"
    if undecided and len(candidates) > 1:
        nearest = min(candidates, key=lambda weight: abs(weight - HALF))
        chosen = max((weight for weight in keeping if weight <= nearest), default=keeping[0])
    else:
        undecided, chosen = "", next(w for w in keeping if points[w].below_best <= points[w].error)
    return list(points.values()), chosen, undecided


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


def _change(name: str, role: Role, model: Any, scores: Mapping[str, float], base: Mapping[str, float]) -> Change:
    change = paired_difference(scores, base)
    return Change(name, role, model, change.mean, change.low, change.high, change.queries, change.few, change.p_value)


def _mean(scores: Mapping[str, float]) -> float:
    return float(np.mean(list(scores.values())))


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
