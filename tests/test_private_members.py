"""Private members of other libraries are listed in docs/design.md, and the libraries still have them."""

import ast
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import bixse

SOURCE = Path(bixse.__file__).parent
DESIGN = (Path(__file__).parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
LISTED = dict(re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \|", DESIGN.partition("## Private members")[2], re.MULTILINE))
OURS = {"_exit", "_asdict"}  # public: of os, and of named tuples


def private_members(path):
    """Private attributes that a file uses of other objects than `self`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.match(r"_[A-Za-z]", node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and node.attr not in OURS:
                yield node.attr


def test_every_private_member_in_use_is_listed():
    used = {(name, str(path.relative_to(SOURCE))) for path in SOURCE.rglob("*.py") for name in private_members(path)}
    listed = {(name.rpartition(".")[2], file) for name, file in LISTED.items()}
    assert used <= listed, "leave it, or give it a row in docs/design.md"


@pytest.mark.parametrize("name", LISTED)
def test_library_still_has_the_member_and_it_is_still_in_use(name):
    owner, _, member = name.rpartition(".")
    library_object = pkgutil.resolve_name(owner)
    if not hasattr(library_object, member):  # set by __init__
        assert any(member in inspect.getsource(kind) for kind in inspect.getmro(library_object)[:-1])
    assert member in (SOURCE / LISTED[name]).read_text(encoding="utf-8")
