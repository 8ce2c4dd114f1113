"""docs/own-data.md from top to bottom: its commands, and its Python."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bixse.cli.main import main
from bixse.data.collection import load_collection
from bixse.data.pydocs import load_pydocs
from helpers.html_page import Page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Go to a folder that has the pages, as a clone does."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_page_go_from_three_files_to_figures(clone, capsys):
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    assert {words[0] for words in commands} == {"bixse"} and len(commands) <= 8
    printed = []
    for words in commands:
        assert main(words[1:]) == 0, words
        printed.append(capsys.readouterr().out)
    counts, _ = blocks("console")
    assert printed[0].startswith(counts)
    assert "cannot tell" in printed[-4] and printed[-2].count("p=") == 3
    Page((clone / "runs" / "own.html").read_text(encoding="utf-8")).check_harmless()


@pytest.mark.slow  # the commands of the page are run by default
def test_the_python_of_the_page_runs(clone):
    (clone / "page.py").write_text("\n".join(blocks("python")))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, "page.py"], cwd=clone, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "verdict" in ended.stdout and "guessed" in ended.stdout
    assert {path.name for path in clone.iterdir()} == {"docs", "own.html", "page.py"}


def test_the_files_are_a_part_of_the_sample_data(clone):
    (words,) = ([*shlex.split(line)[1:]] for line in blocks("bash")[0].splitlines())
    assert main(words) == 0
    collection, sample = load_collection(words[-1]), load_pydocs()
    grades = {query: row for qrels in sample.qrels.values() for query, row in qrels.items()}
    assert all(sample.corpus[name] == document for name, document in collection.corpus.items())
    assert all(sample.queries[name] == text for name, text in collection.queries.items())
    for judged in collection.qrels.values():
        assert all(grades[query][name] == grade for query, row in judged.items() for name, grade in row.items())
