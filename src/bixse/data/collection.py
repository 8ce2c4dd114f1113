"""`Collection`: a corpus, queries and graded judgements for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.relevance import Qrels

MissingDocuments: TypeAlias = Literal["refuse", "drop"]
"""What is done with judgements that name a document which the corpus lacks."""


class Document(NamedTuple):
    """One document of a corpus."""

    title: str
    """Title, may be empty."""
    text: str
    """Body, may be empty when there is a title."""

    @property
    def content(self) -> str:
        """Title and text as one string, as every system indexes and encodes it (BEIR's convention)."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True)
class Collection:
    """A corpus, queries and judgements by split.

    Example:
        >>> collection = Collection("toy", {"d1": Document("copy", "copies a file")}, {"q1": "copy a file"},
        ...                         {"test": {"q1": {"d1": 3}}})
        >>> collection.qrels["test"]["q1"]["d1"]
        3
    """

    name: str
    """Shown in tables and reports."""
    corpus: Mapping[str, Document]
    """Document id -> document."""
    queries: Mapping[str, str]
    """Query id -> text."""
    qrels: Mapping[str, Qrels] = field(default_factory=dict)
    """Split -> query id -> document id -> grade, judged zeros included."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Split -> judgements left out since the corpus lacks their document."""
