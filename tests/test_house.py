"""The shape of the house: no figure is above its limit. Run this file to see all.

A limit can only be lowered, except by mended defects with tests or a feature that was asked for.
"""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"
LONG = 50
"""A longer function, its docstring left out, is no longer read in one go."""
ENTRIES = {"train": "bixse.training.recipe", "evaluate": "bixse.evaluation.evaluate"}
LIMITS = {
    "functions above 50 lines": 2,
    "private functions with one caller": 331,
    "lines reached from train": 10_356,
    "lines reached from evaluate": 5_286,
    "classes of settings": 47,
    "settings": 299,
}


def imports_of(tree, modules):
    """Return the modules that a file imports anywhere, without packages of which it imports a module."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    pairs = [(getattr(node, "module", None), alias.name) for node in nodes for alias in node.names]
    names = modules & {name for module, part in pairs for name in (module, part, f"{module}.{part}")} - {"bixse"}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def named_modules(tree, modules):
    """Return the modules that a file names in a text, as the core does for the satellites that it asks for."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return modules & {text.partition(":")[0] for text in texts}


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


def functions_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function):
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.end_lineno - function.lineno + 1 - is_docstring * (first.end_lineno - first.lineno + 1)


def with_one_caller(tree):
    """Return the private functions and methods of a module that it names once."""
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = Counter(names + [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)])
    private = [f for f in functions_of(tree) if re.match("_[a-z]", f.name)]
    return [f for f in private if used[f.name] == 1 and not f.decorator_list]


def figures():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    texts = {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in paths.items()}
    trees, lines = {n: ast.parse(t) for n, t in texts.items()}, {n: len(t.splitlines()) for n, t in texts.items()}
    needed = {name: imports_of(tree, texts.keys()) for name, tree in trees.items()}
    needed["bixse.extensions"] |= named_modules(trees["bixse.extensions"], texts.keys())
    reached = {
        f"lines reached from {verb}": sum(
            lines[name] for name in closure({start}, lambda names: set().union(*(needed[name] for name in names)))
        )
        for verb, start in ENTRIES.items()
    }
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    below = closure({"Settings"}, lambda names: {c.name for c in classes if names & {*map(ast.unparse, c.bases)}})
    fields = [node for c in classes if c.name in below - {"Settings"} for node in c.body
              if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)]  # fmt: skip
    functions = [function for tree in trees.values() for function in functions_of(tree)]
    return {
        "functions above 50 lines": sum(lines_of(function) > LONG for function in functions),
        "private functions with one caller": sum(len(with_one_caller(tree)) for tree in trees.values()),
        **reached,
        "classes of settings": len(below) - 1,
        "settings": len(fields),
    }


def test_no_figure_is_above_its_limit():
    assert not {name: figure for name, figure in figures().items() if figure > LIMITS[name]}


if __name__ == "__main__":
    print(*(f"{figure:>10,} of {LIMITS[name]:>6,} {name}" for name, figure in figures().items()), sep="\n")  # noqa: T201
