"""Paths of a machine, unsafe code, long modules and dead links are not in the repository."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TEXT_SUFFIXES = {f".{name}" for name in "py md toml txt yaml yml json jsonl csv tsv j2 css html".split()}  # noqa: SIM905
COMMITTED = sorted(
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples", ".github")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in TEXT_SUFFIXES and not any(part.endswith(".egg-info") for part in path.parts)
) + sorted(path for path in ROOT.iterdir() if path.suffix in TEXT_SUFFIXES)
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:work|root|home|Users|tmp|mnt|scratch)/[\w.]")
names = [str(path.relative_to(ROOT)) for path in SOURCE]


def calls_and_imports(path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return [node for node in nodes if isinstance(node, ast.Call)], imports


def test_lists_of_files_are_not_empty():
    assert (len(SOURCE) > 30, len(COMMITTED) > 60) == (True, True)


def test_no_path_of_one_machine():
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in COMMITTED
        if "pydocs" not in path.parts  # Python's own documentation shows such paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("text", ["see " + "/work" + "/main/x", "'" + "/tmp" + "/x'", "path=" + "/home" + "/me"])
def test_pattern_matches_machine_paths(text):
    assert MACHINE_PATHS.search(text)


@pytest.mark.parametrize("path", SOURCE, ids=names)
def test_source_has_no_unsafe_call(path):
    calls, imports = calls_and_imports(path)
    called = {ast.unparse(call.func) for call in calls}
    keywords = {(word.arg, ast.unparse(word.value)) for call in calls for word in call.keywords}
    assert not {name.split(".")[0] for name in imports} & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}
    assert not called & {"print", "eval", "exec", "yaml.load", "os.system", "breakpoint"}
    assert not {call for call in called if call.endswith("torch.load")}
    assert not keywords & {(name, "True") for name in ("trust_remote_code", "shell", "allow_pickle")}
    assert ("weights_only", "False") not in keywords


@pytest.mark.parametrize("path", SOURCE, ids=names)
def test_module_has_at_most_500_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
