import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from bixse import ConvertSettings, convert, load_graded_pairs
from bixse.cli.main import main
from bixse.converting import transforms
from bixse.converting.formats import FORMATS
from bixse.errors import InputError, OutputExistsError, StorageError
from bixse.files.files import file_hash
from helpers import source_files as files
from helpers.command import call, refused


@pytest.fixture
def lightblue(tmp_path):
    parts = [files.LIGHTBLUE[:6], files.LIGHTBLUE[6:]]
    return files.put(tmp_path / "lb", {f"data/train-{i}.parquet": files.parquet(rows) for i, rows in enumerate(parts)})


@pytest.fixture
def pairs(tmp_path):
    return files.put(tmp_path / "pairs", {"pairs.jsonl": files.lines(files.PAIRS)}) / "pairs.jsonl"


@pytest.fixture
def run(tmp_path):
    """Convert a file, or rows that are written first, into the folder `out`; return the result and the pairs."""

    def convert_to_out(source, path, **options):
        if isinstance(path, list):
            path = files.put(tmp_path, {"rows.jsonl": files.lines(path)}) / "rows.jsonl"
        result = convert(ConvertSettings(source=source, path=path, **options), tmp_path / "out")
        name = f"{next(iter(result.parts))}.parquet"
        return result, load_graded_pairs(tmp_path / "out" / name)

    return convert_to_out


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_rows_and_record_are_those_of_the_source(lightblue, run, tmp_path):
    steps, totals = {}, {}

    def bar(title, total):
        totals[title] = total
        return steps.setdefault(title, []).append

    result = convert(ConvertSettings(source="lightblue", path=lightblue), tmp_path / "out", bar)
    table = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
    assert len(table) == result.parts["pairs"]["rows"] == sum(result.parts["pairs"]["histogram"]) == 12
    assert table.queries == [row["question"] for row in files.LIGHTBLUE]
    assert table.extra["task"] == [row["dataset_name"] for row in files.LIGHTBLUE]
    assert table.relevance[2] == (table.extra["grade"][2] - 1) / 4
    assert len(table.extra["grade_probs"][0]) == 5
    assert len(table.groups()) == result.parts["pairs"]["queries"] == 6
    assert files_in(tmp_path / "out") == {"pairs.parquet", "train.yaml", "run.json"}
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["inputs"]["data/train-0.parquet"] == file_hash(lightblue / "data/train-0.parquet")
    assert (record["results"]["source"]["licence"], record["results"]["statuses"]) == ("Apache-2.0", {"graded": 12})
    size = sum(file.stat().st_size for file in lightblue.rglob("*.parquet"))
    assert totals == {"hash": size, "read lightblue": size, "write": 12}
    assert {title: sum(step) for title, step in steps.items()} == totals


def test_shares_and_instructions_go_to_the_settings_of_training(run, tmp_path):
    run("e5", files.put(tmp_path / "echo", {f"{name}.jsonl": rows for name, rows in files.E5.items()}))
    assert yaml.safe_load((tmp_path / "out" / "train.yaml").read_text()) == {
        "pairs": "pairs.parquet",
        "task_shares": {"msmarco_passage": 0.5, "quora_duplicates": 0.1},
        "instructions": "paper",
    }


def test_judgements_without_a_grade_are_counted_and_left_out(run):
    with pytest.raises(InputError) as error:
        run("umbrela", [files.UMBRELA[3]])
    assert "1 no-option" in error.value.got
    result, table = run("umbrela", files.UMBRELA, task="mine")
    assert set(table.extra["task"]) == {"mine"}, "a task replaces those of the source"
    assert (result.statuses, len(table)) == ({"graded": 5, "no-option": 1}, 5)
    assert result.warnings == ["rows.jsonl: 1 of 6 judgements carry no grade (1 no-option)"]


def test_many_negatives_in_a_row_do_not_fill_the_memory_of_the_database(run):
    rows = [{"anchor": f"q {i}", "positive": "p", **{f"negative_{n}": f"{i} {n} " * 120 for n in range(30)}}
            for i in range(500)]  # fmt: skip
    assert len(run("sentence-transformers", rows)[1]) == 500 * 31


