import json
import shutil
from pathlib import Path

import pytest

import bixse
from bixse.cli.verb import CommandResult
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.run import open_run
from bixse.data.trec import write_run
from bixse.errors import InputError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate import Evaluation
from bixse.evaluation.evaluate_files import evaluate
from bixse.rendering.page import render_report
from bixse.reporting import report
from helpers.command import call, refused
from helpers.html_page import Page
from helpers.toy import action_collection
from helpers.ui_browser import faults, needs_axe, needs_chromium

FIXTURE = Path(__file__).parents[1] / "compat" / "fixture"
"""Run folders of an earlier version: train, grade, study."""
HOSTILE = '<script>alert(1)</script>"><img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Evaluations of BM25 and of a run that reverses it for 40 of 60 queries, whose texts are hostile."""
    folder = tmp_path_factory.mktemp("runs")
    toy = action_collection(splits=False)
    corpus = {name: Document(each.title, each.text + HOSTILE) for name, each in toy.corpus.items()}
    queries = {name: f"{text} {HOSTILE}" for name, text in toy.queries.items()}
    save_collection(Collection("actions", corpus, queries, toy.qrels), folder / "actions")
    task = collection_task(folder / "actions")
    good = evaluate("bm25", task, folder / "good")
    bad = {
        query: {name: -score if number % 3 else score for name, score in hits.items()}
        for number, (query, hits) in enumerate(good.run.items())
    }
    write_run(folder / "bad.trec", bad, "bad")
    evaluate(str(folder / "bad.trec"), task, folder / "bad")
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    """The folders of `runs`, to be changed."""
    for name in ("good", "bad", "actions"):
        shutil.copytree(runs / name, tmp_path / name)
    return tmp_path


def evaluation(value, queries=60, system="system", **values):
    by_query = {"ndcg@10": {f"q{n}": value + 0.1 * (n % 2) for n in range(queries)}}
    fields = {"task": "toy", "metrics": {"ndcg@10": value}, "by_query": by_query, "run": {}, "seconds": 0.0}
    return Evaluation(**{**fields, "system": system, **values})


@pytest.mark.parametrize(
    ("folder", "got", "fix"),
    [
        ("none", "nothing there", "--out"),
        ("bad.trec", "a file", "--out"),
        ("actions", "a collection", "--out"),
        ("actions/qrels", "a folder without run.json", "--out"),
        (FIXTURE / "index-finished", "a run of `bixse index`", "--out"),
        (FIXTURE / "train-interrupted", "a run of `bixse train` that is interrupted", "continues"),
        (FIXTURE / "tiny-static", "a model", "--out"),
        (FIXTURE / "train-finished" / "model", "a model", str(FIXTURE / "train-finished")),
    ],
)
def test_wrong_folder_is_named_for_what_it_is(runs, capsys, folder, got, fix):
    path = runs / folder
    with pytest.raises(InputError) as caught:
        report(path)
    assert (caught.value.where, caught.value.got) == (str(path), got) and fix in caught.value.fix
    assert refused(capsys, "report", path) == str(caught.value)


def test_wrong_objects_are_refused(runs):
    for results, where in (((), "report"), ((7,), "report"), (({"one": evaluation(0.5), "two": 7},), "report")):
        with pytest.raises(InputError) as caught:
            report(*results)
        assert caught.value.where == where and caught.value.fix
    with pytest.raises(InputError) as caught:
        report(runs / "good", runs / "bad", baseline="good")
    assert caught.value.where == "baseline" and "bm25" in caught.value.expected


def test_damaged_results_are_refused(copied):
    record = json.loads((copied / "good" / "run.json").read_text())
    record["results"] = {}
    (copied / "good" / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError) as caught:
        report(copied / "good")
    assert caught.value.where == str(copied / "good") and "KeyError" in caught.value.got


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("inputs", "corpus.jsonl", "0" * 64), ("inputs", "qrels/test.tsv", "0" * 64), ("config", "min_relevant_grade", 2)],
)
def test_evaluations_of_other_collections_or_scoring_are_refused(copied, part, name, value):
    record = json.loads((copied / "bad" / "run.json").read_text())
    record[part][name] = value
    (copied / "bad" / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError) as caught:
        report(copied / "good", copied / "bad")
    assert name in caught.value.got


def test_verdict_is_that_of_compare_and_queries_are_side_by_side(runs):
    page = report(runs / "bad", runs / "good")
    loaded = [evaluate(name, collection_task(runs / "actions")) for name in (str(runs / "bad.trec"), "bm25")]
    expected = bixse.compare(loaded[1], baseline=loaded[0])[0].difference
    assert page.data.comparison("bm25", str(runs / "bad.trec")).difference == expected
    assert expected.verdict == "better" and "bm25 is better than" in page.data.verdicts[0]
    assert {c.metric for c in page.data.comparisons} == set(loaded[0].by_query)
    shown = [change for change in page.data.per_query if any(change.rankings)]
    assert 0 < len(shown) <= 10 and max(page.data.per_query, key=lambda c: c.change).change == max(
        c.change for c in shown
    )
    qrels = action_collection(splits=False).qrels["test"]
    for change in shown:
        for hit in (*change.rankings[0], *change.rankings[1]):
            assert hit.grade == qrels[change.query_id].get(hit.document_id)
            assert hit.text.startswith(hit.document_id.partition("-")[0])
    assert report(runs / "bad", runs / "good", baseline="bm25").data.comparisons[0].verdict == "worse"


