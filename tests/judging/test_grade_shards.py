import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.audit.labels import read_labels
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InvalidFileError
from bixse.judging.grade import grade_into
from bixse.judging.ledgers.segments import answers_by_status
from helpers.chat_server import planted
from helpers.command import call, ended, kill_amid_answers, refused, start
from helpers.scripted_judge import ScriptedJudge, config_of

SHARES = [[0.9, 0.05, 0.03, 0.01], [0.1, 0.2, 0.3, 0.3], [0.01, 0.02, 0.05, 0.9]]


def rows(count, errors=lambda number: [], end=lambda number: ""):
    """Pairs whose answers are planted, four documents a query."""
    return pa.Table.from_pylist([
        {"query_id": f"q{n // 4}", "query": f"query {n // 4}", "document_id": f"d{n}",
         "document": planted(f"p{n}", SHARES[n % 3], errors(n), end(n))}
        for n in range(count)
    ])  # fmt: skip


def files(folder):
    """Path -> content of the parts of both tables."""
    paths = [*folder.glob("pairs.parquet/*"), *folder.glob("judgements.parquet/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def pairs_files(folder):
    return {name: content for name, content in files(folder).items() if name.startswith("pairs")}


def answered(stats, count):
    """How often each pair was answered, beyond its planted errors."""
    return [stats["tries"].get(f"p{number}", 0) for number in range(count)]


@pytest.fixture
def pairs(tmp_path):
    """120 pairs, of which every tenth breaks once, in row groups that are no shards."""
    path = tmp_path / "pairs.parquet"
    pq.write_table(rows(120, lambda number: ["500"] if number % 10 == 0 else []), path, row_group_size=50)
    return path


@pytest.fixture
def words(server, pairs):
    address = server.scenario()
    return server, address, ("grade", "--pairs", pairs, "--judge", address, "--shards", "6")


@pytest.mark.parametrize("name", ["none.parquet", "text.parquet", "no-rows.parquet", "empty", "pairs.csv"])
def test_unusable_pairs_are_refused(capsys, server, tmp_path, name):
    (tmp_path / "text.parquet").write_text("this is no Parquet at all")
    pq.write_table(rows(1).slice(1), tmp_path / "no-rows.parquet")
    (tmp_path / "pairs.csv").write_text("query,document\na,b\n")
    (tmp_path / "empty").mkdir()
    flags = ("grade", "--judge", server.scenario(), "--shards", "2", "--out", tmp_path / "out")
    refused(capsys, *flags, "--pairs", tmp_path / name)
    assert not (tmp_path / "out").exists()


def test_bad_row_is_named_by_its_number_and_finished_shards_stay(tmp_path):
    table = rows(40).set_column(3, "document", pa.array(["x"] * 30 + [" "] + ["y"] * 9))
    pq.write_table(table, tmp_path / "bad.parquet")
    config = config_of(pairs=tmp_path / "bad.parquet", engine={"shards": 4})
    with pytest.raises(InvalidFileError) as error:
        grade_into(config, ScriptedJudge(), tmp_path / "out")
    assert [fault.row for fault in error.value.errors] == [31]
    assert len(pairs_files(tmp_path / "out")) == 3


def test_parts_of_shards_equal_the_table_of_one_run(capsys, words, tmp_path):
    server, address, flags = words
    assert call(capsys, *flags[:-2], "--out", tmp_path / "single")[0] == 0
    code, found = call(capsys, *flags, "--out", tmp_path / "parts", "--ledger", tmp_path / "single" / "ledger")
    assert (code, found["metrics"]["asked"], found["metrics"]["reused"]) == (0, 0, 120)
    single = load_graded_pairs(tmp_path / "single" / "pairs.parquet")
    assert len(pairs_files(tmp_path / "parts")) == 6
    assert load_graded_pairs(tmp_path / "parts" / "pairs.parquet").table.equals(single.table)
    labels = [read_labels(tmp_path / name / "judgements.parquet") for name in ("single", "parts")]
    assert labels[0].grades == labels[1].grades
    summary = json.loads((tmp_path / "single" / "run.json").read_text())["results"]["summary"]
    for name, value in summary.items():
        if name not in ("asked", "reused", "usd_of_this_run", "unpriced"):  # each process asks known questions
            assert found["metrics"][name] == pytest.approx(value), name
    assert sum(answered(server.stats(address), 120)) == 120 + 12


def test_folder_of_pairs_is_graded_as_one_file(capsys, words, tmp_path):
    _, address, flags = words
    table = pq.read_table(flags[2])
    source = tmp_path / "source"
    source.mkdir()
    for number, first in enumerate(range(0, 120, 37)):
        pq.write_table(table.slice(first, 37), source / f"{number}.parquet")
    ledger = ("--ledger", tmp_path / "ledger")
    assert call(capsys, *flags, *ledger, "--out", tmp_path / "one")[0] == 0
    same = ("grade", "--pairs", source, "--judge", address, *ledger, "--out")
    code, found = call(capsys, *same, tmp_path / "two", "--shards", "6")
    assert (code, found["metrics"]["asked"]) == (0, 0)
    assert files(tmp_path / "two") == files(tmp_path / "one")
    code, found = call(capsys, *same, tmp_path / "single")
    assert (code, found["metrics"]["asked"], found["metrics"]["pairs"]) == (0, 0, 120)


@pytest.mark.slow
def test_killed_rank_pays_twice_for_requests_in_flight_alone(server, tmp_path):
    count, flight = 240, 4
    pq.write_table(rows(count, lambda number: ["500", "reset"] if number % 24 == 0 else []), tmp_path / "p.parquet")
    address, other = server.scenario(delay=0.04), server.scenario()
    flags = ("grade", "--pairs", tmp_path / "p.parquet", "--shards", "6", "--concurrency", flight, "--judge")
    ranked, out = (*flags, address, "--engine", "ranks"), tmp_path / "out"
    ranks = [start(*ranked, "--out", out, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    kill_amid_answers(ranks[1], out / "ledger")
    code, first = ended(ranks[0])
    assert (code, first["waiting"] > 0) == (0, True), first
    code, last = ended(start(*ranked, "--out", out, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_TASK_COUNT="2"))
    assert (code, last["pairs"], last["statuses"], last.get("waiting")) == (0, count, {"graded": count}, None)
    assert last["reused"] >= 10
    times = [tries - 2 * (n % 24 == 0) for n, tries in enumerate(answered(server.stats(address), count))]
    assert min(times) == 1
    assert count <= sum(times) <= count + flight
    assert sum(answers_by_status(out / "ledger").values()) == count
    assert ended(start(*flags, other, "--out", tmp_path / "local"))[0] == 0
    assert pairs_files(out) == pairs_files(tmp_path / "local")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"


def test_only_shards_with_pending_questions_are_done_again(capsys, server, tmp_path):
    ends = {7: "403", 25: "message-refusal"}
    pq.write_table(rows(40, end=lambda number: ends.get(number, "")), tmp_path / "p.parquet")
    address = server.scenario()
    flags = ("grade", "--pairs", tmp_path / "p.parquet", "--judge", address, "--shards", "4", "--out", tmp_path / "out")
    code, found = call(capsys, *flags)
    assert (code, found["metrics"]["statuses"]) == (3, {"graded": 38, "refused": 1, "failed": 1})
    code, found = call(capsys, *flags)
    assert (code, found["metrics"]["asked"], found["metrics"]["reused"]) == (3, 1, 9), "the failed one alone"
    code, found = call(capsys, *flags, "--retry-failed")
    assert (code, found["metrics"]["asked"], found["metrics"]["pairs"]) == (3, 2, 40)
    (tmp_path / "out" / "pairs.parquet" / "00003.parquet").unlink()
    code, found = call(capsys, *flags)
    assert (found["metrics"]["asked"], len(pairs_files(tmp_path / "out"))) == (1, 4), "a lost part is written again"


@pytest.mark.slow
def test_limit_is_shared_by_the_shards(capsys, words, tmp_path):
    flags = (*words[2], "--out", tmp_path / "out")
    code, found = call(capsys, *flags, "--max-pairs", "33")
    assert (code, found["metrics"]["asked"], found["metrics"]["not_asked"]) == (0, 33, 87)
    assert found["metrics"]["stopped"]
    code, found = call(capsys, *flags)
    assert (code, found["metrics"]["asked"], found["metrics"]["pairs"]) == (0, 87, 120)
    prices = ("--prices", "10", "10")
    _, found = call(capsys, *words[2], "--out", tmp_path / "paid", *prices, "--max-usd", "0.03", "--concurrency", "1")
    assert 0.02 < found["metrics"]["usd"] <= 0.03


@pytest.mark.slow
def test_dry_run_looks_at_the_first_shard_and_a_folder_of_another_number_of_shards_is_refused(capsys, words, tmp_path):
    flags = (*words[2], "--out", tmp_path / "out")
    code, dry = call(capsys, *flags, "--dry-run")
    assert (code, dry["metrics"]["pairs"], dry["metrics"]["times_as_many_rows"]) == (0, 20, 6)
    assert not (tmp_path / "out").exists()
    assert call(capsys, *flags)[0] == 0
    refused(capsys, *flags, "--shards", "7")
    refused(capsys, *words[2][:-2], "--out", tmp_path / "out")
