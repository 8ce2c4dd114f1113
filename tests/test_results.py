"""Figures of the documentation are those of the tables in docs/results."""

import csv
import importlib.util
import math
import re
from pathlib import Path

import pytest

from bixse.files.values import number_of

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "docs" / "results"
QUOTING = (
    "README.md",
    *(f"docs/{task}.md" for task in ("start", "train", "evaluate", "scale")),
    *(f"docs/studies/{page}.md" for page in ("studies", "results", "study-results")),
)
"""Pages whose figures must be in a table."""
FIGURE = re.compile(r"(?<![\w.])[+−-]?\d*\.\d{3,}(?![\w.]|e-)")
"""A decimal number of three places and more: a measured figure, not a setting."""


def results_module():
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_figures():
    texts = [path.read_text(encoding="utf-8") for path in TABLES.rglob("*.csv")]
    values = [number_of(cell) for text in texts for row in csv.reader(text.splitlines()) for cell in row]
    return [value for value in values if math.isfinite(value)]


def unfounded(text, figures):
    """Return the figures of a text that no table holds, rounded to their decimals; a sign in the text counts."""
    known = {}
    missing = []
    for match in FIGURE.finditer(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)):
        word = match.group().replace("−", "-")
        places, signed = len(word.partition(".")[2]), word[0] in "+-"
        if (places, signed) not in known:
            shift = 10.0 ** -(places + 6)  # a half may have been rounded either way
            values = [value if signed else abs(value) for value in figures]
            known[places, signed] = {f"{value + sign * shift:.{places}f}" for value in values for sign in (-1, 1)}
        if f"{float(word):.{places}f}" not in known[places, signed]:
            missing.append(match.group())
    return missing


def test_page_of_studies_is_written_from_its_tables():
    module = results_module()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `python benchmarks/results.py`"


@pytest.mark.parametrize("page", QUOTING)
def test_every_quoted_figure_is_in_a_table(page):
    missing = unfounded((ROOT / page).read_text(encoding="utf-8"), table_figures())
    assert not missing, f"{page}: {', '.join(missing)} in no table under docs/results"


def test_figure_of_no_table_is_reported():
    assert unfounded("BiXSE reaches 0.123 and +.4567, see [here](0.999.md) and `0.888`", [0.1231]) == ["+.4567"]
    assert unfounded("a difference of −0.012", [0.012]) == ["−0.012"]


def test_every_stored_study_has_all_its_files():
    module = results_module()
    for folder in (path for path in module.STORED.glob("*/*") if path.is_dir()):
        names = {path.name for path in folder.iterdir()} - {module.BESIDE}
        assert names == {*module.KEPT, "command.txt"}, folder