@pytest.mark.parametrize("rows_at_once", [pytest.param(1, marks=pytest.mark.slow), 5, 4096])
def test_transforms_of_files_equal_those_of_tables_in_memory(pairs, run, tmp_path, monkeypatch, rows_at_once):
    monkeypatch.setattr("bixse.converting.transforms.ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr("bixse.converting.source.ROWS_AT_ONCE", rows_at_once)
    shares = {"train": 0.6, "test": 0.4}
    result, _ = run("pairs", pairs, dedup=True, noise=0.6, cutoff=0.2, size=30, binarise=0.5, seed=5, split=shares)
    record = []
    table = load_graded_pairs(pairs)
    for step in ({"dedup": True}, {"noise": 0.6}, {"cutoff": 0.2}, {"size": 30}, {"binarise": 0.5}):
        table = transforms.transformed(table, record, seed=5, **step)
    columns = transforms.PairColumns.of(table, ["query"])
    parts = {name: part.selected(table) for name, part in transforms.split_by_query(columns, shares, 5).items()}
    for name, part in parts.items():
        assert list(load_graded_pairs(tmp_path / "out" / f"{name}.parquet").rows()) == list(part.rows())
    sizes = {name: len(part) for name, part in parts.items()}
    assert [report.notes for report in result.transforms] == [*(report.notes for report in record), sizes]
    assert record[1].notes["swapped"] > 2
    assert yaml.safe_load((tmp_path / "out" / "train.yaml").read_text())["pairs"] == "train.parquet"


def test_mean_of_several_relevances_has_no_grade(run):
    rows = [{"query": "q", "document": "d", "relevance": z, "grade": g} for z, g in [(0.0, 0), (1.0, 3)]]
    rows += [{"query": "q", "document": "e", "relevance": 1.0, "grade": 3}]
    with pytest.raises(InputError) as error:
        run("pairs", rows)
    assert "'q'" in error.value.got and "--dedup" in error.value.fix
    _, table = run("pairs", rows, dedup=True)
    assert (table.relevance.tolist(), table.extra["grade"]) == ([0.5, 1.0], [None, 3.0])


UMBRELA = {"query": {"qid": "1", "text": "q"}, "passage": {"docid": "2", "text": "d"}, "result_status": 1}
LISTS = {"query_id": "1", "query": "q"}
TWO_GRADES = {
    "lightblue": [
        {"question": "q", "context": "d", "32B_score_probs": probs, "32B_score_probs_rev": probs}
        for probs in ([1, 0, 0, 0, 0], [0, 0, 0, 0, 1])
    ],
    "e5": [{"query": "q", "positive": "d", "negative": "d"}],
    "flagembedding": [{"query": "q", "pos": ["d"], "neg": ["d"]}],
    "tevatron": [{**LISTS, "positive_passages": [{"docid": "2", "text": "d"}],
                  "negative_passages": [{"docid": "2", "text": "d"}]}],
    "sentence-transformers": [{"anchor": "q", "positive": "d", "negative": "d"}],
    "umbrela": [{**UMBRELA, "judgment": 0}, {**UMBRELA, "judgment": 3}],
    "beir": b"query-id\tcorpus-id\tscore\n1\t2\t0\n1\t2\t3\n",
    "trec": b"1 0 2 0\n1 0 2 3\n",
    "table": [{"query": "q", "document": "d", "grade": grade} for grade in (0, 3)],
    "pairs": [{"query": "q", "document": "d", "relevance": z} for z in (0, 1)],
}  # fmt: skip
"""Format -> rows that give one pair the lowest and the highest relevance."""


@pytest.mark.parametrize("source", FORMATS)
def test_dedup_takes_the_mean_of_two_grades_in_every_format(tmp_path, source):
    given, form = TWO_GRADES[source], FORMATS[source]
    file = "c/qrels/test.tsv" if source == "beir" else "c/nq.jsonl"
    texts = {"c/queries.jsonl": files.lines([{"_id": "1", "text": "q"}]),
             "c/corpus.jsonl": files.lines([{"_id": "2", "text": "d"}])}  # fmt: skip
    folder = files.put(tmp_path, {file: given if isinstance(given, bytes) else files.lines(given), **texts}) / "c"
    options = {"scale": (0, 3)} if form.needs_scale else {"score_map": "binary"} if form.needs_map else {}
    options |= {n: folder / f"{n}.jsonl" for n in ("queries", "corpus") if source == "trec"}
    path = folder if source == "beir" else tmp_path / file
    with pytest.raises(InputError):
        convert(ConvertSettings(source=source, path=path, **options), tmp_path / "out")
    convert(ConvertSettings(source=source, path=path, dedup=True, **options), tmp_path / "out")
    (row,) = load_graded_pairs(tmp_path / "out" / "pairs.parquet").rows()
    assert (row["query"], row["document"], row["relevance"], row.get("grade")) == ("q", "d", 0.5, None)


def test_repeated_pair_is_written_once(run):
    rows = [{"anchor": "q", "positive": "p", "negative": f"n{i}"} for i in range(3)]
    result, table = run("sentence-transformers", rows)
    (report,) = result.transforms
    assert (report.name, report.rows_before, report.rows_after) == ("repeats written once", 6, len(table))
    assert len(table) == 4


@pytest.mark.parametrize(
    "options", [{"cutoff": 0.99}, {"split": {"train": 0.9999, "test": 0.0001}}, {"size": 49}], ids=str
)
def test_transforms_that_leave_a_part_without_rows_are_refused(pairs, run, options):
    with pytest.raises(InputError, match="48"):
        run("pairs", pairs, **options)


def test_id_with_two_texts_or_with_white_space_is_refused_unless_ids_are_made_of_texts(run):
    rows = [{**files.TEVATRON[0], "query": "other"}, files.TEVATRON[0]]
    with pytest.raises(InputError) as error:
        run("tevatron", rows)
    assert "'other'" in error.value.got and "--text-ids" in error.value.fix
    rows[0]["query_id"] = "a\u2003b"
    with pytest.raises(InputError, match="--text-ids"):
        run("tevatron", rows)
    _, table = run("tevatron", rows, text_ids=True)
    assert len(set(table.query_ids)) == 2


def test_a_blank_task_is_no_task(run):
    rows = [{"query": "q", "document": "d", "grade": grade, "task": task} for grade, task in ((1, " "), (0, ""))]
    result, table = run("table", rows, scale=(0, 1), dedup=True)
    assert (len(table), result.parts["pairs"]["tasks"]) == (1, {"-": 1})


def test_all_invalid_rows_are_counted_and_skipped_rows_are_listed(run, tmp_path):
    good = files.E5["hotpot_qa"]
    bad = good + b'{"query": "q"}\n{broken\n{"query": "", "positive": "a", "negative": "b"}\n'
    folder = files.put(tmp_path / "echo", {"hotpot_qa.jsonl": bad, "nq.jsonl": good + b"[]\n"})
    with pytest.raises(InputError) as error:
        run("e5", folder)
    for part in ("hotpot_qa.jsonl: 4 errors", "nq.jsonl: 1 error\n", "--skip-invalid"):
        assert part in str(error.value)
    assert not (tmp_path / "out").exists()
    result, table = run("e5", folder, skip_invalid=True)
    assert (result.errors, len(table)) == (5, 12)
    listed = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert {(error["file"], error["row"], error["column"]) for error in listed} == {
        ("hotpot_qa.jsonl", 4, "positive"),
        ("hotpot_qa.jsonl", 4, "negative"),
        ("hotpot_qa.jsonl", 5, None),
        ("hotpot_qa.jsonl", 6, "query"),
        ("nq.jsonl", 4, None),
    }


def test_invalid_documents_of_a_corpus_are_counted(run, tmp_path):
    corpus = files.BEIR["corpus.jsonl"] + b'{"_id": 3.5, "text": "x"}\n'
    folder = files.put(tmp_path / "toy", {**files.BEIR, "corpus.jsonl": corpus})
    with pytest.raises(InputError, match=r"corpus\.jsonl: 1 error"):
        run("beir", folder, scale=(0, 2))
    result, table = run("beir", folder, scale=(0, 2), skip_invalid=True)
    assert (result.errors, len(table)) == (1, 3)


def test_finished_run_is_reused_and_another_is_refused(pairs, run, tmp_path):
    first, _ = run("pairs", pairs)
    before = file_hash(tmp_path / "out" / "pairs.parquet")
    again, _ = run("pairs", pairs)
    assert again.reused and again.parts == first.parts
    pairs.write_bytes(pairs.read_bytes() + files.lines([files.PAIRS[0] | {"query": "new"}]))
    with pytest.raises(OutputExistsError, match=r"cutoff.*its content"):
        run("pairs", pairs, cutoff=0.5)
    assert file_hash(tmp_path / "out" / "pairs.parquet") == before
    (tmp_path / "out" / "pairs.parquet").unlink()
    pairs.write_bytes(files.lines(files.PAIRS))
    with pytest.raises(InputError, match=r"pairs\.parquet"):
        run("pairs", pairs)


def test_second_process_is_refused_and_the_rest_of_a_killed_run_is_removed(pairs, run, tmp_path):
    files.put(tmp_path / "out" / ".part", {"lock": "", "work/work.duckdb": "half"})
    with FileLock(tmp_path / "out" / ".part" / "lock"), pytest.raises(OutputExistsError):
        run("pairs", pairs)
    run("pairs", pairs)
    assert files_in(tmp_path / "out") == {"pairs.parquet", "train.yaml", "run.json"}


def test_interrupted_run_leaves_no_output_and_can_be_repeated(pairs, run, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr("bixse.converting.convert._write_pairs", interrupt)
        run("pairs", pairs)
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    assert len(run("pairs", pairs, cutoff=0.5)[1]) == 24


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_folder_without_write_permission_is_refused(pairs, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StorageError):
        convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "closed" / "out")


def test_dry_run_reports_the_same_and_writes_nothing(pairs, tmp_path):
    settings = ConvertSettings(source="pairs", path=pairs, noise=0.5, size=20, split={"a": 0.5, "b": 0.5})
    dry = convert(settings, None)
    assert not (tmp_path / "out").exists()
    result = convert(settings, tmp_path / "out")
    assert (dry.transforms, dry.parts) == (result.transforms, result.parts)


UNUSABLE = {
    "source": ["lightblu"],
    "scale": [(0, float("inf")), (3, 0)],
    "cutoff": [1.5],
    "noise": [-0.1],
    "size": [0],
    "split": [{"a": 0.5}, {"a/b": 1.0}, ["a=0.5", "a=0.5"], ["train"]],
    "columns": [{"qery": "x"}, {"query": "grade"}],
    "task": [" "],
    "binarise": [float("nan")],
    "seed": [-1],
    "--out": ["folder"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in UNUSABLE for value in UNUSABLE[name]])
def test_unusable_settings_are_refused_before_anything_is_read(name, value):
    with pytest.raises(InputError, match=name):
        settings = {"source": "pairs", "path": "nowhere", "noise": 0.1, name.strip("-"): value}
        ConvertSettings.load(None, settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "source"),
        (("pairs",), "path"),
        (("pairs", "pairs.jsonl", "--scale", "0", "3"), "--scale"),
        (("lightblue", "pairs.jsonl", "--dry-run"), "looks like the source"),
        (("pairs", "empty.parquet"), "unreadable Parquet"),
        (("pairs", "empty.csv"), "empty.csv"),
        (("umbrela", "empty.jsonl"), "got no rows"),
    ],
)
def test_wrong_usage_of_the_verb_is_refused(capsys, pairs, monkeypatch, words, message):
    monkeypatch.chdir(pairs.parent)
    files.put(pairs.parent, {"empty.parquet": "", "empty.csv": "", "empty.jsonl": ""})
    assert message in refused(capsys, "convert", *words)


