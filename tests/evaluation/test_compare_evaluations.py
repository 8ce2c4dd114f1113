import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import bixse
from bixse.cli.overwrite import overwritten
from bixse.data.run import finished_runs, open_run
from bixse.data.trec import write_run
from bixse.errors import InputError, OutputExistsError
from bixse.evaluation.compare_evaluations import compare_tasks, evaluate_systems
from bixse.evaluation.open_system import open_system
from bixse.evaluation.statistics import holm, paired_difference, randomisation_test
from helpers.toy import save_toy


def values(seed, shift=0.0, tasks=(40, 15)):
    draw = random.Random(seed)
    return {
        f"task{number}": {f"q{query}": min(1.0, max(0.0, draw.random() + shift)) for query in range(count)}
        for number, count in enumerate(tasks)
    }


def compare_systems(systems, groups=(), baseline=None):
    """Compare values: system -> task -> query -> nDCG@10."""
    scores = {
        system: {
            task: bixse.Evaluation(task, {}, {"ndcg@10": by_query}, {}, 0.0, group=dict(groups).get(task, task))
            for task, by_query in tasks.items()
        }
        for system, tasks in systems.items()
    }
    return compare_tasks(scores, baseline)


def test_systems_with_other_queries_are_refused():
    a, b = values(0), values(1)
    del b["task1"]["q3"]
    with pytest.raises(InputError, match="such as 'q3'"):
        compare_systems({"a": a, "b": b})


def test_a_task_of_one_query_has_no_interval_but_counts():
    (pair,) = compare_systems({"a": values(0, tasks=(60, 1)), "b": values(1, tasks=(60, 1))})
    assert ([task.verdict for task in pair.tasks][1], pair.difference.queries) == ("cannot tell", 61)
    assert pair.tasks[1].randomisation_p == 1.0
    assert pair.verdict == "cannot tell" and "3 equally weighted queries" in pair.difference.few


def test_one_task_is_the_comparison_of_its_queries():
    a, b = values(0, tasks=(50,)), values(1, tasks=(50,))
    (pair,) = compare_systems({"a": a, "b": b})
    assert pair.difference == pair.tasks[0].difference == paired_difference(a["task0"], b["task0"])
    assert pair.randomisation_p == randomisation_test(a["task0"], b["task0"])


def test_tasks_count_alike_whatever_their_size_and_those_of_a_group_together_count_as_one():
    tasks = (("x1", 100, 1.0), ("x2", 2, 1.0), ("x3", 3, 1.0), ("y", 2, 0.0))
    a = {task: {f"q{n}": value for n in range(size)} for task, size, value in tasks}
    b = {task: {f"q{n}": 1.0 - value for n in range(size)} for task, size, value in tasks}
    (pair,) = compare_systems({"a": a, "b": b})
    assert (pair.difference.mean, pair.difference.low) == (0.5, None)
    assert {task.verdict for task in pair.tasks} == {"cannot tell"}, "differences that are all equal"
    (pair,) = compare_systems({"a": a, "b": b}, {"x1": "x", "x2": "x", "x3": "x"})
    assert pair.difference.mean == pytest.approx(0.0)
    assert pair.randomisation_p > 0.8


def test_the_interval_is_over_queries_within_tasks():
    a, b = values(2, 0.3), values(3)
    generator = np.random.default_rng(0)
    differences = [np.array([a[task][query] - b[task][query] for query in a[task]]) for task in a]
    means = [np.mean([generator.choice(sample, len(sample)).mean() for sample in differences]) for _ in range(4000)]
    difference = compare_systems({"a": a, "b": b})[0].difference
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([difference.low, difference.high], abs=0.01)


def test_every_pair_is_compared_and_corrected():
    systems = {"good": values(0, 0.4), "same": values(1), "other": values(2)}
    pairs = {(each.system, each.baseline): each for each in compare_systems(systems)}
    assert list(pairs) == [("good", "same"), ("good", "other"), ("same", "other")]
    assert [each.verdict for each in pairs.values()] == ["better", "better", "no difference"]
    assert [each.holm_p for each in pairs.values()] == holm([each.randomisation_p for each in pairs.values()])
    every = [task.randomisation_p for each in pairs.values() for task in each.tasks]
    assert [task.holm_p for each in pairs.values() for task in each.tasks] == holm(every)


def test_a_baseline_is_subtracted_from_every_other_system_and_wins_are_counted():
    systems = {"good": values(0, 0.4), "base": values(1), "other": values(2)}
    pairs = compare_systems(systems, baseline="base")
    assert [(each.system, each.baseline) for each in pairs] == [("good", "base"), ("other", "base")]
    differences = [systems["good"][task][query] - value for task in ("task0", "task1")
                   for query, value in systems["base"][task].items()]  # fmt: skip
    assert pairs[0].wins == sum(each > 0 for each in differences)
    assert pairs[0].losses == sum(each < 0 for each in differences)
    assert sum(each.wins for each in pairs[0].tasks) == pairs[0].wins
    assert [each.holm_p for each in pairs] == holm([each.randomisation_p for each in pairs])
    with pytest.raises(InputError, match="got 2 pairs; expected one"):
        _ = pairs.verdict


