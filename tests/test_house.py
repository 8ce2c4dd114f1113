"""The size of the house: no figure is above its limit. Run this file to see all.

A limit can only be lowered, except by a feature that was granted lines of its own, or by mended defects with tests.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"
LIMITS = {"lines": 40_045, "lines of code": 28_125, "modules": 227, "modules with one importer": 46,
          "imports per module, mean": 6.59, "imports per module, highest": 19, "lines reached from train": 14_640,
          "lines reached from evaluate": 7_869, "classes of settings": 45, "settings": 285}  # fmt: skip


def imports_of(tree, modules):
    """Return the modules that a file imports anywhere, without packages of which it imports a module."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    pairs = [(getattr(node, "module", None), alias.name) for node in nodes for alias in node.names]
    names = modules & {name for module, part in pairs for name in (module, part, f"{module}.{part}")} - {"bixse"}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def code_lines(text, tree):
    """Count the lines that are neither blank nor part of a comment or docstring."""
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    prose = {line for node in strings for line in range(node.lineno, node.end_lineno + 1)}
    return sum(n not in prose and not re.match(r"\s*(#|$)", line) for n, line in enumerate(text.splitlines(), 1))


def closure(names, follow):
    """Return `names` and all that `follow` finds from them, at any distance."""
    while more := follow(names) - names:
        names = names | more
    return names


def figures():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    texts = {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in paths.items()}
    trees, lines = {n: ast.parse(t) for n, t in texts.items()}, {n: len(t.splitlines()) for n, t in texts.items()}
    imports = {name: imports_of(tree, texts.keys()) for name, tree in trees.items()}
    counts = [len(imports[name]) for name in texts if lines[name] > 5]
    importers = [sum(module in others for others in imports.values()) for module in texts]
    reached = [closure({start}, lambda names: set().union(*(imports[name] for name in names)))
               for start in ("bixse.training.recipe", "bixse.evaluation.evaluate")]  # fmt: skip
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    below = closure({"Settings"}, lambda names: {c.name for c in classes if names & {*map(ast.unparse, c.bases)}})
    fields = [node for c in classes if c.name in below - {"Settings"} for node in c.body
              if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)]  # fmt: skip
    found = (sum(lines.values()), sum(code_lines(texts[name], trees[name]) for name in texts), len(texts),
             importers.count(1), round(sum(counts) / len(counts), 2), max(counts),
             *(sum(lines[name] for name in names) for names in reached), len(below) - 1, len(fields))  # fmt: skip
    return dict(zip(LIMITS, found, strict=True))


def test_no_figure_is_above_its_limit():
    assert not {name: figure for name, figure in figures().items() if figure > LIMITS[name]}


if __name__ == "__main__":
    print(*(f"{figure:>10,} of {LIMITS[name]:>6,} {name}" for name, figure in figures().items()), sep="\n")  # noqa: T201
