import re

import numpy as np
import pandas
import pytest
from sklearn.calibration import calibration_curve

from bixse import NotReachable, Pairs, RelevanceModel, calibrate
from bixse.calibration.calibrate_files import calibrate_into
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError
from bixse.relevance import GradeScale
from helpers.toy import action_collection

COLLECTION = action_collection(splits=False)
PAIRS = Pairs.from_collection(COLLECTION, "test", GradeScale(0, 3))


def scored(number=300, noise=0.5, seed=0):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=number)
    return scores, (scores + noise * generator.normal(size=number) > 0.5).astype(float)


def test_scores_without_queries_become_probabilities_with_a_threshold_and_a_curve():
    scores, relevance = scored()
    calibration = calibrate(list(scores), list(relevance))
    more, hits = scored(seed=1)
    probabilities = calibration.probability(more)
    assert ((probabilities - hits) ** 2).mean() < 0.6 * hits.var()
    assert calibration.probability(float(more[0])) == pytest.approx(probabilities[0])
    cut = calibration.threshold(precision=0.9)
    assert repr(cut).startswith(f"{cut:.4g} (precision {cut.precision:.3f} [") and str(cut) == str(float(cut))
    assert isinstance(cut, float) and cut.precision >= 0.9 and cut.interval[0] < cut.precision <= 1
    held, _ = calibration.pairs.held_out
    above = calibration.probability(scores)[held] >= cut
    assert cut.recall == pytest.approx(relevance[held][above].sum() / relevance[held].sum())
    observed, predicted = calibration.curve()
    fitted = calibrate(scores, relevance, anyway=True)
    theirs = calibration_curve(relevance[held], held_out_probabilities(fitted, scores, relevance, held), n_bins=10)
    assert np.allclose((observed, predicted), theirs)
    assert repr(calibration) == str(calibration)
    assert "Brier" in str(calibration) and "<table" in calibration._repr_html_()


def held_out_probabilities(calibration, scores, relevance, held):
    """Return the probabilities of the fit on the other half."""
    from bixse.calibration.calibrate_head import fit_head

    return fit_head(None, scores[~held], relevance[~held], "", calibration.pairs.new).probability(scores[held])


def test_a_model_in_memory_has_the_calibration_of_its_folder(model, tmp_path):
    loaded, frame = RelevanceModel(str(model), device="cpu"), PAIRS.to_pandas()
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    settings = CalibrateSettings(model=str(model), pairs=tmp_path / "pairs.csv", anyway=True, at_precision=(0.5,))
    stage = calibrate_into(settings, tmp_path / "out")
    for source, pairs in ((loaded, frame), (str(model), PAIRS), (loaded, load_graded_pairs(tmp_path / "pairs.csv"))):
        calibration = calibrate(source, pairs, anyway=True)
        assert calibration.head.slope == pytest.approx(stage.head.slope)
        assert calibration.check.calibrated.brier == pytest.approx(stage.check.calibrated.brier)
        cut, (point,) = calibration.threshold(precision=0.5), stage.points
        assert (float(cut), cut.recall) == pytest.approx((point.threshold, point.recall))
    loaded.head = calibration.head
    assert 0 < loaded.relevance("copy a file", ["copy a file"])[0] < 1


def test_a_precision_that_is_not_reachable_names_the_best():
    scores, relevance = scored(1000, noise=20.0)
    calibration = calibrate(scores, relevance, anyway=True)
    with pytest.raises(NotReachable, match="precision 1: not reachable") as caught:
        calibration.threshold(precision=1.0)
    assert caught.value.best.precision < 1


@pytest.mark.parametrize(
    ("source", "judged", "options", "message"),
    [
        ([0.1, 0.2, 0.3], [0, 1, 1], {}, "got pairs of 3 queries; expected at least 4"),
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0], {}, "expected relevant and irrelevant pairs"),
        (["a", "b"], [0, 1], {}, "scores: got .*expected a sequence of finite numbers"),
        (
            CalibrateSettings(model="demo", pairs="x.csv"),
            None,
            {},
            r"got CalibrateSettings; .*calibrate\(model",
        ),
        ([0.1, float("nan")], [0, 1], {}, "scores: got .*finite"),
        ([0.1, 0.2], [0, 3], {}, r"relevance: got 0 to 3; expected numbers in \[0, 1\]"),
        ([0.1, 0.2], [0], {}, "got 2 scores, 1 relevances and 2 queries"),
        ([0.5] * 8, [0, 1] * 4, {}, "the score 0.5 for all 8 rows"),
        ([], [], {}, "got none; expected scores that differ"),
    ],
)
def test_wrong_scores_are_refused(source, judged, options, message):
    with pytest.raises(InputError, match=message):
        calibrate(source, judged, **options)


@pytest.mark.parametrize(
    ("judged", "options", "got", "expected"),
    [
        ("pairs", {"split": "dev"}, "split for pairs", "a collection"),
        ("pairs", {"queries": ["q1"]}, "queries for pairs", "scores"),
        ("collection", {"scored_by": "me"}, "scored_by for a collection", "scores"),
        ("scores", {"split": "dev"}, "split for scores", "a collection"),
    ],
)
def test_a_keyword_of_another_kind_of_input_is_refused_before_a_text_is_encoded(
    tiny_model, monkeypatch, judged, options, got, expected
):
    monkeypatch.setattr("bixse.encoders.encode.encode_texts", None)
    given = {
        "pairs": (tiny_model, [{"query": "a", "document": "b", "relevance": 1.0}]),
        "collection": (tiny_model, ({"q1": "a"}, {"d1": "b"}, {"q1": {"d1": 1}})),
        "scores": ([0.1, 0.9], [0, 1]),
    }
    with pytest.raises(InputError) as caught:
        calibrate(*given[judged], **options)
    assert caught.value.got == got and expected in caught.value.expected
    with pytest.raises(TypeError, match="weights"):  # a field of its pairs is no keyword
        calibrate(*given[judged], weights=None)


def test_wrong_pairs_of_a_model_are_refused(tiny_model):
    for pairs, message in (
        (pandas.DataFrame({"query": ["a"], "document": ["b"]}), "relevance"),
        (pandas.DataFrame({"query": ["a"], "document": ["b"], "relevance": [3]}), "map grades first"),
        ("none.csv", "none.csv"),
        (3, "pairs: got int"),
    ):
        with pytest.raises(InputError, match=message):
            calibrate(tiny_model, pairs)


def test_scores_that_say_nothing_have_no_probability(caplog):
    few = ([0.1, 0.3, 0.2, 0.4], [0, 1, 0, 1])
    for source, message in ((scored(noise=1e6), "do not separate"), (few, "2 queries with a relevant.*at least 20")):
        calibration = calibrate(*source, seed=3)
        assert not calibration.helps
        assert re.search(message, calibration.warnings[-1]) and calibration.warnings[-1] in caplog.messages
        assert re.search(f"not used: .*{message.rpartition('.*')[2]}", str(calibration))
        for call in (calibration.probability, calibration.threshold):
            with pytest.raises(InputError, match=f"got none that helps: .*{message}") as caught:
                call(0.5)
            assert "--" not in caught.value.fix
