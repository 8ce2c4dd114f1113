import json
import shlex
from dataclasses import replace

import pytest

from bixse.cli.main import main, parse
from bixse.cli.verb import settings_from
from bixse.data.collection import save_collection
from bixse.data.pydocs import load_pydocs
from bixse.data.trec import read_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.errors import ConfigError, InputError, InterruptedRunError, OutputExistsError
from bixse.lab import quickstart as module
from bixse.lab.lab_config import QuickstartConfig
from bixse.reporting import report
from bixse.training.config import TrainConfig

SETTINGS = QuickstartConfig(fast=True, compare=("infonce",))
TRAINED = {"base", "infonce-tuned", "infonce", "bixse-tuned", "bixse"}


def short_documents():
    """The sample collection with the beginning of each document: the same queries and grades in half of the time."""
    sample = load_pydocs()
    corpus = {name: document._replace(text=document.text[:150]) for name, document in sample.corpus.items()}
    return replace(sample, corpus=corpus)


@pytest.fixture(scope="module")
def finished(tiny_model_path, tmp_path_factory):
    """The folder and result of a quick start on the sample collection, with a tiny random encoder."""
    out = tmp_path_factory.mktemp("quickstart") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MODEL", str(tiny_model_path))
        patch.setattr(module, "FAST_TRAIN_LENGTH", 16)
        patch.setattr(module, "load_pydocs", short_documents)
        result = module.quickstart(SETTINGS, out)
        again = module.quickstart(SETTINGS, out)
        assert (again.reused, again.report, again.verdicts) == (True, result.report, result.verdicts)
        with pytest.raises(OutputExistsError, match="changed: seed"):
            module.quickstart(SETTINGS.model_copy(update={"seed": 1}), out)
    return out, result


def test_quickstart_writes_model_runs_report_and_record(finished):
    out, result = finished
    assert all(path.exists() for path in map(type(out), result.artifacts.values()))
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["versions"]["torch"]
    assert set(record["timings"]) >= {"train BiXSE", "train InfoNCE", "search with BM25"}
    assert {path.stem for path in (out / "runs" / "guard").iterdir()} == TRAINED
    assert {path.stem for path in (out / "runs").glob("*.trec")} == {"bm25", *TRAINED}
    assert len(read_run(out / "runs" / "bixse.trec")) == 266
    bm25 = next(system for system in result.report.systems if system.name == "bm25")
    assert bm25.metrics["ndcg@10"] == pytest.approx(0.172, abs=0.01), "it does not depend on training"
    assert not (out / "bixse" / "checkpoints").exists()
    config = TrainConfig.load(out / "train.yaml")
    assert (config.pairs, config.loss) == (out / "train.jsonl", "bixse")
    assert config.pairs.is_file() and config.dev.is_dir()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "src=" not in page.replace("src='data:", "").replace('src="data:', ""), "it opens without a network"
    assert "<script" not in page and "http-equiv" in page


def test_ctrl_c_is_recorded(tmp_path, tiny_model_path, monkeypatch):
    def stop(line):
        if "BM25" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "MODEL", str(tiny_model_path))
    with pytest.raises(InterruptedRunError):
        module.quickstart(SETTINGS, tmp_path / "run", stop)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"


def test_a_damaged_record_is_refused(finished, tmp_path, tiny_model_path, monkeypatch):
    monkeypatch.setattr(module, "MODEL", str(tiny_model_path))
    monkeypatch.setattr(module, "FAST_TRAIN_LENGTH", 16)
    record = json.loads((finished[0] / "run.json").read_text())
    for results, files in (({}, ("results.json",)), (record["results"], ())):
        folder = tmp_path / f"{len(files)}"
        folder.mkdir()
        for name in files:
            (folder / name).write_bytes((finished[0] / name).read_bytes())
        (folder / "run.json").write_text(json.dumps({**record, "results": results}))
        with pytest.raises(InputError) as caught:
            module.quickstart(SETTINGS, folder)
        assert caught.value.where == str(folder)


def test_its_page_is_the_report_of_its_folder(finished):
    out, result = finished
    assert report(out).data == result.report
    assert any(hit.text for change in result.report.per_query for side in change.rankings for hit in side)
    with pytest.raises(InputError):
        report(out, out)


def test_bm25_on_whole_documents(tmp_path, capsys):
    save_collection(load_pydocs(), tmp_path)
    assert main(["evaluate", "bm25", "--collection", str(tmp_path), "--split", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["ndcg@10"] == pytest.approx(0.209, abs=0.01)


def test_verdicts_follow_from_the_intervals(finished):
    _, result = finished
    for line, baseline in zip(result.verdicts[:2], ("base", "infonce"), strict=True):
        difference = result.report.comparison("bixse", baseline).difference
        assert f": {difference.verdict} ({difference.figures()})" in line
        assert baseline != "infonce" or difference.queries == 266


def test_the_guard_is_measured_and_the_merge_is_in_the_report(finished):
    out, result = finished
    page = (out / "report.html").read_text(encoding="utf-8")
    assert [line for line in result.verdicts if "guard queries" in line and "45 queries" in line] == result.verdicts[2:]
    assert {(c.system, c.baseline, c.difference.queries) for c in result.report.guard} == {
        (system, "base", 45) for system in TRAINED - {"base"}
    }
    for curve in result.report.merges:
        assert [point.weight for point in curve.points] == [0.0, *module.MERGE.weights]
        assert curve.guards == ["collection/guard"]
        assert curve.weight in module.MERGE.weights and "standard error" in curve.reason
        assert curve.reason in page
    assert "weight of the tuned model" in page


def test_its_row_is_that_of_evaluate(finished, capsys):
    out, result = finished
    (row,) = (system.metrics for system in result.report.systems if system.name == "bixse")
    words = [str(out / "bixse" / "model"), "--collection", str(out / "collection"), "--split", "test", "--json"]
    assert main(["evaluate", *words]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"].items() >= row.items()


def test_what_it_saves_reads_as_much_as_the_base_model(finished, tiny_model_path):
    out, _ = finished
    longest = build_encoder(tiny_model_path).max_seq_length
    assert longest > 16, "training read less"
    assert all(build_encoder(out / "bixse" / name).max_seq_length == longest for name in ("model", "tuned"))


def test_losses_to_compare_with_are_other_losses_and_each_named_once():
    for wrong in (("bixse",), ("infonce", "infonce"), ("no-such",)):
        with pytest.raises(ConfigError, match="fix:"):
            QuickstartConfig(compare=wrong)


def test_the_saved_head_is_calibrated_on_dev_and_never_on_test(finished):
    out, result = finished
    assert "'dev'" in str(RelevanceHead.load(out / "bixse" / "model").calibrated_on)
    assert list(result.report.calibrations)[:2] == ["BiXSE, as trained", "BiXSE, calibrated on dev"]
    assert all(calibration.pairs == 3124 for calibration in result.report.calibrations.values())


def test_the_commands_of_report_and_terminal_run(finished, tiny_model_path, capsys, monkeypatch):
    out, result = finished
    monkeypatch.setattr(module, "MODEL", str(tiny_model_path))
    program, *words = shlex.split(result.report.facts["command"])
    name, verb, args = parse(words)
    assert (program, name, args.out, settings_from(args, verb.settings)) == ("bixse", "quickstart", str(out), SETTINGS)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith(result.verdicts[0]) and "BM25" in text
    assert f"report: {out / 'report.html'}" in text
    assert all(f"  {command}" in text for command in result.report.commands)
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 100
    assert main(shlex.split(result.report.commands[0])[1:]) == 0
    assert "p=0." in capsys.readouterr().out
