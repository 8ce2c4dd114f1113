"""A conversion as a whole: what is written, that nothing is lost, and that a killed run goes on to the same bytes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import source_files as files
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse import ConvertSettings, convert, load_graded_pairs
from bixse.errors import InputError, OutputExistsError, StorageError
from bixse.files.files import file_hash
from bixse.preparing.transforms import (
    Binarise,
    KeepFrom,
    LabelNoise,
    PairColumns,
    Sample,
    SplitByQuery,
    WithoutDuplicates,
    transformed,
)


@pytest.fixture
def lightblue(tmp_path):
    parts = [files.LIGHTBLUE[:6], files.LIGHTBLUE[6:]]
    return files.put(tmp_path / "lb", {f"data/train-{i}.parquet": files.parquet(rows) for i, rows in enumerate(parts)})


@pytest.fixture
def pairs(tmp_path):
    return files.put(tmp_path / "own", {"pairs.jsonl": files.lines(files.PAIRS)}) / "pairs.jsonl"


def content(table):
    return list(table.rows())


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class TestPairs:
    def test_rows_are_those_of_the_source_and_train_reads_them(self, lightblue, tmp_path):
        result = convert(ConvertSettings(source="lightblue", path=lightblue), tmp_path / "out")
        table = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
        assert len(table) == result.parts["pairs"]["rows"] == 12
        assert table.queries == [row["question"] for row in files.LIGHTBLUE]
        assert table.extra["task"] == [row["dataset_name"] for row in files.LIGHTBLUE]
        assert table.relevance[2] == (sum(table.extra["grade"][2:3]) - 1) / 4
        assert len(table.extra["grade_probs"][0]) == 5
        assert len(table.groups()) == result.parts["pairs"]["queries"] == 6
        assert sum(result.parts["pairs"]["histogram"]) == 12
        assert files_in(tmp_path / "out") == {"pairs.parquet", "train.yaml", "run.json"}

    def test_shares_and_instructions_go_to_the_settings_of_training(self, tmp_path):
        folder = files.put(tmp_path / "echo", {f"{name}.jsonl": rows for name, rows in files.E5.items()})
        convert(ConvertSettings(source="e5", path=folder), tmp_path / "out")
        assert yaml.safe_load((tmp_path / "out" / "train.yaml").read_text()) == {
            "pairs": "pairs.parquet",
            "task_shares": {"msmarco_passage": 0.5, "quora_duplicates": 0.1},
            "instructions": "paper",
        }

    def test_the_record_says_where_it_is_from_and_what_was_done(self, lightblue, tmp_path):
        settings = ConvertSettings(source="lightblue", path=lightblue, noise=0.5, cutoff=0.1, size=4)
        convert(settings, tmp_path / "out")
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        assert record["status"] == "finished"
        assert record["inputs"]["data/train-0.parquet"] == file_hash(lightblue / "data/train-0.parquet")
        assert record["results"]["source"]["licence"] == "Apache-2.0"
        assert "lightblue" in record["results"]["source"]["citation"]
        assert record["results"]["statuses"] == {"graded": 12}
        assert [done["name"] for done in record["results"]["transforms"]] == ["noise", "cutoff", "sample"]
        assert record["results"]["transforms"][-1]["rows_after"] == 4

    def test_a_task_in_the_place_of_the_sources_own(self, lightblue, tmp_path):
        convert(ConvertSettings(source="lightblue", path=lightblue, task="mine"), tmp_path / "out")
        assert set(load_graded_pairs(tmp_path / "out" / "pairs.parquet").extra["task"]) == {"mine"}

    def test_judgements_without_a_grade_are_counted_and_left_out(self, tmp_path):
        path = files.put(tmp_path, {"judged.jsonl": files.lines(files.UMBRELA)}) / "judged.jsonl"
        result = convert(ConvertSettings(source="umbrela", path=path), tmp_path / "out")
        assert result.statuses == {"graded": 5, "no-option": 1}
        assert result.warnings == ["judged.jsonl: 1 of 6 judgements carry no grade (1 no-option)"]
        assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet")) == 5

    def test_nothing_with_a_grade_is_an_error(self, tmp_path):
        path = files.put(tmp_path, {"judged.jsonl": files.lines([files.UMBRELA[3]])}) / "judged.jsonl"
        with pytest.raises(InputError, match="got 1 no-option and no pair with a grade"):
            convert(ConvertSettings(source="umbrela", path=path), tmp_path / "out")


def test_many_negatives_in_a_row_do_not_fill_the_memory_of_the_database(tmp_path):
    rows = ({"anchor": f"q {i}", "positive": "p", **{f"negative_{n}": f"{i} {n} " * 120 for n in range(30)}}
            for i in range(500))  # fmt: skip
    path = files.put(tmp_path, {"rows.jsonl": files.lines(rows)}) / "rows.jsonl"
    result = convert(ConvertSettings(source="sentence-transformers", path=path), tmp_path / "out")
    assert result.parts["pairs"]["rows"] == 500 * 31


class TestTransforms:
    @pytest.mark.parametrize("rows_at_once", [1, 5, 4096])
    def test_files_and_tables_in_memory_are_transformed_alike(self, pairs, tmp_path, monkeypatch, rows_at_once):
        monkeypatch.setattr("bixse.preparing.transforms.ROWS_AT_ONCE", rows_at_once)
        monkeypatch.setattr("bixse.preparing.source.ROWS_AT_ONCE", rows_at_once)
        settings = ConvertSettings(
            source="pairs",
            path=pairs,
            dedup=True,
            noise=0.6,
            cutoff=0.2,
            size=30,
            binarise=0.5,
            seed=5,
            split={"train": 0.6, "test": 0.4},
        )
        result = convert(settings, tmp_path / "out")
        record = []
        table = load_graded_pairs(pairs)
        for transform in (WithoutDuplicates(), LabelNoise(0.6, 5), KeepFrom(0.2), Sample(30, 5), Binarise(0.5)):
            table = transformed(table, transform, record)
        split = SplitByQuery({"train": 0.6, "test": 0.4}, 5)
        parts = split.parts(PairColumns.of(table, split.needs))
        parts = {name: part.selected(table) for name, part in parts.items()}
        for name, part in parts.items():
            assert content(load_graded_pairs(tmp_path / "out" / f"{name}.parquet")) == content(part)
        sizes = {name: len(part) for name, part in parts.items()}
        assert [done["notes"] for done in result.transforms] == [*(done.notes for done in record), sizes]
        assert record[1].notes["swapped"] > 2
        assert yaml.safe_load((tmp_path / "out" / "train.yaml").read_text())["pairs"] == "train.parquet"

    def test_means_have_no_grade(self, tmp_path):
        rows = [{"query": "q", "document": "d", "relevance": z, "grade": g} for z, g in [(0.0, 0), (1.0, 3)]]
        rows += [{"query": "q", "document": "e", "relevance": 1.0, "grade": 3}]
        path = files.put(tmp_path, {"pairs.jsonl": files.lines(rows)}) / "pairs.jsonl"
        with pytest.raises(InputError, match=r"got 1 with several relevances, first 0 and 1 for query 'q'.*--dedup"):
            convert(ConvertSettings(source="pairs", path=path), tmp_path / "out")
        convert(ConvertSettings(source="pairs", path=path, dedup=True), tmp_path / "out")
        found = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
        assert (found.relevance.tolist(), found.extra["grade"]) == ([0.5, 1.0], [None, 3.0])

    def test_a_pair_that_comes_again_is_written_once_and_said(self, tmp_path):
        rows = [{"query": "q", "positive": "p", "negative": f"n{i}"} for i in range(3)]
        path = files.put(tmp_path, {"nq.jsonl": files.lines(rows)}) / "nq.jsonl"
        result = convert(ConvertSettings(source="e5", path=path), tmp_path / "out")
        assert result.transforms == [
            {"name": "repeats written once", "settings": {}, "rows_before": 6, "rows_after": 4, "notes": {}}
        ]
        assert len(load_graded_pairs(tmp_path / "out" / "pairs.parquet")) == 4

    def test_nothing_left_and_an_empty_part_are_errors(self, pairs, tmp_path):
        with pytest.raises(InputError, match="cutoff: got no row of 48 that stays"):
            convert(ConvertSettings(source="pairs", path=pairs, cutoff=0.99), tmp_path / "out")
        with pytest.raises(InputError, match="got no query for test among 48 pairs"):
            convert(
                ConvertSettings(source="pairs", path=pairs, split={"train": 0.9999, "test": 0.0001}), tmp_path / "out"
            )
        with pytest.raises(InputError, match="expected at most the 48 rows"):
            convert(ConvertSettings(source="pairs", path=pairs, size=49), tmp_path / "out")

    def test_one_id_with_two_texts(self, tmp_path):
        rows = [{**files.TEVATRON[0], "query": "other"}, files.TEVATRON[0]]
        path = files.put(tmp_path, {"train.jsonl": files.lines(rows)}) / "train.jsonl"
        with pytest.raises(InputError, match=r"query ids: got 1 .*'0' for 'other' and 'query 0'.*--text-ids"):
            convert(ConvertSettings(source="tevatron", path=path), tmp_path / "out")
        result = convert(ConvertSettings(source="tevatron", path=path, text_ids=True), tmp_path / "out")
        assert result.parts["pairs"]["queries"] == 2
        load_graded_pairs(tmp_path / "out" / "pairs.parquet")


DAMAGED = ["", "null", "{", '{"query": "q"}', "[1]", "\udcff"]
"""What may stand in the place of a line."""


class TestInvalidRows:
    @pytest.fixture
    def damaged(self, tmp_path):
        good = files.E5["hotpot_qa"]
        bad = good + b'{"query": "q"}\n{broken\n{"query": "", "positive": "a", "negative": "b"}\n'
        return files.put(tmp_path / "echo", {"hotpot_qa.jsonl": bad, "nq.jsonl": good + b"[]\n"})

    def test_all_are_counted_and_the_command_refuses(self, damaged, tmp_path):
        with pytest.raises(InputError) as error:
            convert(ConvertSettings(source="e5", path=damaged), tmp_path / "out")
        said = str(error.value)
        assert "hotpot_qa.jsonl: 4 errors" in said and "nq.jsonl: 1 error\n" in said and "--skip-invalid" in said
        assert not (tmp_path / "out").exists()

    def test_skipped_rows_are_listed(self, damaged, tmp_path):
        result = convert(ConvertSettings(source="e5", path=damaged, skip_invalid=True), tmp_path / "out")
        assert (result.errors, result.parts["pairs"]["rows"]) == (5, 12)
        listed = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
        assert {(error["file"], error["row"], error["column"]) for error in listed} == {
            ("hotpot_qa.jsonl", 4, "positive"),
            ("hotpot_qa.jsonl", 4, "negative"),
            ("hotpot_qa.jsonl", 5, None),
            ("hotpot_qa.jsonl", 6, "query"),
            ("nq.jsonl", 4, None),
        }

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(bad=st.dictionaries(st.integers(0, 9), st.sampled_from(DAMAGED)))
    def test_what_is_written_is_what_could_be_read(self, tmp_path, bad):
        good = [json.dumps({"query": f"q{i}", "positive": f"p{i}", "negative": f"n{i}"}) for i in range(10)]
        lines = "\n".join(bad.get(i, line) for i, line in enumerate(good)).encode("utf-8", "surrogateescape")
        path = files.put(tmp_path, {"nq.jsonl": lines}) / "nq.jsonl"
        out = Path(tempfile.mkdtemp(dir=tmp_path))
        if set(bad) >= set(range(10)):
            return
        result = convert(ConvertSettings(source="e5", path=path, skip_invalid=True), out)
        assert load_graded_pairs(out / "pairs.parquet").queries[::2] == [f"q{i}" for i in range(10) if i not in bad]
        told = (out / "errors.jsonl").read_text().splitlines() if result.errors else []
        assert {json.loads(line)["row"] for line in told} == {i + 1 for i, line in bad.items() if line}

    def test_errors_of_a_corpus_are_counted_too(self, tmp_path):
        folder = files.put(tmp_path / "toy", dict(files.BEIR))
        corpus = folder / "corpus.jsonl"
        corpus.write_bytes(corpus.read_bytes() + b'{"_id": 3.5, "text": "x"}\n')
        with pytest.raises(InputError, match=r"corpus\.jsonl: 1 error"):
            convert(ConvertSettings(source="beir", path=folder, scale=(0, 2)), tmp_path / "out")
        result = convert(ConvertSettings(source="beir", path=folder, scale=(0, 2), skip_invalid=True), tmp_path / "out")
        assert (result.errors, result.parts["pairs"]["rows"]) == (1, 3)


class TestFolders:
    def test_a_finished_run_is_reused_and_another_is_refused(self, pairs, tmp_path):
        first = convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")
        before = file_hash(tmp_path / "out" / "pairs.parquet")
        again = convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")
        assert again.reused and again.parts == first.parts
        with pytest.raises(OutputExistsError, match=r"changed: cutoff \(was None, now 0\.5\)"):
            convert(ConvertSettings(source="pairs", path=pairs, cutoff=0.5), tmp_path / "out")
        pairs.write_bytes(pairs.read_bytes() + files.lines([files.PAIRS[0] | {"query": "new"}]))
        with pytest.raises(OutputExistsError, match="its content"):
            convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")
        assert file_hash(tmp_path / "out" / "pairs.parquet") == before
        (tmp_path / "out" / "pairs.parquet").unlink()
        pairs.write_bytes(files.lines(files.PAIRS))
        with pytest.raises(InputError, match=r"a finished run without pairs\.parquet"):
            convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")

    def test_a_second_process_is_refused(self, pairs, tmp_path):
        from filelock import FileLock

        files.put(tmp_path / "out" / ".part", {"lock": ""})
        with FileLock(tmp_path / "out" / ".part" / "lock"), pytest.raises(OutputExistsError, match="another process"):
            convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
    def test_a_folder_that_cannot_be_written(self, pairs, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(StorageError, match="make the folder writable"):
            convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "closed" / "out")

    def test_a_dry_run_writes_nothing_and_says_the_same(self, pairs, tmp_path):
        settings = ConvertSettings(source="pairs", path=pairs, noise=0.5, size=20, split={"a": 0.5, "b": 0.5})
        look = convert(settings, None)
        assert not (tmp_path / "out").exists()
        found = convert(settings, tmp_path / "out")
        assert look.transforms == found.transforms
        assert [part["histogram"] for part in look.parts.values()] == [
            part["histogram"] for part in found.parts.values()
        ]

    def test_progress_reaches_the_size_of_the_files(self, lightblue, tmp_path):
        steps = {}
        totals = {}

        def bar(title, total):
            totals[title] = total
            return steps.setdefault(title, []).append

        convert(ConvertSettings(source="lightblue", path=lightblue), tmp_path / "out", bar)
        assert set(totals) == {"hash", "read lightblue", "write"} and sum(steps["write"]) == 12
        for title in ("hash", "read lightblue"):
            assert (
                sum(steps[title]) == totals[title] == sum(file.stat().st_size for file in lightblue.rglob("*.parquet"))
            )


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"source": "lightblu"}, "source"),
            ({"scale": (0, float("inf"))}, "scale"),
            ({"scale": (3, 0)}, "scale"),
            ({"cutoff": 1.5}, "cutoff"),
            ({"noise": -0.1}, "noise"),
            ({"size": 0}, "size"),
            ({"seed": -1, "noise": 0.1}, "seed"),
            ({"split": {"a": 0.5}}, "split"),
            ({"split": {"a/b": 1.0}}, "split"),
            ({"split": ["a=0.5", "a=0.5"]}, "split"),
            ({"split": ["train"]}, "split"),
            ({"columns": {"qery": "x"}}, "columns"),
            ({"columns": {"query": "grade"}}, "columns"),
            ({"task": " "}, "task"),
            ({"binarise": float("nan")}, "binarise"),
            ({"out": "folder"}, "--out"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_read(self, changes, named):
        with pytest.raises(InputError, match=named):
            ConvertSettings.load(None, {"source": "pairs", "path": "nowhere", **changes})


def test_what_a_killed_run_left_is_taken_away(pairs, tmp_path):
    files.put(tmp_path / "out" / ".part", {"lock": "", "work/work.duckdb": "half"})
    convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")
    assert files_in(tmp_path / "out") == {"pairs.parquet", "train.yaml", "run.json"}


def test_ctrl_c_leaves_no_output_and_the_next_run_ends_it(pairs, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr("bixse.preparing.convert._write_pairs", interrupted)
        convert(ConvertSettings(source="pairs", path=pairs), tmp_path / "out")
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    convert(ConvertSettings(source="pairs", path=pairs, cutoff=0.5), tmp_path / "out")
    assert pq.ParquetFile(tmp_path / "out" / "pairs.parquet").metadata.num_rows == 24


MEASURED = """
import re, sys
from bixse import ConvertSettings, convert
split = {"train": 0.9, "test": 0.1}
convert(ConvertSettings(source="lightblue", path=sys.argv[1], noise=0.1, cutoff=0.2, split=split), sys.argv[2])
print(int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
"""The peak of this process alone; ru_maxrss would also count what it was forked from."""


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
        start = time.perf_counter()
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / name / "out")]
        found = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        size = path.stat().st_size >> 20
        sys.stderr.write(f"{size} MiB in {time.perf_counter() - start:.1f} s, peak {found} MiB\n")
        assert size > 0
        return found

    small, large = peak(6000, "small"), peak(80_000, "large")
    assert large < 500
    assert large - small < 150
