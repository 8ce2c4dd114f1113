"""Links of the pages lead to files and headings, their commands exist, and their figures stand in docs/results."""

import ast
import csv
import importlib.util
import math
import re
import shlex
import symtable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from bixse.cli.main import VERBS, verb_parser
from bixse.files.values import number_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SCRIPTS = sorted(path for folder in (DOCS, ROOT / "benchmarks") for path in folder.rglob("*.py"))
TASKS = ("start", "python", "own-data", "data", "grade", "train", "evaluate", "serve", "scale")
TOP = {"README", *TASKS, "findings", "losses", "design", "paper-to-code", "pitfalls", "style"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
STARTS = r"(?:^(?:\$ )?(?:\w+=\S+ )*|(?<=-m )|(?<=&& )|(?<=[\"']))"
COMMAND = re.compile(STARTS + r"bixse (?!import )(?=[a-z-])[^\n]*", re.MULTILINE)


def title(page):
    return str(page.relative_to(ROOT))


@cache
def anchors(page):
    """Anchors of the headings of a page, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)", "", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def dead_links(page, text):
    dead = []
    for link in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


def commands(text):
    """Commands of bixse in the code of a page, as lists of words."""
    code = [block.replace("\\\n", " ") for block in FENCE.findall(text)]
    code += [f"{inline}\n" for inline in re.findall(r"`(bixse [^`\n]+)`", FENCE.sub("", text))]
    for line in "\n".join(code).splitlines():
        for match in COMMAND.finditer(re.split(r"\s#\s", line)[0]):
            command = re.split(r"\s(?:&&|\|)\s|;", match.group())[0].partition("bixse ")[2]
            try:
                words = shlex.split(command)
            except ValueError:  # inside the quotes of another command, such as `sbatch --wrap`
                words = command.rstrip("\"')").split()
            yield words


@cache
def flags(name):
    module, _, attribute = VERBS[name][0].partition(":")
    verb = getattr(import_module(f"bixse.cli.verbs.{module}"), attribute or "VERB")
    return frozenset(verb_parser(name, verb)._option_string_actions)


def unknown_words(words):
    """The verb, or the flags, of a command that do not exist."""
    if words[0] in ("--help", "--version", "VERB"):
        return []
    name = " ".join(words[:2]) if " ".join(words[:2]) in VERBS else words[0]
    if name not in VERBS:
        return [name]
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags(name)]


def test_a_task_has_a_short_page_at_the_top_and_the_index_names_every_page():
    assert {path.stem for path in DOCS.glob("*.md")} == TOP
    lengths = {task: len((DOCS / f"{task}.md").read_text(encoding="utf-8").splitlines()) for task in TASKS}
    assert not {task: length for task, length in lengths.items() if not 40 <= length <= 140}
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index) if "://" not in link}
    assert not [title(page) for page in DOCS.rglob("*.md") if page not in linked and page != DOCS / "README.md"]


def missing_tests(text):
    """Yield the tests that a page names and that do not exist; `::name` alone is in the file named before it."""
    path = None
    for file, names in re.findall(r"`(tests/[\w/]+\.py)?((?:::\w+)*)`", text):
        path = ROOT / file if file else path
        if path is None or not (file or names):
            continue
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        defined = set(re.findall(r"^ *(?:class|def) (\w+)", source, re.MULTILINE))
        if not source or not {*names.split("::")[1:]} <= defined:
            yield f"{path.relative_to(ROOT)}{names}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_commands_and_tests_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    assert not dead_links(page, text)
    assert not [(words, bad) for words in commands(text) if (bad := unknown_words(words))]
    assert not list(missing_tests(text))


def lost_imports(source):
    """Yield the names that a script imports from modules of bixse which lack them."""
    for node in ast.walk(ast.parse(source)):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if not module.startswith("bixse."):
            continue
        path = ROOT.joinpath("src", *module.split("."))
        files = (path / "__init__.pyi", path / "__init__.py", path.with_suffix(".py"))
        text = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")
        symbols = symtable.symtable(text, module, "exec").get_symbols()
        there = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
        for name in {alias.name for alias in node.names} - there:
            if not (path / f"{name}.py").is_file() and not (path / name).is_dir():
                yield f"{module}.{name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_imports_what_is_there(script):
    assert list(lost_imports(script.read_text(encoding="utf-8"))) == []


def test_lost_imports_are_found():
    source = (
        "from bixse.errors import InputError, Lost\nfrom bixse.gone import x\nfrom bixse.data import corpus, lost\n"
    )
    assert list(lost_imports(source)) == ["bixse.errors.Lost", "bixse.gone.x", "bixse.data.lost"]


def test_a_dead_link_an_unknown_flag_and_a_missing_test_are_found():
    links = "[a](nowhere.md) [b](style.md#names) [c](#nothing)"
    assert dead_links(DOCS / "style.md", links) == ["nowhere.md", "#nothing"]
    text = '```\nbixse train --pairs a --epochs 3\nsbatch --wrap "bixse index M --shard 2"\n```\n`bixse rate --all`'
    assert [unknown_words(words) for words in commands(text)] == [["--epochs"], ["--shard"], ["rate"]]
    text = "`tests/test_pages.py::missing_tests`, `::no_such_test`, `tests/no_such_file.py`"
    assert list(missing_tests(text)) == ["tests/test_pages.py::no_such_test", "tests/no_such_file.py"]


TABLES = ROOT / "docs" / "results"
QUOTING = (
    "README.md",
    *(f"docs/{task}.md" for task in ("start", "train", "evaluate", "scale")),
    "docs/reference/export.md",
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


@pytest.mark.parametrize("page", QUOTING)
def test_every_quoted_figure_is_in_a_table(page):
    missing = unfounded((ROOT / page).read_text(encoding="utf-8"), table_figures())
    assert not missing, f"{page}: {', '.join(missing)} in no table under docs/results"


def test_page_of_studies_is_written_from_its_tables_and_every_stored_study_has_all_its_files():
    module = results_module()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `python benchmarks/results.py`"
    for folder in (path for path in module.STORED.glob("*/*") if path.is_dir()):
        names = {path.name for path in folder.iterdir()} - {module.EXTRA}
        assert names == {*module.KEPT, "command.txt"}, folder


def test_figure_of_no_table_is_reported():
    assert unfounded("BiXSE reaches 0.123 and +.4567, see [here](0.999.md) and `0.888`", [0.1231]) == ["+.4567"]
    assert unfounded("a difference of −0.012", [0.012]) == ["−0.012"]
