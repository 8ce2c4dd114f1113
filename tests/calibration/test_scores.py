import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from bixse.calibration.calibrate_files import calibrate_into
from bixse.calibration.calibrate_head import ScoredPairs, held_out_check
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.calibration.reliability import auc
from bixse.encoders.head import RelevanceHead
from bixse.errors import ConfigError, InputError, InvalidFileError, OutputExistsError
from bixse.evaluation.intervals import jackknife_estimate
from bixse.files.rows import write_rows

MODEL = "a model, 8 dimensions"


def score_rows(size=1.0, noise=0.5, seed=0):
    """Return 30 queries with eight scores each; relevance follows the score but for the noise."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=240)
    relevant = scores + noise * generator.normal(size=240) > 0.5
    return [
        {"query": f"how do i {n // 8}", "score": float(size * score), "relevance": float(hit)}
        for n, (score, hit) in enumerate(zip(scores, relevant, strict=True))
    ]


@pytest.fixture
def run(tmp_path):
    """Calibrates rows of scores into a folder of the test."""

    def calibrated(rows, out="out", name="scores.jsonl", scored_by=MODEL, **settings):
        write_rows(pa.Table.from_pylist(rows), tmp_path / name)
        chosen = CalibrateSettings(scores=tmp_path / name, scored_by=scored_by, **settings)
        return calibrate_into(chosen, tmp_path / out)

    return calibrated


@pytest.mark.parametrize("size", [0.3, 1000.0])
@pytest.mark.parametrize("name", ["scores.jsonl", "scores.csv", "scores.parquet"])
def test_scores_of_any_size_become_calibrated_probabilities(run, tmp_path, size, name):
    result = run(score_rows(size), name=name, at_precision=(0.9,), export=(0.5,))
    head = RelevanceHead.of_scores(tmp_path / "out", MODEL)
    scores = np.array([row["score"] for row in score_rows(size, seed=1)])
    hits = np.array([row["relevance"] for row in score_rows(size, seed=1)])
    assert ((head.probability(scores) - hits) ** 2).mean() < 0.6 * hits.var()
    assert head.probability(scores).mean() == pytest.approx(hits.mean(), abs=0.1)
    assert head.thresholds[0].precision == 0.9
    cuts = json.loads(Path(result.artifacts["cuts"]).read_text())
    assert [cut["precision"] for cut in cuts] == [0.9, None]
    assert head.probability(cuts[-1]["cosine"]) == pytest.approx(cuts[-1]["probability"])
    assert ("qdrant" in result.artifacts) == (np.abs(scores).max() <= 1 and size < 1)
    assert result.check.auc.low > 0.8
    assert run(score_rows(size), name=name, at_precision=(0.9,), export=(0.5,)).reused
    (tmp_path / "out" / "relevance_head.json").unlink()
    with pytest.raises(InputError, match=r"relevance_head\.json"):
        run(score_rows(size), name=name, at_precision=(0.9,), export=(0.5,))


def test_grades_are_divided_by_the_highest(run, tmp_path):
    rows = score_rows()
    graded = [{"query": row["query"], "cosine": row["score"], "grade": 3 * row["relevance"]} for row in rows]
    heads = [run(part, out=f"out{n}", name=f"{n}.jsonl").head for n, part in enumerate((rows, graded))]
    assert heads[0].logit(0.3) == pytest.approx(heads[1].logit(0.3))


def test_scores_that_say_nothing_are_refused(run, tmp_path):
    rows = score_rows(noise=1e6)
    result = run(rows)
    area = result.check.auc
    assert result.refused and area.verdict == "no difference" and f"{area.value:.3f}" in result.check.finding
    assert not (tmp_path / "out" / "relevance_head.json").exists()
    assert run(rows, out="anyway", anyway=True).saved


@pytest.mark.parametrize("precision", [0.8, 0.95])
def test_thresholds_and_cuts_of_scores_with_a_gap_lie_in_its_middle(run, tmp_path, precision):
    generator = np.random.default_rng(4)
    rows = [
        {"query": f"q{n // 5}", "score": float(generator.uniform(*ends)), "relevance": float(n % 5 == 0)}
        for n in range(200)
        for ends in [(0.62, 0.8) if n % 5 == 0 else (0.1, 0.42)]
    ]
    result = run(rows, at_precision=(precision,), export=(0.9,))
    (threshold,) = RelevanceHead.of_scores(tmp_path / "out", MODEL).thresholds
    cuts = json.loads(Path(result.artifacts["cuts"]).read_text())
    cut = next(cut["cosine"] for cut in cuts if cut["precision"] == precision)
    assert cut == pytest.approx(0.52, abs=0.02)
    assert result.head.cosine_at(result.head.threshold_for(precision)) == cut
    assert (threshold.reached, threshold.recall, threshold.pairs) == (1.0, 1.0, 20)
    assert (threshold.low, threshold.high) == result.points[0].interval


@pytest.mark.parametrize(("queries", "scale", "verdict"), [(120, 1.0, "no difference"), (120, 5.0, "better"),
                                                           (30, 5.0, "cannot tell")])  # fmt: skip
def test_a_lower_brier_score_is_a_verdict_only_if_the_interval_of_the_difference_says_so(queries, scale, verdict):
    """The earlier map of these logits is right, or five times too steep."""
    generator = np.random.default_rng(1)
    logits = generator.normal(size=8 * queries)
    relevance = (generator.random(len(logits)) < expit(2 * logits)).astype(float)
    ids = [f"q{n // 8}" for n in range(len(logits))]
    check = held_out_check(ScoredPairs(logits, relevance, ids, head=RelevanceHead(2.0 * scale, 0.0)))
    before, after = (check.reports[name].brier for name in ("before", "calibrated"))
    assert check.change.value == pytest.approx(after - before)
    assert check.change.verdict(lower_is_better=True) == verdict
    assert ("no difference is shown" in check.finding) == (verdict == "no difference")
    assert (check.change.few in check.finding) and bool(check.change.few) == (verdict == "cannot tell")


def test_distances_are_named_and_the_sign_is_the_fix(run, tmp_path):
    rows = [{**row, "score": 1 - row["score"]} for row in score_rows()]
    result = run(rows, at_precision=(0.6,))
    assert result.refused and result.check.auc.verdict == "worse"
    assert "distances" in result.check.finding and "1 - score" in result.check.fix
    assert run([{**row, "score": 1 - row["score"]} for row in rows], out="turned").saved


@pytest.mark.parametrize("name", ["distance", "Cosine_Distance", "dist"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_column_of_distances_is_no_column_of_scores(run, name, suffix):
    rows = [{"query": row["query"], name: row["score"], "relevance": row["relevance"]} for row in score_rows()]
    with pytest.raises(InputError, match=f"1 - {name}"):
        run(rows, name=f"rows.{suffix}")


def test_too_few_queries_cannot_tell(run, tmp_path):
    """Only 19 of 30 queries have a relevant document: no verdict, and no threshold of a map that is kept anyway."""
    rows = [row | {"relevance": row["relevance"] * (n < 19 * 8)} for n, row in enumerate(score_rows())]
    first = {row["query"]: n for n, row in reversed(list(enumerate(rows[: 19 * 8])))}
    rows = [row | {"relevance": 1.0} if n in first.values() else row for n, row in enumerate(rows)]
    result = run(rows)
    assert result.refused and result.check.auc.verdict == "cannot tell" and result.check.auc.low is None
    assert result.check.auc.few == "19 queries with a relevant document; at least 20"
    assert result.check.auc.few in result.check.finding and not (tmp_path / "out" / "relevance_head.json").exists()
    with pytest.raises(InputError) as error:
        run(rows, out="thresholds", anyway=True, at_precision=(0.6,))
    assert error.value.where == "thresholds" and error.value.got.startswith("19 queries with a relevant document")
    assert run(rows, out="anyway", anyway=True).saved
    rows[20 * 8]["relevance"] = 1.0
    assert run(rows, out="enough").check.auc.few == ""


def test_the_head_is_refused_for_another_model_and_the_folder_for_other_scores(run, tmp_path):
    run(score_rows())
    with pytest.raises(InputError):
        RelevanceHead.of_scores(tmp_path / "out", "another model")
    with pytest.raises(InputError):
        RelevanceHead.of_scores(tmp_path, MODEL)
    with pytest.raises(OutputExistsError):
        run(score_rows(seed=5))


@pytest.mark.parametrize(
    "change", [{"relevance": None}, {"relevance": 2.0}, {"score": ""}, {"score": "high"}, {"query": ""}]
)
def test_a_broken_row_is_named(run, change):
    rows = [{**row, "score": str(row["score"])} for row in score_rows()]
    rows[7] |= change
    with pytest.raises(InputError, match="row 8"):
        run(rows)


def test_scores_that_are_all_alike_are_refused(run):
    with pytest.raises(InputError):
        run([{**row, "score": 1.0} for row in score_rows()])


@pytest.mark.parametrize(
    "settings",
    [{}, {"scores": "s.csv"}, {"model": "demo"}, {"scores": "s.csv", "scored_by": "x", "model": "demo"}],
)
def test_a_model_with_pairs_or_scores_with_their_model(settings):
    with pytest.raises(ConfigError):
        CalibrateSettings.load(None, settings)


def test_the_auc_without_a_query_is_that_of_the_other_pairs(monkeypatch):
    """The interval is made of them."""
    seen = []
    monkeypatch.setattr(
        "bixse.calibration.reliability.jackknife_estimate",
        lambda value, rest: seen.append((value, rest)) or jackknife_estimate(value, rest),
    )
    rows = score_rows(noise=2.0)
    scores, relevant = (np.round([row[name] for row in rows], 1) for name in ("score", "relevance"))
    query = np.arange(240) // 8
    area = auc(scores, relevant, [f"q{number:02d}" for number in query])
    ((value, rest),) = seen
    assert expit(value) == pytest.approx(area.value)
    left = [roc_auc_score(relevant[query != number], scores[query != number]) for number in range(30)]
    assert expit(rest) == pytest.approx(left)


@pytest.mark.parametrize("turned", [False, True])
def test_an_auc_of_one_or_zero_has_an_interval(turned):
    area = auc([turned, 1 - turned] * 30, [0, 1] * 30, [f"q{number // 2}" for number in range(60)])
    assert area.value == (0.0 if turned else 1.0) and area.verdict == ("worse" if turned else "better")
    assert area.high - area.low == pytest.approx(1 - 0.886, abs=0.001)  # Wilson's of 30 of 30


def test_scores_that_say_nothing_seldom_separate():
    """Few relevant documents, queries of unequal size, and an effect of the query: 2.5 % are stated."""
    generator = np.random.default_rng(0)
    wrong = []
    for _ in range(300):
        sizes = generator.integers(2, 30, 25)
        query = np.repeat(np.arange(25), sizes)
        relevant = np.append(True, query[1:] != query[:-1])
        scores = generator.normal(size=len(query)) + generator.normal(size=25)[query]
        wrong.append(auc(scores, relevant, [str(number) for number in query]).verdict)
    assert wrong.count("better") <= 14 and wrong.count("worse") <= 14 and "cannot tell" not in wrong


def test_auc_is_that_of_scikit_learn_and_its_interval_covers_it():
    rows = score_rows(noise=2.0)
    scores = np.round([row["score"] for row in rows], 1)  # with ties
    relevant = [row["relevance"] for row in rows]
    area = auc(scores, relevant, [row["query"] for row in rows])
    assert area.value == pytest.approx(roc_auc_score(relevant, scores))
    assert area.low < area.value < area.high < 1
    assert auc(scores, np.ones(240), [row["query"] for row in rows]) is None


@pytest.mark.parametrize("huge", [1e308, -1e300, 1e31])
@pytest.mark.filterwarnings("error")
def test_huge_score_is_refused_where_it_stands(run, huge):
    rows = score_rows()
    rows[6]["score"] = huge
    with pytest.raises(InvalidFileError) as caught:
        run(rows)
    assert [(error.row, error.column) for error in caught.value.errors] == [(7, "score")]


@pytest.mark.filterwarnings("error")
def test_scores_whose_differences_vanish_are_not_called_equal(run):
    with pytest.raises(InputError) as caught:
        run(score_rows(size=1e-300))
    assert "differ" in caught.value.got
    assert run(score_rows(size=1e29)).check is not None
