"""The pairs that the README shows, and the commands below them, as they are written there."""

import re
import shlex
from pathlib import Path

from bixse.cli.main import main
from bixse.encoders.loading.build import load_relevance_model

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_pairs_of_the_readme_train(tmp_path, monkeypatch):
    blocks = re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (position,) = [number for number, block in enumerate(blocks) if block.startswith('{"query"')]
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text(blocks[position], encoding="utf-8")
    commands = blocks[position + 1].splitlines()
    assert len(commands) == 2
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "bixse"
        assert main(words) == 0
    model = load_relevance_model("runs/first/model")
    assert 0 < model.relevance("copy a folder", ["shutil.copytree: copy a directory tree"])[0] < 1
