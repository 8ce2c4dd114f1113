"""`bixse collection`: files become a folder in the BEIR layout, completely or not at all."""

import json
import signal
from pathlib import Path

import pytest

from bixse.cli.main import main
from bixse.data import collection as module
from bixse.data.collection import load_collection
from helpers.command import call, refused, result_of

SHARES = ["train=.6", "dev=.2", "test=.2"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write three CSV files with thirty questions, and go to their folder."""
    monkeypatch.chdir(tmp_path)
    Path("docs.csv").write_text("ref,body\n" + "".join(f"d{n},copy the file number {n}\n" for n in range(30)))
    Path("questions.csv").write_text("qid,question\n" + "".join(f"{n},how to copy file {n}\n" for n in range(30)))
    Path("labels.csv").write_text(
        "qid,doc_id,stars\n" + "".join(f"{n},d{n},3\n{n},d{(n + 1) % 30},0\n" for n in range(30))
    )
    return words()


def words(**changes):
    """Return the options of the three files, some of them changed."""
    options = {"documents": "docs.csv", "queries": "questions.csv", "labels": "labels.csv"}
    options |= {"columns": "documents.id=ref labels.grade=stars", **changes}
    return [word for name, value in options.items() for word in (f"--{name}", *value.split())]


def names(folder="."):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_folder_has_the_layout_and_the_next_commands_work(files, capsys):
    code, envelope = call(capsys, "collection", *files, "--split", *SHARES, "--seed", 1, "--out", "mine")
    assert code == 0 and len(envelope["warnings"]) == 3 and envelope["metrics"]["documents"] == 30
    qrels = [f"qrels/{name}.tsv" for name in ("dev", "test", "train")]
    assert names("mine") == ["corpus.jsonl", *qrels, "queries.jsonl", "run.json"]
    collection = load_collection("mine")
    counts = {name: len(judged) for name, judged in collection.qrels.items()}
    assert counts == {name: part["queries"] for name, part in envelope["metrics"]["splits"].items()}
    assert sum(counts.values()) == len(collection.queries) == 30 and collection.qrels["dev"]
    text = result_of("collection", *files, "--split", *SHARES, "--seed", 1, "--out", "mine").text
    convert, train = (line.partition(": bixse ")[2].split() for line in text.splitlines() if ": bixse " in line)
    assert convert[:3] == ["convert", "beir", "mine"] and "0 3" in " ".join(convert)
    assert main(convert) == 0 and Path(train[2]).is_file() and train[3:5] == ["--dev", "mine"]


@pytest.mark.parametrize(
    ("split", "following"),
    [([], "evaluate demo bm25 --collection mine --split test"), (["a=.5", "b=.5"], "--split a"),
     (["train=.5", "test=.5"], "--scale 0 3")],
)  # fmt: skip
def test_next_command_is_that_of_the_splits(files, split, following):
    text = result_of("collection", *files, *(["--split", *split] if split else []), "--out", "mine").text
    assert following in text and "--dev" not in text


def test_without_labels_the_next_command_mines(files):
    text = result_of("collection", *files[:4], "--columns", "documents.id=ref", "--out", "mine").text
    assert "bixse mine --corpus mine/corpus.jsonl --queries mine/queries.jsonl" in text
    assert names("mine") == ["corpus.jsonl", "queries.jsonl", "run.json"]


def test_finished_folder_is_reused_and_one_of_other_files_is_refused(files, capsys):
    command = ["collection", *files, "--out", "mine"]
    first = call(capsys, *command)[1]
    written = {name: Path("mine", name).read_bytes() for name in names("mine")}
    code, again = call(capsys, *command)
    assert code == 0 and again["metrics"] == first["metrics"] and len(again["warnings"]) == len(first["warnings"]) + 1
    assert written == {name: Path("mine", name).read_bytes() for name in names("mine")}
    Path("labels.csv").write_text(Path("labels.csv").read_text() + "0,d2,1\n")
    assert "its content" in refused(capsys, *command)
    Path("other").mkdir()
    Path("other", "file").write_text("mine")
    assert "other" in refused(capsys, *command[:-1], "other")


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"columns": "labels.stars=stars"}, "columns"),
        ({"columns": "documents.id"}, "columns"),
        ({"split": "train=.6"}, "shares of a split"),
        ({"split": "a/b=1"}, "split"),
        ({"split": "a=1", "seed": "-1"}, "split"),
        ({"documents": "none.csv"}, "none.csv"),
        ({"labels": "docs.csv"}, "docs.csv"),
        ({"queries": "docs.csv", "columns": "queries.id=ref queries.text=ref documents.id=ref"}, "docs.csv"),
        ({"columns": "documents.id=ref queries.text=stars labels.grade=stars"}, "questions.csv"),
    ],
)
def test_wrong_words_leave_no_folder(files, capsys, changes, where):
    before = names()
    assert where in refused(capsys, "collection", *words(**changes), "--out", "mine")
    assert names() == before and not Path("mine").exists()


def test_small_set_that_cannot_be_split_is_refused_with_the_counts(files, capsys):
    Path("labels.csv").write_text("qid,doc_id,stars\n0,d0,1\n1,d1,0\n")
    message = refused(capsys, "collection", *files, "--split", *SHARES, "--out", "mine")
    assert "of 1 queries with a relevant document" in message and not Path("mine").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_stop_while_files_are_written_leaves_nothing(files, capsys, monkeypatch, error):
    before = names()
    saved = module.save_collection

    def stop(collection, folder):
        saved(collection, folder)
        assert names(folder)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_collection", stop)
        code = main(["collection", *files, "--out", "mine", "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert (code, envelope["status"]) == ((130, "interrupted") if error is KeyboardInterrupt else (1, "failed"))
    assert names() == before and not Path("mine").exists()
    Path("mine").mkdir()  # an empty folder may be there
    assert main(["collection", *files, "--out", "mine"]) == 0 and len(names("mine")) == 4


def test_sigterm_counts_as_ctrl_c(files, capsys, monkeypatch):
    before, handler = names(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, "save_collection", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        assert main(["collection", *files, "--out", "mine"]) == 130
    finally:
        signal.signal(signal.SIGTERM, handler)  # a command that ends ignores it, and so would servers of later tests
    assert names() == before
