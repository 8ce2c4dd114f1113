"""The way of a training configuration through the code: how many modules get it, how often the way goes back up.

    python benchmarks/config_path.py

Followed, in the source alone, is every call from `bixse.training.recipe.train` on that is given the configuration, one
of its settings, or a value made from them without another function of bixse; then at once the calls of the function
that is called so, as a run would go. The same function with the same parameters is entered once. The way is the list of
modules in that order. Printed are the way, the number of its modules, and its returns: steps from one module of the way
to the next whose room stands higher (the order of `tests/test_rooms.py`; errors, progress and settings are no rooms).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "bixse"
ROOMS = ["data", "report", "encoders", "losses", "retrieval", "evaluation", "grading", "mining", "training"]
ROOMS += ["experiments", "studies", "cli"]
START = ("bixse.training.recipe", "train", frozenset({"config"}))


@dataclass
class Module:
    """What the names of a module stand for."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    """Functions, classes by their `__init__`, and methods as Class.method."""
    classes: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name here -> module of bixse and name there."""


@cache
def read(name: str) -> Module | None:
    """A module of bixse, or None where there is no such file."""
    path = SOURCE.parent / Path(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        return None
    module = Module()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bixse"):
            module.imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            module.classes.add(node.name)
            methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            module.functions |= {f"{node.name}.{method}": part for method, part in methods.items()}
            if "__init__" in methods:
                module.functions[node.name] = methods["__init__"]
    return module


def resolve(module: str, name: str) -> tuple[str, str] | None:
    """The module and name behind a name that a module calls; None for what is not of bixse."""
    own = read(module)
    if own is None:
        return None
    if name in own.functions or name in own.classes:
        return module, name
    found = own.imported.get(name)
    return resolve(*found) if found is not None else None


def holds(node: ast.expr, names: set[str], module: str) -> bool:
    """Whether an expression is the configuration or made from it, without the result of a function of bixse."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and resolve(module, node.func.id):
        return False
    return (
        any(holds(part, names, module) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        or (
            isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp))
            and any(holds(part.iter, names, module) for part in node.generators)
        )
        or (isinstance(node, ast.Call) and any(holds(word.value, names, module) for word in node.keywords))
    )


def calls(module: str, function: ast.FunctionDef, given: frozenset[str]) -> list[tuple[str, str, frozenset[str]]]:
    """Calls of a function that pass on what it was given: module, name, and the parameters there that get it."""
    names, found = set(given), []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and holds(node.value, names, module):
            names |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.comprehension) and holds(node.iter, names, module):
            names |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
    made = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for node in sorted(made, key=lambda call: (call.end_lineno, call.end_col_offset)):  # inner calls before outer ones
        target = resolve(module, node.func.id) if isinstance(node.func, ast.Name) else None
        if target is None:
            continue
        places = [number for number, part in enumerate(node.args) if holds(part, names, module)]
        words = [word.arg for word in node.keywords if holds(word.value, names, module)]
        if not places and not words:
            continue
        own = read(target[0])
        called = own.functions.get(target[1]) if own else None
        parameters = [part.arg for part in (*called.args.args, *called.args.kwonlyargs)] if called else []
        if called and target[1] in own.classes:
            parameters = parameters[1:]
        got = {parameters[place] for place in places if place < len(parameters)} | {word for word in words if word}
        if called and called.args.kwarg and got - set(parameters):
            got.add(called.args.kwarg.arg)
        found.append((*target, frozenset(got)))
    return found


def follow(module: str, name: str, given: frozenset[str], entered: set[object], way: list[str]) -> None:
    """Add the modules that a function hands the configuration on to, in the order of a run."""
    own = read(module)
    function = own.functions.get(name) if own else None
    for target in calls(module, function, given) if function else []:
        if target[0].split(".")[1] in ROOMS and target not in entered:
            entered.add(target)
            way.append(target[0])
            follow(*target, entered, way)


def main() -> None:
    """Print the way and the two numbers."""
    way = [START[0]]
    follow(*START, set(), way)
    rooms = [ROOMS.index(module.split(".")[1]) for module in way]
    returns = sum(after < before for before, after in pairwise(rooms))
    for module, before in zip(way[1:], way, strict=False):
        if module != before:
            print(module.removeprefix("bixse."))
    print(f"{len(set(way))} modules, {returns} returns to a higher room")


if __name__ == "__main__":
    main()
