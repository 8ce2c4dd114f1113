"""A wrong path, column or split is answered before a library that takes seconds is imported; some verbs need none."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bixse.cli.main import main
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import InputError, StorageError
from bixse.training.config import TrainConfig
from bixse.training.train import train_into
from helpers.toy import save_toy

SLOW = ("torch", "transformers", "sentence_transformers", "pandas", "datasets", "sklearn")
PROGRAM = f"""
import json, sys
from bixse.cli.main import main
code = main([*sys.argv[1:], "--json"])
sys.stderr.write("IMPORTED " + json.dumps([name for name in {SLOW} if name in sys.modules]))
"""


def answered(*words):
    """The envelope of a command in a process of its own, and the slow libraries that it imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, words)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), json.loads(done.stderr.rpartition("IMPORTED ")[2])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A collection with the split test, graded pairs, pairs without grades, and the files of a bad collection."""
    folder = tmp_path_factory.mktemp("wrong")
    save_toy(folder / "toy")
    rows = [{"query": f"copy {n}", "document": f"file {n}", "relevance": n % 2} for n in range(8)]
    save_graded_pairs(Pairs.from_rows(rows), folder / "pairs.csv")
    (folder / "bare.csv").write_text("query,document\ncopy,shutil.copy\n", encoding="utf-8")
    shutil.copytree(folder / "toy", folder / "bad")
    (folder / "bad" / "corpus.jsonl").write_text('{"_id": "d1", "words": "copy"}\n', encoding="utf-8")
    return folder


WRONG = {
    "evaluate nothing --collection nothing": "nothing",
    "evaluate no/such/model --collection TOY": "model 'no/such/model'",
    "evaluate bm25 --collection TOY --split tset": "TOY/qrels",
    "evaluate demo --collection BAD": "TOY",
    "train --pairs nothing.csv": "nothing.csv",
    "train --pairs PAIRS --dev nothing": "nothing",
    "train --pairs PAIRS --dev TOY --dev-split tset": "TOY/qrels",
    "train --pairs BARE": "column 'relevance'",
    "train --pairs PAIRS --model no/such/model": "model 'no/such/model'",
    "calibrate demo --pairs BARE": "column 'relevance'",
    "calibrate --scores nothing.csv --scored-by a": "nothing.csv",
    "mine --collection TOY --split tset": "TOY/qrels",
    "mine --collection TOY --retriever no/such/model": "model 'no/such/model'",
    "search nothing copy": "nothing",
    "search no/such/model copy --collection TOY": "model 'no/such/model'",
    "search demo copy --collection nothing": "nothing",
    "index no/such/model --collection TOY": "model 'no/such/model'",
    "merge demo no/such/model --dev nothing": "nothing",
    "grade --pairs nothing.csv --judge http://localhost:1": "nothing.csv",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_refused_before_slow_imports(files, words):
    paths = {"TOY": files / "toy", "BAD": files / "bad", "PAIRS": files / "pairs.csv", "BARE": files / "bare.csv"}
    envelope, imported = answered(*(paths.get(word, word) for word in words.split()))
    (message,) = envelope["errors"]
    where = WRONG[words].replace("TOY", str(files / ("bad" if "BAD" in words else "toy")))
    error = InputError(message)
    assert where in (error.where or message.splitlines()[1].strip()) or message.startswith(where), message
    assert (envelope["status"], bool(error.got and error.expected and error.fix), imported) == ("failed", True, [])


@pytest.mark.parametrize("call", ["load_relevance_model(NAME)", "calibrate(NAME, [PAIR])"])
def test_a_wrong_model_is_refused_in_python_before_torch_is_imported(call):
    given = "NAME, PAIR = 'no/such/model', {'query': 'a', 'document': 'b', 'relevance': 1}"
    code = f"import sys, bixse\nfrom bixse.errors import ModelError\n{given}\ntry:\n    bixse.{call}\n"
    code += "except ModelError as error:\n    print(error.where, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "model 'no/such/model' False\n"


def test_bm25_is_evaluated_without_torch(files):
    envelope, imported = answered("evaluate", "bm25", "--collection", files / "toy")
    # Arrow looks for pandas when it copies the corpus
    assert (envelope["status"], {*imported} - {"pandas"}) == ("ok", set())
    assert 0 < envelope["metrics"]["ndcg@10"] <= 1


@pytest.fixture
def scores(tmp_path):
    draw = random.Random(1)
    lines = ["query,score,relevance"]
    for number in range(960):
        relevant = draw.random() < 0.3
        lines.append(f"q{number % 80},{draw.gauss(0.6 if relevant else 0.4, 0.1)},{int(relevant)}")
    (tmp_path / "scores.csv").write_text("\n".join(lines), encoding="utf-8")
    return ["--scores", tmp_path / "scores.csv", "--out", tmp_path / "out", "--scored-by", "a", "--at-precision", "0.8"]


def test_scores_are_calibrated_without_torch(scores):
    envelope, imported = answered("calibrate", *scores)
    assert (envelope["status"], envelope["metrics"]["saved"]) == ("ok", True)
    assert not {"torch", "transformers", "sentence_transformers"}.intersection(imported)


def test_the_cut_of_scores_is_a_score_and_comes_first(scores, capsys):
    for export in ([], ["--export", "0.5"]):
        assert main(["calibrate", *map(str, scores), *export, "--overwrite", "out"]) == 0
        first, *others = capsys.readouterr().out.splitlines()
        cut = float(re.fullmatch(r"precision 0\.8: from score (\S+) on \(precision .*\)", first)[1])
        assert 0.4 < cut < 0.6
        assert not export or f"{cut:.4f}" in "".join(line for line in others[:6] if line.endswith(" 0.8"))


def test_all_faults_of_a_file_are_told_if_its_first_rows_have_one(files, tmp_path):
    rows = ["query,document,relevance", "a,b,2", *(f"q{n},d{n},0.5" for n in range(3000)), "c,d,3"]
    (tmp_path / "late.csv").write_text("\n".join(rows), encoding="utf-8")
    envelope, imported = answered("train", "--pairs", tmp_path / "late.csv")
    assert "(and 1 more row alike: 3002)" in envelope["errors"][0] and imported == []


def test_a_full_disk_is_refused_before_the_first_step(files, tiny_model_path, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    config = TrainConfig(pairs=files / "pairs.csv", model=str(tiny_model_path), merge=None)
    with pytest.raises(StorageError) as error:
        train_into(config, tmp_path / "out", progress=False)
    assert str(error.value).startswith(f"{tmp_path / 'out'}: got 10.0 kB of free space")
    assert list(Path(tmp_path).iterdir()) == []
