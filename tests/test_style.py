"""Docstrings of the package begin and end as docs/style.md asks."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
NOT_FIRST = {"What", "Of", "Where", "As", "Whether", "Those", "How", "That", "Which", "With", "If", "In", "To", "From"}
NOT_FIRST |= {"For", "By", "On"}
LONGEST = 40
"""Words of a sentence. The aim is 25; names of a list count as words too."""


def docstrings(tree):
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in ast.walk(tree) if isinstance(node, nodes) and (text := ast.get_docstring(node))]


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
    found = [fault for text in docstrings(ast.parse(path.read_text(encoding="utf-8"))) for fault in faults(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["What a run left.", "Whether it is so.", f"Return {'a word ' * LONGEST}."])
def test_the_check_sees_faults(text):
    assert faults(text)
