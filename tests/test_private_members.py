"""What of other libraries is used without a promise of theirs stands in docs/design.md, and is still there."""

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
OURS = {"_exit"}  # os._exit is public


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
def test_the_library_still_has_it(name):
    owner, _, member = name.rpartition(".")
    found = pkgutil.resolve_name(owner)
    if not hasattr(found, member):  # what is set by __init__
        sources = [inspect.getsource(kind) for kind in inspect.getmro(found)[:-1]]
        assert any(member in source for source in sources)


@pytest.mark.parametrize("name", LISTED)
def test_it_is_still_in_use(name):
    assert name.rpartition(".")[2] in (SOURCE / LISTED[name]).read_text(encoding="utf-8")
