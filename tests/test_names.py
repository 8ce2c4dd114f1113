"""Every name and path of ours that the documentation mentions exists, and no two mean different things."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bixse"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(SOURCE.rglob("*.py"))
DOTTED = re.compile(r"(?<![\w./-])bixse(?:\.[A-Za-z_]\w*)+")
FILES = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|yaml|md|csv|j2))\b")
NOT_NAMES = re.compile(r"bixse\.(?:yaml|toml|dev|git|org)\b")
SAME_NAME = {"__init__", "__main__"}


def resolves(name):
    """Whether a dotted name is a module, or a name in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if part in getattr(found, "model_fields", {}) or part in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def docstrings(path):
    """Docstrings of a module, of its classes, functions and settings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_that_is_mentioned_exists(path):
    text = path.read_text(encoding="utf-8") if path.suffix == ".md" else "\n".join(docstrings(path))
    names = {name.rstrip(".") for name in DOTTED.findall(text) if not NOT_NAMES.match(name)}
    missing = sorted(name for name in names if not resolves(name))
    places = (ROOT, SOURCE, path.parent, ROOT / "src")
    missing += sorted(
        {file for file in FILES.findall(text) if path.suffix == ".md" and file.split("/")[0] in ROOMS}
        - {file for file in FILES.findall(text) for place in places if (place / file).exists()}
    )
    assert not missing, f"{path.relative_to(ROOT)}: {', '.join(missing)}"


ROOMS = {path.name for path in (*SOURCE.iterdir(), *ROOT.iterdir()) if path.is_dir()}


def test_a_name_that_does_not_exist_is_found():
    assert resolves("bixse.losses.bixse.BiXSELoss") and resolves("bixse.TrainConfig.optimizer")
    assert not resolves("bixse.encoders.RelevanceHead") and not resolves("bixse.nothing")


def test_no_two_modules_share_a_name():
    places = defaultdict(list)
    for path in MODULES:
        if path.stem not in SAME_NAME and "cli" not in path.parts:  # a verb is called as what it calls
            places[path.stem].append(str(path.relative_to(SOURCE)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_public_types_share_a_name():
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
            name = node.name if isinstance(node, ast.ClassDef) else node.target.id if alias else "_"
            if not name.startswith("_"):
                places[name].append(str(path.relative_to(SOURCE)))
    assert not {name: found for name, found in places.items() if len(found) > 1}