def test_texts_of_data_are_escaped_and_nothing_is_loaded(runs):
    html = render_report(report(runs / "bad", runs / "good", title=HOSTILE).data)
    Page(html).check_harmless()
    assert Page(html).text.count("alert(1)") > 10


@pytest.mark.slow
@needs_chromium
@needs_axe
def test_page_of_many_runs_fits_a_phone_without_faults(chromium, runs):
    html = render_report(
        report(runs / "bad", runs / "good", FIXTURE / "train-finished", FIXTURE / "grade-finished").data
    )
    page = chromium.new_context().new_page()
    page.set_content(html)
    page.evaluate("() => document.querySelectorAll('details').forEach(x => { x.open = true })")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
        assert not faults(page)
    wide = (
        "() => [...document.querySelectorAll('.stack')].filter(x => x.scrollWidth > x.parentElement.clientWidth).length"
    )
    assert page.evaluate(wide) == 0, "no table of figures is scrolled sideways on a phone"
    page.context.close()


def test_changed_or_missing_collection_gives_ids_and_no_text(copied, monkeypatch):
    for name in ("good", "bad"):
        record = json.loads((copied / name / "run.json").read_text())
        record["config"]["collection"] = str(copied / "actions")
        (copied / name / "run.json").write_text(json.dumps(record))
    with (copied / "actions" / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "new", "title": "", "text": "new"}) + "\n")
    for word in ("corpus.jsonl changed", "is not there"):
        data = report(copied / "good", copied / "bad").data
        assert any(word in note for note in data.notes)
        assert {change.query for change in data.per_query} == {change.query_id for change in data.per_query}
        assert not any(hit.text or hit.grade for change in data.per_query for side in change.rankings for hit in side)
        shutil.rmtree(copied / "actions", ignore_errors=True)


def test_evaluation_without_values_per_query_says_so_and_claims_nothing():
    data = report({"a": evaluation(0.5, by_query={}), "b": evaluation(0.6, by_query={})}).data
    assert not data.comparisons and not data.per_query and not data.verdicts
    assert [note.partition(" has no values per query")[0] for note in data.notes] == ["a", "b"]
    assert "claims no improvement" in render_report(data)


def test_few_queries_carry_no_verdict():
    data = report({"a": evaluation(0.5, queries=7), "b": evaluation(0.6, queries=7)}).data
    assert data.comparisons[0].verdict == "cannot tell" and "7 queries" in data.verdicts[0]


def test_three_systems_are_corrected_for_their_number():
    data = report(*(evaluation(value, system=name) for name, value in (("a", 0.5), ("b", 0.5), ("c", 0.6)))).data
    assert [(c.system, c.baseline) for c in data.comparisons] == [("b", "a"), ("c", "a")]
    assert any("Holm" in note for note in data.notes)
    assert (data.per_query_baseline, data.per_query_system) == ("a", "c")


def test_single_evaluation_lists_its_worst_queries(runs):
    data = report(runs / "good").data
    (section,) = data.sections
    values = [float(value) for _, value in section.rows]
    assert values == sorted(values) and len(values) == 10 and "please" in section.rows[0][0]


def test_run_folders_of_every_kind_give_their_sections():
    data = report(*(FIXTURE / f"{name}-finished" for name in ("train", "grade", "study"))).data
    assert [curve.system for curve in data.training] == ["train-finished"]
    record = json.loads((FIXTURE / "train-finished" / "run.json").read_text())
    (merged,) = [change for change in record["results"]["merge"]["changes"] if change["model"] == "merged"]
    (comparison,) = data.comparisons
    assert (comparison.difference.mean, comparison.difference.queries) == (merged["mean"], merged["queries"])
    assert [section.title for section in data.sections] == [
        "grade-finished: grades", "study-finished: findings", "study-finished: summary",
    ]  # fmt: skip
    assert "24 of 24 pairs" in data.sections[0].lines[0]
    assert set(data.facts) == {"train-finished", "grade-finished", "study-finished"}


def test_results_of_calibrate_and_compare_are_drawn(tmp_path):
    scores = [n / 100 for n in range(100)]
    calibration = bixse.calibrate(scores, [float(n % 10 < n / 10) for n in range(100)])
    compared = bixse.compare(evaluation(0.6), baseline=evaluation(0.5))
    page = bixse.report({"calibration": calibration}, compared)
    assert page.data.calibrations["calibration, calibrated"] == calibration.check.calibrated
    assert page.data.comparisons[0].difference == compared[0].difference
    assert any("differences alone" in note for note in page.data.notes)
    html = page.save(tmp_path / "page.html").read_text(encoding="utf-8")
    Page(html).check_harmless()
    assert "Can the probabilities be believed?" in html and 'id="results"' not in html
    assert "srcdoc" in page._repr_html_() and "<script" not in page._repr_html_()


