"""The folder of a run stands for the file that a verb reads, and `--overwrite` deletes such a folder alone."""

import shutil
from pathlib import Path

import pytest

from bixse.cli.checks import with_files_of_runs
from bixse.cli.overwrite import overwritten
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.encoders.loading.build import build_encoder
from bixse.errors import IncompleteError, InputError, InterruptedRunError, OutputExistsError, StorageError
from bixse.files.files import alone_in
from bixse.files.run_folder import in_run
from bixse.index.search import open_index
from bixse.training.config import TrainConfig
from helpers.command import call, refused

COMPAT = Path(__file__).parents[1] / "compat" / "fixture"
PAIRS = "query,document,relevance\ncopy,shutil.copy,1\nwait,time.sleep,0\n"


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "pairs.csv").write_text(PAIRS, encoding="utf-8")
    return tmp_path / "pairs.csv"


@pytest.fixture
def converted(capsys, pairs, tmp_path):
    """The command that writes the folder of a run, and that folder."""
    words = ("convert", "pairs", pairs, "--out", tmp_path / "runs" / "mine")
    assert call(capsys, *words)[0] == 0
    return words, tmp_path / "runs" / "mine"


def run_of(folder, **files):
    open_run(folder, "train", {}, {}).save("finished")
    for name, target in files.items():
        (folder / name).symlink_to(target)
    return folder


def test_a_run_folder_stands_for_its_model(capsys, collection, tiny_model_path, tmp_path):
    run = run_of(tmp_path / "trained", model=tiny_model_path)
    words = ("--collection", collection)
    code, envelope = call(capsys, "evaluate", run, *words)
    assert (code, envelope["metrics"]) == (0, call(capsys, "evaluate", run / "model", *words)[1]["metrics"])
    assert call(capsys, "index", run, *words, "--out", tmp_path / "index")[0] == 0
    assert open_index(tmp_path / "index").manifest.encoder.name == str(tiny_model_path)
    code, envelope = call(capsys, "search", run, "copy", *words)
    assert (code, len(envelope["metrics"]["results"])) == (0, 4)
    assert build_encoder(run).get_embedding_dimension() == build_encoder(tiny_model_path).get_embedding_dimension()


def test_a_run_folder_stands_for_its_pairs(capsys, collection, tmp_path):
    mined, graded = tmp_path / "mined", tmp_path / "graded"
    assert call(capsys, "mine", "--collection", collection, "--out", mined)[0] == 3, "a query has no candidate"
    error = InputError(refused(capsys, "train", "--pairs", mined).splitlines()[1].strip())
    assert error.where == "column 'relevance'"
    assert error.fix.startswith(f"grade the pairs: bixse grade --pairs {mined / 'pairs.parquet'}")
    judge = ("--judge", f"replay:qrels:{collection}/qrels/test.tsv", "--scale", "0", "3")
    call(capsys, "grade", "--pairs", mined, *judge, "--out", graded)
    assert len(load_graded_pairs(graded)) == len(load_graded_pairs(graded / "pairs.parquet")) > 0
    assert with_files_of_runs(TrainConfig(pairs=graded)).pairs == graded / "pairs.parquet"
    several = with_files_of_runs(TrainConfig(pairs=[graded, collection])).pairs
    assert several == (graded / "pairs.parquet", collection)
    code, envelope = call(capsys, "grade", "audit", "--judge", graded, "--human", collection / "qrels" / "test.tsv",
                          "--scale", "0", "3", "--out", tmp_path / "audit")  # fmt: skip
    assert code == 0, envelope["errors"]


def test_only_the_folder_of_a_run_stands_for_its_files(tmp_path):
    run_of(tmp_path)
    assert in_run(tmp_path, "model") == tmp_path
    (tmp_path / "model").mkdir()
    assert in_run(tmp_path, "model") == tmp_path / "model"
    assert in_run(str(tmp_path), "model") == f"{tmp_path}/model"
    assert in_run(tmp_path, "graded") == tmp_path