def test_verb_with_invalid_rows_ends_with_3_unless_they_are_skipped(capsys, tmp_path):
    out = tmp_path / "out"
    path = files.put(tmp_path, {"nq.jsonl": files.E5["hotpot_qa"] + b"{broken\n"}) / "nq.jsonl"
    assert main(["convert", "e5", str(path), "--dry-run", "--out", str(out)]) == 3
    assert "row 4: got '{broken" in capsys.readouterr().out
    assert not out.exists()
    code, envelope = call(capsys, "convert", "e5", path, "--out", out, "--skip-invalid")
    assert (code, envelope["metrics"]["errors"]) == (0, 1)
    assert set(envelope["artifacts"]) == {"pairs.parquet", "train.yaml", "errors.jsonl", "record"}


@pytest.mark.parametrize("split", ["[train=0.5, test=0.5]", "{train: 0.5, test: 0.5}"])
def test_settings_of_a_file_and_a_table_for_the_terminal(capsys, pairs, tmp_path, split):
    files.put(pairs.parent, {"run.yaml": f"source: pairs\npath: {pairs.name}\nsize: 30\nsplit: {split}\n"})
    words = ["convert", "--config", str(pairs.parent / "run.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    train_file = tmp_path / "out" / "train.yaml"
    for part in ("48 judgements read", "48 rows to 30", "train: ", f"next: bixse train --config {train_file}"):
        assert part in shown
    assert (tmp_path / "out" / "test.parquet").is_file()
    assert main(words) == 0
    assert "finished before" in capsys.readouterr().err


def test_converted_pairs_train(capsys, pairs, tmp_path, tiny_model_path):
    assert call(capsys, "convert", "pairs", pairs, "--out", tmp_path / "out")[0] == 0
    config = tmp_path / "out" / "train.yaml"
    config.write_text(config.read_text() + "optimizer: {num_train_epochs: 1, global_batch_size: 4}\nmax_length: 16\n")
    words = ("--config", config, "--model", tiny_model_path, "--out", tmp_path / "run")
    code, envelope = call(capsys, "train", *words)
    assert code == 0, envelope


MEASURED = """
import re, sys
from bixse import ConvertSettings, convert
split = {"train": 0.9, "test": 0.1}
convert(ConvertSettings(source="lightblue", path=sys.argv[1], noise=0.1, cutoff=0.2, split=split), sys.argv[2])
print(int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
"""The peak of this process alone; ru_maxrss would also count the memory of the process that forked it."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the peak of memory from")
def test_memory_does_not_grow_with_the_texts(tmp_path):
    def peak(rows, name):
        path = tmp_path / name / "rows.jsonl"
        path.parent.mkdir()
        with path.open("w", encoding="utf-8") as out:
            for i in range(rows):
                row = files.LIGHTBLUE[i % 2] | {"row_id": i // 2, "question": f"q {i // 2}", "context": f"{i} " * 700}
                out.write(json.dumps(row) + "\n")
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / name / "out")]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    small, large = peak(6000, "small"), peak(80_000, "large")
    assert large < 500
    assert large - small < 150
