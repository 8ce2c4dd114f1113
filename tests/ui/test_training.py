"""A training run while it is under way, and the calibration of a model: damage first."""

import json
import re
from types import SimpleNamespace

import pytest

from bixse.calibration.calibrate import calibrate
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.ui.pages.training import TrainRun
from helpers.html_page import Page
from helpers.ui_server import Browser

CHANGE = {"collection": "<b>dev", "role": "dev", "model": "merged", "mean": -0.02, "low": -0.03, "high": -0.01,
          "queries": 9}  # fmt: skip
MERGE = {
    "weight": 0.5,
    "points": [{"weight": w, "scores": {"<b>dev": 0.5 + w / 9}} for w in (0, 0.5, 1)],
    "changes": [CHANGE, {**CHANGE, "collection": "<i>guard", "role": "guard", "low": None, "high": None}],
}


def line(step, **more):
    return json.dumps({"step": step, "loss": 3 - step / 10, "logit_bias": -5.0, "epoch": step / 10, **more}) + "\n"


@pytest.fixture
def trained(tmp_path):
    """A run under way after two steps."""
    folder = tmp_path / "trained"
    (folder / "regrade").mkdir(parents=True)
    (folder / "log.jsonl").write_text(line(1, loss=float("nan")) + line(2) + '{"step": 3, "lo')
    record = {"status": "running", "config": {"optimizer": {"num_train_epochs": 2}}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_growing_log_is_read_once_and_restarted_log_anew(trained):
    run = TrainRun(SimpleNamespace(run=trained))
    run.look()
    assert [step for step, _ in run.logged["epoch"]] == [1, 2]
    with (trained / "log.jsonl").open("a") as file:
        file.write('ss": 1.5}\nno json\n[1]\n' + line(4))
    logged = run.curve().logged
    assert [step for step, _ in run.logged["step"]] == [1, 2, 3, 4]
    assert [loss for _, loss in logged["loss"]] == [2.8, 1.5, 2.6] and logged["logit_bias"][0][1] == -5.0
    (trained / "log.jsonl").write_text(line(1))
    run.look()
    assert [step for step, _ in run.logged["step"]] == [1]


def test_long_log_is_drawn_by_means_of_neighbours(trained):
    more = "".join(line(step, loss=float(step % 2)) for step in range(1, 4001))
    (trained / "log.jsonl").write_text(more + json.dumps({"step": "x", "loss": 9}) + "\n" + '{"epoch": 9}\n')
    run = TrainRun(SimpleNamespace(run=trained))
    losses = run.curve().logged["loss"]
    assert len(losses) == 1000 and {loss for _, loss in losses} == {0.5} and losses[-1][0] == 3998
    assert len(run.logged["step"]) == 4000 and run.last["step"] == 4000


@pytest.mark.parametrize("record", ["", "[]", "{", '{"results": null, "config": null}'])
def test_damaged_record_leaves_the_curves(trained, open_server, record):
    browser = Browser(open_server(trained))
    (trained / "run.json").write_text(record)
    (trained / "regrade" / "epoch-1.json").write_text("{")
    assert "Step 2" in browser.get("/training").text


def test_running_training_is_shown_as_it_is_now(trained, open_server):
    browser = Browser(open_server(trained))
    assert str(browser.get("/").url).endswith("/training")  # there are no pairs to label
    html = browser.get("/training").text
    assert "Step 2, 10 % of the run: running" in html and 'hx-get="/training/now"' in html
    assert re.findall(r'src="/training/(\w+)\.svg', html) == ["loss", "bias"]
    picture = browser.get("/training/loss.svg")
    assert picture.headers["content-type"] == "image/svg+xml" and "<svg" in picture.text
    assert browser.get("/training/dev.svg").status_code == 404
    more = "".join(line(step, **{"eval_dev_ndcg@10": 0.4}) for step in (3, 4))
    (trained / "log.jsonl").write_text(line(1) + line(2) + more)
    now = browser.get("/training/now").text
    assert "Step 4" in now and "/training/dev.svg" in now and "<html" not in now
    assert browser.get("/training/loss.svg").text != picture.text


def test_finished_training_shows_merge_and_regrading(trained, open_server):
    epoch = {"epoch": 1, "asked": 8, "graded": 7, "relevant": 2, "mean_relevance": 0.25, "usd": 0.5, "failure": None}
    (trained / "regrade" / "epoch-1.json").write_text(json.dumps(epoch))
    results = {"merge": MERGE, "best_step": 2}
    (trained / "run.json").write_text(json.dumps({"status": "finished", "results": results}))
    browser = Browser(open_server(trained))
    html = browser.get("/training").text
    assert "hx-get" not in html and "[−0.030, −0.010]" in html and "0.5000" in html and "Step 2: finished" in html
    page = Page(html)
    page.check_served()
    assert "<b>dev" in page.text
    assert "weight of the tuned model" in browser.get("/training/merge.svg").text


def test_systems_without_probabilities_have_no_calibration(compare, actions):
    browser = compare("bm25", "bm25", collection=actions, held_out=actions.parent / "pairs.jsonl")
    assert "without a relevance head" in browser.get("/calibration").text
    assert browser.get("/calibration/diagram.svg").status_code == 400


@pytest.mark.parametrize(("exponent", "prior"), [("", None), ("-2", 0.01), ("nan", None), ("-99", None), ("x", None)])
def test_calibration_figures_are_those_of_the_command(compare, calibrated, actions, tmp_path, exponent, prior):
    model, pairs = calibrated[0], actions.parent / "pairs.jsonl"
    result = calibrate(CalibrateSettings(model=model, pairs=pairs, prior=prior), tmp_path / "out")
    browser = compare(model, "bm25", collection=actions, held_out=pairs)
    html = browser.get("/calibration", params={"exponent": exponent, "side": "9"}).text
    for name, report in result.check.reports.items():
        assert f'<th scope="row">{name}</th>' in html and f"{report.brier:.3f}" in html
        assert f"[{report.ece_interval[0]:.3f}, {report.ece_interval[1]:.3f}]" in html
    assert ("--prior 0.01" in html) == (prior is not None)
