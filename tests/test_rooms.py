"""The core imports no satellite, a room only rooms above it, and rooms, folders and modules stay small."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bixse
from test_house import imports_of

SOURCE = Path(bixse.__file__).parent
NOUNS = ["errors", "progress", "relevance", "results", "machine", "extensions", "files", "settings"]
CORE = [
    *NOUNS,
    "data",
    "rendering",
    "encoders",
    "losses",
    "search",
    "evaluation",
    "calibration",
    "training",
    "reporting",
]
"""What a user needs to train, merge, evaluate, calibrate, search and report."""
SATELLITES = [
    "engine",
    "ray_engine",
    "index",
    "converting",
    "mining",
    "judging",
    "audit",
    "adapters",
    "suites",
    "lab",
    "ui",
    "export",
]
"""They import the core. The core never imports them; it asks `bixse.extensions` for their objects."""
ORDER = [*CORE, *SATELLITES, "cli"]
"""From the top down; each room may import itself and earlier rooms."""
ALLOWED = {room: set(ORDER[: position + 1]) for position, room in enumerate(ORDER)}
PACKAGE = "the package itself"  # from bixse import ...: the catalogue, which only the command may ask (for the version)
FILES = sorted(SOURCE.rglob("*.py"))
BUDGET = {
    "errors": (270, 0),
    "progress": (130, 1),
    "relevance": (130, 1),
    "results": (210, 0),
    "machine": (60, 1),
    "extensions": (20, 0),
    "files": (1300, 4),
    "settings": (390, 2),
    "data": (2770, 41),
    "rendering": (810, 10),
    "encoders": (3110, 30),
    "losses": (2410, 24),
    "search": (1010, 27),
    "evaluation": (1970, 77),
    "calibration": (1450, 55),
    "training": (4120, 121),
    "reporting": (470, 22),
    "engine": (420, 3),
    "ray_engine": (210, 3),
    "index": (1200, 36),
    "converting": (1890, 38),
    "mining": (850, 38),
    "judging": (5220, 61),
    "audit": (1200, 35),
    "adapters": (320, 17),
    "suites": (1060, 41),
    "lab": (3550, 140),
    "ui": (2590, 85),
    "export": (620, 35),
    "cli": (2240, 122),
}
"""Room -> most lines, and most imports of modules of other rooms; running this file prints today's."""
SPARE = 1.05
"""A budget may be 5 % above its figure (or 10 lines, 2 imports): what a room lost it does not get back."""


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path, text=None):
    """Return the rooms that a file imports: at its top, in functions, under TYPE_CHECKING, by import_module."""
    package = ["bixse", *path.relative_to(SOURCE).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(text or path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            first = node.args[0]
            names |= {first.value} if isinstance(first, ast.Constant) else set()
    ours = {name.split(".")[1] if "." in name else "" for name in names if name.split(".")[0] == "bixse"}
    return {name if name in ALLOWED else PACKAGE for name in ours}


def test_every_room_is_in_the_order():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set(ALLOWED), "add the new room to ORDER"


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_room_imports_only_rooms_above_it(path):
    if path == SOURCE / "__init__.py":
        return  # the catalogue names every public thing, lazily
    if path == SOURCE / "__main__.py":
        assert imported_rooms(path) == {"cli"}
        return
    allowed = ALLOWED[room_of(path)] | ({PACKAGE} if room_of(path) == "cli" else set())
    below = imported_rooms(path) - allowed
    assert not below, f"{room_of(path)} imports {sorted(below)}"


def test_imports_of_every_form_are_seen():
    rooms_of = {
        "import bixse.cli.main": {"cli"},
        "from bixse.training import recipe": {"training"},
        "from bixse import evaluation": {"evaluation"},
        "from bixse import train": {PACKAGE},
        "import bixse": {PACKAGE},
        "from ..losses.base import GradedLoss": {"losses"},
        "from . import trec": {"data"},
        "def f():\n    from bixse.rendering.page import write_report": {"rendering"},
        "if TYPE_CHECKING:\n    from bixse.lab.quickstart import x": {"lab"},
        "import_module('bixse.losses')": {"losses"},
        "import numpy, json": set(),
    }
    assert {text: imported_rooms(SOURCE / "data" / "probe.py", text) for text in rooms_of} == rooms_of


def test_no_import_circle():
    names = {path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in FILES}
    names = {path: name for path, name in names.items() if path.name not in ("__init__.py", "__main__.py")}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for path, name in names.items()}
    graph = {name: imports_of(tree, trees.keys() - {name}) for name, tree in trees.items()}
    TopologicalSorter(graph).prepare()  # its CycleError names the modules of a circle


def figures_of(room):
    """Return the lines of a room, and the number of modules of other rooms that its modules import."""
    paths = [path for path in FILES if room_of(path) == room]
    others = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in FILES if path not in paths}
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return sum(len(text.splitlines()) for text in texts), sum(len(imports_of(ast.parse(t), others)) for t in texts)


@pytest.mark.parametrize("room", ORDER)
def test_room_is_within_its_budget(room):
    for figure, budget, spare in zip(figures_of(room), BUDGET[room], (10, 2), strict=True):
        assert figure <= budget, "fix: make something smaller (only granted lines or mended defects raise a budget)"
        assert budget <= max(figure * SPARE, figure + spare), f"lower the budget: {room} has {figure}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=str)
def test_folder_has_at_most_12_modules_of_at_most_500_lines(folder):
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py")}
    assert len(lines.keys() - {"__init__.py"}) <= 12, f"{folder}: {len(lines)} modules; fix: make a sub-package"
    assert max(lines.values()) <= 500, lines


if __name__ == "__main__":
    for room, (lines, edges) in zip(ORDER, map(figures_of, ORDER), strict=True):
        print(f'    "{room}": ({-(-lines // 10) * 10}, {edges}),')  # noqa: T201
