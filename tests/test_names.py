"""Every name and path that the documentation mentions exists, and no two modules or types share a name."""

import ast
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

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
    """Return True if a dotted name is a module, an object of a module, or a field of a class."""
    owner, _, field = name.rpartition(".")
    with suppress(ImportError, AttributeError):
        return bool(resolve_name(name))
    with suppress(ImportError, AttributeError):
        kind = resolve_name(owner)
        return field in {*getattr(kind, "model_fields", {}), *getattr(kind, "__annotations__", {})}
    return False


def docstrings(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_that_is_mentioned_exists(path):
    text = path.read_text(encoding="utf-8") if path.suffix == ".md" else "\n".join(docstrings(path))
    names = {name.rstrip(".") for name in DOTTED.findall(text) if not NOT_NAMES.match(name)}
    missing = sorted(name for name in names if not resolves(name))
    folders = (ROOT, SOURCE, path.parent, ROOT / "src")
    files = {file for file in FILES.findall(text) if path.suffix == ".md" and file.split("/")[0] in ROOMS}
    missing += sorted(file for file in files if not any((folder / file).exists() for folder in folders))
    assert not missing, f"{path.relative_to(ROOT)}: {', '.join(missing)}"


ROOMS = {path.name for path in (*SOURCE.iterdir(), *ROOT.iterdir()) if path.is_dir()} - {"runs"}  # what users make


def test_name_that_does_not_exist_is_reported():
    assert resolves("bixse.losses.bixse.BiXSELoss") and resolves("bixse.TrainConfig.optimizer")
    assert not resolves("bixse.encoders.RelevanceHead") and not resolves("bixse.nothing")


def test_no_two_modules_share_a_name():
    files = [path for path in MODULES if "cli" not in path.parts]  # a verb has the name of what it calls
    counts = Counter(path.stem for path in files if path.stem not in SAME_NAME)
    assert not {name for name, count in counts.items() if count > 1}


def public_types(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)


def test_no_two_public_types_share_a_name():
    counts = Counter(name for path in MODULES for name in public_types(path) if not name.startswith("_"))
    assert not {name for name, count in counts.items() if count > 1}