def test_a_command_that_did_what_was_asked_ends_with_0(capsys, pairs, tmp_path):
    pairs.write_text(f"{PAIRS}sort,list.sort,9\n", encoding="utf-8")
    refused(capsys, "convert", "pairs", pairs, "--out", tmp_path / "all")
    code, envelope = call(capsys, "convert", "pairs", pairs, "--skip-invalid", "--out", tmp_path / "some")
    assert (code, envelope["metrics"]["errors"]) == (0, 1)
    rows = ["query_id,query,document_id,document", *(f"{n},copy {n},{n},file {n}" for n in range(6))]
    pairs.write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "judged.txt").write_text("".join(f"{n} 0 {n} {n % 2}\n" for n in range(5)), encoding="utf-8")
    judge = ("--judge", f"replay:qrels:{tmp_path / 'judged.txt'}", "--scale", "0", "1")
    words = ("grade", "--pairs", pairs, *judge, "--out", tmp_path / "graded")
    for number, code, not_asked in ((2, 0, 4), (3, 0, 1), (1, 3, 0)):
        got, envelope = call(capsys, *words, "--max-pairs", number)
        assert (got, envelope["metrics"]["not_asked"]) == (code, not_asked), "the sixth pair has no grade"


def test_overwrite_deletes_the_run_that_it_names(capsys, converted, tmp_path):
    words, out = converted
    assert "--overwrite mine" in InputError(refused(capsys, *words, "--cutoff", "0.5")).fix
    (out / "more.csv").write_text("of the earlier run", encoding="utf-8")
    for name in ("runs/mine", "other", ""):
        assert InputError(refused(capsys, *words, "--cutoff", "0.5", "--overwrite", name)).where == "--overwrite"
    assert call(capsys, *words, "--cutoff", "0.5", "--overwrite", "mine", "--dry-run")[0] == 0
    assert "nothing.csv" in refused(capsys, "convert", "pairs", "nothing.csv", *words[3:], "--overwrite", "mine")
    assert (out / "more.csv").exists()
    code, envelope = call(capsys, *words, "--cutoff", "0.5", "--overwrite", "mine")
    assert (code, (out / "more.csv").exists()) == (0, False)
    assert envelope["metrics"]["parts"]["pairs"]["rows"] == 1
    new = tmp_path / "runs" / "new"
    assert call(capsys, *words[:-1], new, "--overwrite", "new")[0] == 0


def test_overwrite_deletes_no_other_folder(capsys, converted, pairs, tmp_path, monkeypatch):
    words, out = converted
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "run.json").write_text('{"of": "another program"}', encoding="utf-8")
    link = tmp_path / "link"
    link.symlink_to(out)
    for folder, name in ((other, "thesis"), (link, "mine")):
        error = InputError(refused(capsys, *words[:-1], folder, "--overwrite", name))
        assert (error.where, folder.exists()) == (str(folder), True)
    moved = pairs.rename(out / "mine.csv")
    error = InputError(refused(capsys, "convert", "pairs", moved, "--out", out, "--overwrite", "mine"))
    assert (error.got, moved.exists()) == (f"a folder that holds {moved}", True)
    moved.rename(pairs)
    for protected in (out, out / "below"):
        monkeypatch.setenv("HOME", str(protected))
        refused(capsys, *words, "--overwrite", "mine")
    monkeypatch.undo()
    (out / "labels.jsonl").write_text("{}\n", encoding="utf-8")
    assert "labels.jsonl" in InputError(refused(capsys, *words, "--overwrite", "mine")).got
    assert (out / "pairs.parquet").exists()


def test_root_and_working_folder_are_never_deleted(tmp_path, monkeypatch):
    run_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), Path("/")):
        with pytest.raises(InputError) as error, overwritten(folder, folder.resolve().name, []):
            pass
        assert error.value.where == str(folder)
    assert (tmp_path / "run.json").exists()


def test_overwrite_needs_out(capsys, collection):
    assert (
        InputError(refused(capsys, "evaluate", "bm25", "--collection", collection, "--overwrite", "x")).got
        == "no --out"
    )