def evaluation(seed, shift=0.0, queries=50):
    (by_query,) = values(seed, shift, (queries,)).values()
    return bixse.Evaluation("toy", {"ndcg@10": np.mean([*by_query.values()])}, {"ndcg@10": by_query}, {}, 0.0)


def test_two_evaluations_are_the_paired_difference_of_their_queries():
    base, tuned = replace(evaluation(0), system="model"), replace(evaluation(1, 0.4), system="model")
    compared = bixse.compare(tuned, baseline=base)
    assert compared[0].difference == paired_difference(tuned.by_query["ndcg@10"], base.by_query["ndcg@10"])
    assert (compared.verdict, compared[0].system, compared[0].baseline) == ("better", "model", "model (baseline)")
    assert bixse.compare(evaluation(0, queries=7), evaluation(1, 0.4, 7)).verdict == "cannot tell"
    three = {"base": base, "tuned": tuned, "third": evaluation(2)}
    assert len(bixse.compare(three)) == 3 and len(bixse.compare(three, baseline="base")) == 2
    for text in (str(compared), compared.to_markdown(), compared.to_latex(), compared._repr_html_()):
        assert "nDCG@10" in text and "model (baseline)" in text and f"{compared[0].wins} / " in text


@pytest.mark.parametrize(
    ("systems", "options", "message"),
    [
        ({"q1": 0.5}, {}, "got float with the baseline None; expected two"),
        ("demo", {}, "got str with the baseline None"),
        (evaluation(0), {}, "got Evaluation with the baseline None"),
        ({"a": evaluation(0)}, {}, "got Evaluation with the baseline None"),
        (
            {"a": evaluation(0), "b": evaluation(1)},
            {"baseline": "c"},
            "got Evaluation, Evaluation with the baseline 'c'",
        ),
        ({"a": evaluation(0), "b": evaluation(1)}, {"metric": "mrr@10"}, "got 'mrr@10'; expected one of ndcg@10"),
        ({"a": evaluation(0), "b": evaluation(1, queries=51)}, {}, "expected the same queries"),
    ],
)
def test_what_cannot_be_compared_is_refused(systems, options, message):
    with pytest.raises(InputError, match=message):
        bixse.compare(systems, **options)


def test_the_command_on_a_collection_imports_no_lab(tmp_path):
    words = ["evaluate", "bm25", "--collection", str(save_toy(tmp_path / "toy")), "--json"]
    code = f"import sys; from bixse.cli.main import main; assert main({words}) == 0; "
    code += "assert not [name for name in sys.modules if name.startswith('bixse.lab')]"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def systems_on_toy(tmp_path):
    """A task and three systems on it."""
    task = bixse.collection_task(save_toy(tmp_path / "toy"))
    run = bixse.evaluate("bm25", task).run
    for name in ("a", "b"):
        write_run(tmp_path / f"{name}.trec", dict(list(run.items())[:-1]) if name == "b" else run, name)
    return task, [open_system(name) for name in ("bm25", str(tmp_path / "a.trec"), str(tmp_path / "b.trec"))]


def test_several_systems_are_written_into_no_folder_of_another_run(tmp_path):
    task, systems = systems_on_toy(tmp_path)
    for number, start in enumerate((
        lambda out: bixse.evaluate("bm25", task, out),
        lambda out: open_run(out, "train", {}, {}).save("finished"),
        lambda out: evaluate_systems(systems, bixse.collection_task(tmp_path / "toy", min_relevant_grade=2), out),
    )):  # fmt: skip
        out = tmp_path / str(number)
        start(out)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(OutputExistsError):
            evaluate_systems(systems, task, out)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_record_of_several_systems_names_those_that_a_report_shows(tmp_path):
    task, systems = systems_on_toy(tmp_path)
    evaluate_systems(systems, task, tmp_path / "out")
    evaluate_systems(systems[:2], task, tmp_path / "out")
    assert list(finished_runs(tmp_path / "out")) == [tmp_path / "out" / system.name for system in systems[:2]]
    (tmp_path / "out" / "run.json").unlink()  # as an earlier version wrote the folder
    assert len(finished_runs(tmp_path / "out")) == 3
    evaluate_systems(systems, task, tmp_path / "out")
    assert len(finished_runs(tmp_path / "out")) == 3 and (tmp_path / "out" / "run.json").is_file()
    with overwritten(tmp_path / "out", "out", []):
        pass
    assert not (tmp_path / "out").exists()
