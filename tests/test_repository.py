"""The repository: no path of a machine, no unsafe call, and names that exist and stand for one thing.

Private members of other libraries are listed in docs/design.md, and the libraries still have them.
"""

import ast
import inspect
import re
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from test_style import docstrings

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bixse"
MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT_SUFFIXES = {f".{name}" for name in "py md toml txt yaml yml json jsonl csv tsv j2 css html".split()}  # noqa: SIM905
COMMITTED = sorted(
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples", ".github")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in TEXT_SUFFIXES and not any(part.endswith(".egg-info") for part in path.parts)
) + sorted(path for path in ROOT.iterdir() if path.suffix in TEXT_SUFFIXES)
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:work|root|home|Users|tmp|mnt|scratch)/[\w.]")
DOTTED = re.compile(r"(?<![\w./-])bixse(?:\.[A-Za-z_]\w*)+")
FILES = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|yaml|md|csv|j2))\b")
NOT_NAMES = re.compile(r"bixse\.(?:yaml|toml|dev|git|org)\b")
FOLDERS = {path.name for path in (*SOURCE.iterdir(), *ROOT.iterdir()) if path.is_dir()} - {"runs"}  # what users make
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Private members")[2]
PRIVATE = dict(re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \|", DESIGN, re.MULTILINE))
PUBLIC = {"_exit", "_asdict"}  # of os, and of named tuples
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes_of(path, kind):
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, kind)]


def test_no_path_of_one_machine():
    assert len(MODULES) > 30 and len(COMMITTED) > 60
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in COMMITTED
        if "pydocs" not in path.parts  # Python's own documentation shows such paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert not lines, "\n".join(lines)
    for text in ("see " + "/work" + "/main/x", "'" + "/tmp" + "/x'", "path=" + "/home" + "/me"):
        assert MACHINE_PATHS.search(text)


@every_module
def test_source_has_no_unsafe_call(path):
    calls = nodes_of(path, ast.Call)
    called = {ast.unparse(call.func) for call in calls}
    keywords = {(word.arg, ast.unparse(word.value)) for call in calls for word in call.keywords}
    imports = {alias.name for node in nodes_of(path, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in nodes_of(path, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in imports} & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}
    assert not called & {"print", "eval", "exec", "yaml.load", "os.system", "breakpoint"}
    assert not {call for call in called if call.endswith("torch.load")}
    assert not keywords & {(name, "True") for name in ("trust_remote_code", "shell", "allow_pickle")}
    assert ("weights_only", "False") not in keywords


def resolves(name):
    """Return True if a dotted name is a module, an object of a module, or a field of a class."""
    owner, _, field = name.rpartition(".")
    with suppress(ImportError, AttributeError):
        return bool(resolve_name(name))
    with suppress(ImportError, AttributeError):
        kind = resolve_name(owner)
        return field in {*getattr(kind, "model_fields", {}), *getattr(kind, "__annotations__", {})}
    return False


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_that_is_mentioned_exists(path):
    text = path.read_text(encoding="utf-8") if path.suffix == ".md" else "\n".join(docstrings(tree_of(path)))
    names = {name.rstrip(".") for name in DOTTED.findall(text) if not NOT_NAMES.match(name)}
    missing = sorted(name for name in names if not resolves(name))
    folders = (ROOT, SOURCE, path.parent, ROOT / "src")
    files = {file for file in FILES.findall(text) if path.suffix == ".md" and file.split("/")[0] in FOLDERS}
    missing += sorted(file for file in files if not any((folder / file).exists() for folder in folders))
    assert not missing, f"{path.relative_to(ROOT)}: {', '.join(missing)}"


def test_name_that_does_not_exist_is_reported():
    assert resolves("bixse.losses.bixse.BiXSELoss") and resolves("bixse.TrainConfig.optimizer")
    assert not resolves("bixse.encoders.RelevanceHead") and not resolves("bixse.nothing")


def public_types(path):
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)


def test_no_two_modules_and_no_two_public_types_share_a_name():
    files = [path for path in MODULES if "cli" not in path.parts]  # a verb has the name of what it calls
    modules = Counter(path.stem for path in files if path.stem not in ("__init__", "__main__"))
    types = Counter(name for path in MODULES for name in public_types(path) if not name.startswith("_"))
    assert not {name for counts in (modules, types) for name, count in counts.items() if count > 1}


def private_members(path):
    """Private attributes that a file uses of other objects than `self`."""
    for node in nodes_of(path, ast.Attribute):
        if re.match(r"_[A-Za-z]", node.attr) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.attr


def test_every_private_member_in_use_is_listed():
    used = {(name, str(path.relative_to(SOURCE))) for path in MODULES for name in private_members(path)}
    listed = {(name.rpartition(".")[2], file) for name, file in PRIVATE.items()}
    assert {(name, file) for name, file in used if name not in PUBLIC} <= listed, "leave it, or list it"


@pytest.mark.parametrize("name", PRIVATE)
def test_library_still_has_the_member_and_it_is_still_in_use(name):
    owner, _, member = name.rpartition(".")
    library_object = resolve_name(owner)
    if not hasattr(library_object, member):  # set by __init__
        assert any(member in inspect.getsource(kind) for kind in inspect.getmro(library_object)[:-1])
    assert member in (SOURCE / PRIVATE[name]).read_text(encoding="utf-8")