@pytest.mark.parametrize("file", ["results.json", "few_labels.json", "run.json"])
def test_overwrite_deletes_the_earlier_run_whatever_the_new_one_writes(tmp_path, file):
    run_of(tmp_path / "mine")
    (tmp_path / "mine" / "old.csv").touch()
    with overwritten(tmp_path / "mine", "mine", []):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / file).write_text("{}", encoding="utf-8")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", file]


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (InputError("refused"), "old"),
        (KeyboardInterrupt(), "new"),
        (InterruptedRunError("stopped"), "new"),
        (IncompleteError("a shard failed"), "new"),
        (StorageError("disk full"), "both"),
        (RuntimeError("unexpected"), "both"),
    ],
)
def test_overwrite_keeps_the_earlier_run_unless_the_new_one_continues(tmp_path, error, left):
    run_of(tmp_path / "mine")
    with pytest.raises(type(error)), overwritten(tmp_path / "mine", "mine", []):
        run_of(tmp_path / "mine")
        (tmp_path / "mine" / "new.csv").touch()
        raise error
    assert (tmp_path / "mine" / "new.csv").exists() == (left != "old")
    assert len(list(tmp_path.glob("*mine*"))) == (2 if left == "both" else 1)


def test_overwrite_deletes_no_paid_answer_of_a_refused_run_and_none_for_a_stop_before_its_first_file(tmp_path):
    run_of(tmp_path / "mine")
    with pytest.raises(KeyboardInterrupt), overwritten(tmp_path / "mine", "mine", []):
        (tmp_path / "mine").mkdir()
        raise KeyboardInterrupt
    assert (tmp_path / "mine" / "run.json").exists()
    with pytest.raises(InputError), overwritten(tmp_path / "mine", "mine", []):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "spent.jsonl").touch()
        raise InputError("refused")
    assert (tmp_path / "mine" / "spent.jsonl").exists() and len(list(tmp_path.iterdir())) == 2


def test_a_run_that_is_refused_at_its_end_brings_the_earlier_one_back(capsys, collection, tmp_path):
    words = ("mine", "--collection", collection, "--out", tmp_path / "mined")
    assert call(capsys, *words)[0] == 3
    before = (tmp_path / "mined" / "pairs.parquet").read_bytes()
    (tmp_path / "none.jsonl").write_text('{"_id": "q", "text": "zzz"}\n', encoding="utf-8")
    words = ("mine", "--queries", tmp_path / "none.jsonl", "--corpus", collection / "corpus.jsonl")
    message = refused(capsys, *words, "--out", tmp_path / "mined", "--overwrite", "mined")
    assert "no candidate" in InputError(message).got
    assert (tmp_path / "mined" / "pairs.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("judge.spent.jsonl", ""),
        ("labels-anna.jsonl", ""),
        ("anna.jsonl", '{"event": "1", "person": "anna", "query_id": "q"}'),
        ("answers/ledger.json", "{}"),
        ("thesis.docx", ""),
        (".git/HEAD", ""),
        ("notes/todo.txt", ""),
        ("below/run.json", '{"fingerprint": "", "command": "train"}'),
    ],
)
def test_overwrite_deletes_no_file_that_cannot_be_made_again(tmp_path, file, content):
    path = run_of(tmp_path / "mine") / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught, overwritten(tmp_path / "mine", "mine", []):
        pass
    assert file in caught.value.got and path.exists()


@pytest.mark.parametrize("lock", [".lock", ".searching/.lock", ".part/lock", "below/.labels.jsonl.lock"])
def test_overwrite_waits_for_no_writer(tmp_path, lock):
    folder = run_of(tmp_path / "mine")
    with (
        alone_in(folder, lock),
        pytest.raises(OutputExistsError),
        overwritten(folder, "mine", []),
    ):
        pass
    assert (folder / "run.json").exists()


def test_ranks_cannot_overwrite(capsys, collection, tmp_path):
    words = ("index", "demo", "--collection", collection, "--out", run_of(tmp_path / "mine"), "--engine", "ranks")
    assert InputError(refused(capsys, *words, "--overwrite", "mine")).got == "--engine ranks"
    assert (tmp_path / "mine" / "run.json").exists()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in COMPAT.glob("*/run.json")))
def test_runs_of_an_earlier_version_can_be_overwritten_unless_they_were_paid_for(tmp_path, name):
    shutil.copytree(COMPAT / name, tmp_path / name)
    if (tmp_path / name / "ledger").exists():
        with pytest.raises(InputError), overwritten(tmp_path / name, name, []):
            pass
    else:
        with overwritten(tmp_path / name, name, []):
            pass
    assert (tmp_path / name).exists() == (COMPAT / name / "ledger").exists()
