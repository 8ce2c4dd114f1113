import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from bixse.calibration.calibrate import calibrate
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.calibration.reliability import auc
from bixse.encoders.head import RelevanceHead
from bixse.errors import ConfigError, InputError, InvalidFileError, OutputExistsError
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
        return calibrate(chosen, tmp_path / out)

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
    assert result.refused and not area.separates and f"{area.value:.3f}" in result.check.finding
    assert not (tmp_path / "out" / "relevance_head.json").exists()
    assert run(rows, out="anyway", anyway=True).saved


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
