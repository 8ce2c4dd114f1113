"""Docstrings, names and comments of the package are as docs/style.md asks."""

import ast
import re
import tokenize
from inspect import cleandoc
from pathlib import Path

import pytest

from test_house import code_lines
from test_rooms import CORE

SOURCE = Path(__file__).parents[1] / "src"
NOT_FIRST = {"What", "Of", "Where", "As", "Whether", "Those", "How", "That", "Which", "With", "If", "In", "To", "From"}
NOT_FIRST |= {"For", "By", "On"}
LONGEST = 30
"""Words of a sentence. The aim is 25; names of a list count as words too."""
NO_NAMES = {"found", "own", "kept", "place", "said", "told"}
"""Words that could name anything."""
COMMENTS = 2.5
"""Comments per 100 lines of code of the core, at least."""


def docstrings(tree):
    """Return the docstrings of a file: of modules, classes, functions, and of the names above a text."""
    strings = (
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    return [cleandoc(text.value) for text in strings if isinstance(text.value, str)]


def sentences(text):
    """Return the sentences above the first section or example, formulas left out."""
    prose = re.split(r"\n\s*(?:Example|Args|Raises|Returns):", text)[0]
    return [
        sentence
        for sentence in re.split(r"(?<=[.;:])\s+|\n\n|\n- ", prose)
        if sentence.strip() and " = " not in sentence
    ]


def faults(text):
    first = text.split()[0]
    long = [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST]
    return ([f"begins with {first!r}"] if first in NOT_FIRST else []) + [f"too long: {sentence}" for sentence in long]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstrings_begin_with_a_verb_or_a_noun_and_have_short_sentences(path):
    messages = [fault for text in docstrings(ast.parse(path.read_text(encoding="utf-8"))) for fault in faults(text)]
    assert not messages, "\n".join(messages)


def names(tree):
    """Yield the names that a file gives: variables, arguments, attributes, keywords, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_names_say_what_they_hold():
    given = [(path.name, name) for path in SOURCE.rglob("*.py") for name in names(ast.parse(path.read_text())) if name]
    wrong = [(path, name) for path, name in given if NO_NAMES & set(name.lower().split("_"))]
    assert not wrong


def test_the_core_has_comments():
    files = [
        path for room in CORE for path in [SOURCE / "bixse" / f"{room}.py", *(SOURCE / "bixse" / room).rglob("*.py")]
    ]
    comments = lines = 0
    for path in filter(Path.exists, files):
        tokens = [token.type for token in tokenize.generate_tokens(path.open(encoding="utf-8").readline)]
        comments += tokens.count(tokenize.COMMENT)
        lines += code_lines(path.read_text(encoding="utf-8"), ast.parse(path.read_text(encoding="utf-8")))
    assert 100 * comments / lines >= COMMENTS


def test_the_check_sees_faults():
    assert all(map(faults, ["What a run left.", "Whether it is so.", f"Return {'a word ' * LONGEST}."]))