def test_report_of_several_systems_and_of_the_flag(capsys, runs, tmp_path):
    words = ("evaluate", "bm25", runs / "bad.trec", "--collection", runs / "actions", "--report")
    assert "--out" in refused(capsys, *words)
    code, envelope = call(capsys, *words, "--out", tmp_path / "several")
    assert code == 0 and Path(envelope["artifacts"]["report"]) == tmp_path / "several" / "report.html"
    code, envelope = call(capsys, "report", tmp_path / "several", "--out", tmp_path / "again.html")
    (metric, *_) = envelope["metrics"]["comparisons"]
    assert code == 0 and metric["metric"] == "ndcg@10" and (tmp_path / "again.html").is_file()


def test_evaluation_of_a_collection_in_memory_opens_no_folder(tmp_path, monkeypatch):
    toy = action_collection(splits=False)
    first, second = Collection("a", toy.corpus, toy.queries, toy.qrels), dict(list(toy.corpus.items())[1:])
    evaluate("bm25", first, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["config"]["collection"] is None
    save_collection(first, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for recorded in (None, "."):  # an earlier version wrote "."
        record["config"]["collection"] = recorded
        (tmp_path / "run" / "run.json").write_text(json.dumps(record))
        assert any("No collection was given" in note for note in report(tmp_path / "run").data.notes)
    assert not any("by ids" in note for note in report(tmp_path / "run", collection=first).data.notes)
    other = Collection("a", second, toy.queries, {"test": {q: {d: 1 for d in r if d in second} for q, r in
                       toy.qrels["test"].items()}})  # fmt: skip
    for changed in (other, tmp_path / "here"):
        assert any("by ids" in note for note in report(tmp_path / "run", collection=changed).data.notes)
    evaluate("bm25", other, tmp_path / "other")
    with pytest.raises(InputError) as caught:
        report(tmp_path / "run", tmp_path / "other")
    assert "another collection" in caught.value.got


@pytest.mark.parametrize("change", [lambda path: path.write_text("damaged"), lambda path: path.unlink()])
def test_texts_are_left_out_if_the_collection_cannot_be_read(copied, change):
    for name in ("good", "bad"):
        record = json.loads((copied / name / "run.json").read_text())
        record["config"]["collection"] = str(copied / "actions")
        (copied / name / "run.json").write_text(json.dumps(record))
    change(copied / "actions" / "qrels" / "test.tsv")
    page = report(copied / "good", copied / "bad")
    assert page.data.comparisons and any("cannot be read" in note for note in page.data.notes)
    with pytest.raises(InputError):
        report(copied / "good", copied / "bad", collection=copied / "actions")


def test_names_lists_and_comparisons_of_the_same_systems(runs):
    named = report({"BM25": runs / "good", "reversed": str(runs / "bad")}).data
    assert [(c.system, c.baseline) for c in named.comparisons[:1]] == [("reversed", "BM25")]
    assert named.facts.keys() == {"BM25", "reversed"}
    assert (
        report([runs / "good", [runs / "bad"]]).data.comparisons == report(runs / "good", runs / "bad").data.comparisons
    )
    base, tuned = evaluation(0.5, system="base"), evaluation(0.6, system="tuned")
    data = report(base, tuned, bixse.compare(tuned, baseline=base)).data
    assert [system.name for system in data.systems] == ["base", "tuned"]
    assert [(c.system, c.baseline, c.metric) for c in data.comparisons] == [("tuned", "base", "ndcg@10")]
    assert not any("differences alone" in note for note in data.notes)


def test_evaluation_of_another_metric_does_have_values_per_query():
    values = {"recall@5": {"q": 0.5}}
    data = report(evaluation(0.5, metrics={"recall@5": 0.5}, by_query=values)).data
    assert [note for note in data.notes if "no ndcg@10 per query" in note]
    assert not [note for note in data.notes if "no values" in note]


def test_flag_writes_a_page_after_a_failed_gate_and_keeps_the_figures_without_one(capsys, runs, tmp_path, monkeypatch):
    words = ("evaluate", runs / "bad.trec", "--collection", runs / "actions", "--report")
    code, envelope = call(capsys, *words, "--fail-if-worse-than", runs / "good", "--out", tmp_path / "gate")
    assert (code, envelope["metrics"]["gate"]["passed"]) == (1, False)
    assert (tmp_path / "gate" / "report.html").is_file()
    run = "bixse.cli.verbs.evaluate._on_suite"  # a suite of which a task failed has a record that is no finished run
    open_run(tmp_path / "suite", "evaluate", {"suite": "beir"}, {}).save("failed")
    monkeypatch.setattr(run, lambda *_: CommandResult("the table", {"systems": 1}, exit_code=3))
    words = ("evaluate", "bm25", "--suite", "beir", "--data", runs, "--report", "--out", tmp_path / "suite")
    code, envelope = call(capsys, *words)
    assert (code, envelope["metrics"]) == (3, {"systems": 1})
    assert any("no report was written" in warning for warning in envelope["warnings"])
