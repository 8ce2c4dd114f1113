from __future__ import annotations

import json
import shlex

import pytest

from bixse.cli.main import main, parse
from bixse.cli.verb import settings_from
from bixse.data.trec import read_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.errors import OutputExistsError
from bixse.lab import quickstart as module
from bixse.lab.lab_config import QuickstartConfig
from bixse.training.config import TrainConfig

SETTINGS = QuickstartConfig(fast=True, compare=("infonce",))


@pytest.fixture(scope="module")
def finished(tiny_model_path, tmp_path_factory):
    """The whole main job on the real collection, with a tiny random encoder in place of the demo model."""
    out = tmp_path_factory.mktemp("quickstart") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MODEL", str(tiny_model_path))
        patch.setattr(module, "FAST_TRAIN_LENGTH", 16)
        lines: list[str] = []
        result = module.quickstart(SETTINGS, out, say=lines.append)
        again = module.quickstart(SETTINGS, out)
        with pytest.raises(OutputExistsError, match="changed: seed"):
            module.quickstart(SETTINGS.model_copy(update={"seed": 1}), out)
    return out, result, again, lines


def test_it_leaves_model_runs_report_and_record(finished):
    out, result, _, lines = finished
    assert all(path.exists() for path in map(type(out), result.artifacts.values()))
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["versions"]["torch"]
    assert set(record["timings"]) >= {"train BiXSE", "train InfoNCE", "search with BM25"}
    assert {path.stem for path in (out / "runs" / "guard").iterdir()} == {
        "base", "infonce-tuned", "infonce", "bixse-tuned", "bixse"
    }  # fmt: skip
    assert {path.stem for path in (out / "runs").glob("*.trec")} == {
        "bm25", "base", "infonce-tuned", "infonce", "bixse-tuned", "bixse"
    }  # fmt: skip
    assert len(read_run(out / "runs" / "bixse.trec")) == 266
    assert any("train BiXSE" in line for line in lines)
    bm25 = next(system for system in result.report.systems if system.name == "bm25")
    assert bm25.metrics["ndcg@10"] == pytest.approx(0.209, abs=0.01), "it does not depend on training"
    assert not (out / "bixse" / "checkpoints").exists()


def test_the_verdict_follows_from_the_intervals(finished):
    _, result, _, _ = finished
    for line, baseline in zip(result.verdicts[:2], ("base", "infonce"), strict=True):
        found = result.report.comparison("bixse", baseline).difference
        expected = "better" if found.low > 0 else "worse" if found.high < 0 else "no difference"
        assert f": {expected} (nDCG@10 {found.mean:+.3f}" in line
        assert f"{found.low:+.3f} to {found.high:+.3f}" in line


def test_the_guard_is_measured_and_the_merge_is_in_the_report(finished):
    out, result, _, _ = finished
    assert [line for line in result.verdicts if "45 guard queries" in line] == result.verdicts[2:]
    assert {(c.system, c.baseline, c.difference.queries) for c in result.report.guard} == {
        (system, "base", 45) for system in ("bixse", "infonce", "bixse-tuned", "infonce-tuned")
    }
    for curve in result.report.merges:
        assert [point.weight for point in curve.points] == [0.0, *module.MERGE.weights]
        assert curve.guards == ["collection/guard"]
        assert curve.weight in module.MERGE.weights and "standard error" in curve.reason
        assert curve.reason in (out / "report.html").read_text(encoding="utf-8")
    assert "weight of the tuned model" in (out / "report.html").read_text(encoding="utf-8")


def test_its_rows_are_those_of_evaluate(finished, tiny_model_path, capsys):
    """Each with an empty store of embeddings: to the last bit, and with no other option."""
    out, result, _, _ = finished
    rows = {system.name: system.metrics for system in result.report.systems}
    models = {"base": str(tiny_model_path), "bixse": str(out / "bixse" / "model")}
    for name, model in models.items():
        assert main(["evaluate", model, "--collection", str(out / "collection"), "--split", "test", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["metrics"]
        assert {metric: said[metric] for metric in rows[name]} == rows[name]


def test_what_it_saves_reads_as_much_as_the_base_model(finished, tiny_model_path):
    out, _, _, _ = finished
    longest = build_encoder(tiny_model_path).max_seq_length
    assert longest > 16, "training read less"
    assert all(build_encoder(out / "bixse" / name).max_seq_length == longest for name in ("model", "tuned"))


def test_without_compare_it_trains_bixse_alone():
    assert module.compared(()) == [("bixse", "base"), ("bixse-tuned", "base")]
    for wrong in (("bixse",), ("infonce", "infonce"), ("no-such",)):
        with pytest.raises(ValueError, match="fix:"):
            QuickstartConfig(compare=wrong)


def test_the_saved_head_is_calibrated_on_dev_and_never_on_test(finished):
    out, result, _, _ = finished
    head = RelevanceHead.load(out / "bixse" / "model")
    assert head is not None
    assert "'dev'" in str(head.calibrated_on)
    assert list(result.report.calibrations)[:2] == ["BiXSE, as trained", "BiXSE, calibrated on dev"]
    assert all(calibration.pairs == 3124 for calibration in result.report.calibrations.values())


def test_a_second_call_shows_the_same_results_without_work(finished):
    _, result, again, _ = finished
    assert again.reused
    assert again.report == result.report
    assert again.verdicts == result.verdicts


def test_the_configuration_it_writes_is_one_that_train_takes(finished):
    out, _, _, _ = finished
    config = TrainConfig.load(out / "train.yaml")
    assert config.pairs == out / "train.jsonl"
    assert config.pairs.is_file()
    assert config.dev.is_dir()
    assert config.loss == "bixse"


def test_the_commands_it_prints_run(finished, capsys):
    out, result, _, _ = finished
    assert result.report.commands[0].startswith("bixse search ")
    code = main(["search", str(out / "bixse" / "model"), "--collection", str(out / "collection"), "copy a folder"])
    assert code == 0
    assert "p=0." in capsys.readouterr().out


def test_the_report_shows_the_command_that_made_it(finished):
    out, result, _, _ = finished
    words = shlex.split(result.report.facts["command"])
    name, verb, args = parse(words[1:])
    assert (words[0], name, args.out) == ("bixse", "quickstart", str(out))
    assert settings_from(args, verb.settings) == SETTINGS


def test_the_report_opens_without_a_network(finished):
    out, _, _, _ = finished
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "http-equiv" in page
    assert "src=" not in page.replace("src='data:", "").replace('src="data:', "")
    assert "<script" not in page


def test_the_command_prints_table_verdict_report_and_what_to_do_next(finished, tiny_model_path, capsys, monkeypatch):
    out, result, _, _ = finished
    monkeypatch.setattr(module, "MODEL", str(tiny_model_path))
    assert main(["quickstart", "--fast", "--compare", "infonce", "--out", str(out)]) == 0
    text, errors = capsys.readouterr()
    assert "BM25" in text
    assert text.startswith(result.verdicts[0])
    assert f"report: {out / 'report.html'}" in text
    assert f"  {result.report.commands[1]}" in text
    assert "finished before" in errors
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 100
