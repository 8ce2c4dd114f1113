"""Makes `src/bixse/data/pydocs/corpus.jsonl.gz`: the docstrings of the Python that runs this, as documents.

The rules of what is a document, and of its id, are in the README.md of this folder. The file that comes with bixse was
made under Linux by the CPython 3.11.7 on which the queries were graded, with the same bytes every time:

    python3.11 -I -S -B docs/studies/pydocs/make_corpus.py src/bixse/data/pydocs/corpus.jsonl.gz

It imports every public standard module, so run it in an environment where that does no harm.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import pkgutil
import re
import site
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

EXCLUDED_MODULES = frozenset(
    # Side effects, a window, no documentation, or the test suite.
    "antigravity this idlelib test tkinter turtle turtledemo lib2to3 ensurepip venv encodings pydoc_data "  # noqa: SIM905
    "distutils imp asyncore asynchat smtpd "
    # Removed in Python 3.13.
    "aifc audioop cgi cgitb chunk crypt imghdr mailcap msilib nis nntplib ossaudiodev pipes sndhdr spwd sunau "
    "telnetlib uu xdrlib "
    # One platform only; `os` documents the first two.
    "nt posix winreg winsound msvcrt".split()
)
"""Standard modules that give no documents, nor do their submodules."""
PATH_MODULES = ("posixpath", "genericpath", "ntpath")
"""The modules behind `os.path`, the first that documents a name is taken; so ids are the same on every platform."""
FEWEST_WORDS = 6
"""A shorter docstring is no document."""
LONGEST_TITLE = 120
"""In characters; a longer id with its signature is cut to the id."""
MACHINE_VALUE = re.compile(r" at 0x[0-9a-fA-F]+|frozenset\(|\{'|name='<")
"""Default values in a signature that change from run to run: addresses, unordered sets, open files."""


def main(arguments: list[str]) -> int:
    """Write the documents to the file named; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write(f"{(__doc__ or '').strip()}\n")
        return 2
    rows = ({"_id": name, "title": title, "text": text} for name, (title, text) in collect_documents().items())
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(arguments[0]).write_bytes(gzip.compress(lines.encode(), mtime=0))
    return 0


def collect_documents() -> dict[str, tuple[str, str]]:
    """Id -> (title, text) of every document of this Python, sorted by id."""
    warnings.simplefilter("ignore")
    site.setcopyright()  # the built-in `help` and `credits`, which `python -S` leaves out
    site.sethelper()
    # All modules come first: importing a submodule can replace a function of the same name (curses.has_key).
    modules = [pair for name in sorted(sys.stdlib_module_names) for pair in import_modules(name)]
    modules += [("os.path", importlib.import_module(name)) for name in PATH_MODULES]
    candidates: dict[str, tuple[str, str]] = {}
    for module_name, module in modules:
        for identifier, member, docstring in module_objects(module_name, module):
            text = " ".join(docstring.split()) if isinstance(docstring, str) else ""
            if len(text.split(" ")) >= FEWEST_WORDS and identifier not in candidates:
                candidates[identifier] = (make_title(identifier, member), text)
    chosen: dict[str, str] = {}  # text -> id
    for identifier in sorted(candidates, key=lambda name: (name.count("."), len(name))):  # stable: then first in order
        chosen.setdefault(candidates[identifier][1], identifier)
    return {identifier: candidates[identifier] for identifier in sorted(chosen.values())}


def import_modules(name: str) -> Iterator[tuple[str, ModuleType]]:
    """Yield the (name, module) that can be imported: the module, then its submodules in order of name."""
    top, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if last.startswith("_") or top in EXCLUDED_MODULES or top in PATH_MODULES or "test" in rest:
        return
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit):  # of another platform, built without it, or refusing to start
        return
    yield name, module
    for submodule in sorted(found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))):
        yield from import_modules(f"{name}.{submodule}")


def module_objects(module_name: str, module: ModuleType) -> Iterator[tuple[str, object, object]]:
    """Yield (id, object, docstring) of a module, its members and their methods."""
    yield module_name, module, module.__doc__
    names = getattr(module, "__all__", None) or sorted(name for name in vars(module) if not name.startswith("_"))
    for name in names:
        try:
            member = getattr(module, name)
        except Exception:  # listed in __all__, yet not built on this platform
            continue
        if not callable(member) or not belongs_to(member, module_name):
            continue
        if not inspect.isclass(member):
            yield f"{module_name}.{name}", member, getattr(member, "__doc__", None)
            continue
        yield f"{module_name}.{name}", member, vars(member).get("__doc__")
        for method_name, method in class_members(member):
            yield f"{module_name}.{name}.{method_name}", method, getattr(method, "__doc__", None)


def belongs_to(member: object, module_name: str) -> bool:
    """Whether a member is documented under this module rather than under the one it was imported from."""
    origin = getattr(member, "__module__", None)
    if not isinstance(origin, str):
        return origin is None  # written in C, or a bound method of a hidden instance: random.random
    if module_name == "os.path":
        return origin in PATH_MODULES
    return origin.startswith((module_name, "_")) or (module_name == "os" and origin in ("posix", "nt"))


def class_members(owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public (name, method or property) in the class body, class and static methods bound to the class."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield name, member.__get__(None, owner)
        elif isinstance(member, property) or callable(member):
            yield name, member


def make_title(identifier: str, member: object) -> str:
    """The id, with the signature when that is known, short and the same in every run."""
    if not callable(member):  # a module or a property
        return identifier
    try:
        signature = str(inspect.signature(member))
    except Exception:  # many C functions have none
        return identifier
    title = " ".join(f"{identifier}{signature}".split())
    of_this_machine = MACHINE_VALUE.search(signature) or repr(sys.executable) in signature  # platform.architecture
    return identifier if len(title) > LONGEST_TITLE or of_this_machine else title


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
