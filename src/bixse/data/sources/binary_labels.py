"""Rows of binary data: a document is relevant to a query or it is not, z in {0, 1}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.sources.judgement_files import Judgement
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Mapping

BINARY = GradeScale(0, 1)
"""The scale of labels: 0 irrelevant, 1 relevant."""
JUDGE = "binary labels"
"""Who judged, where the file does not say: relevance 1 stands for "labelled positive", 0 for a (mined) negative."""


def labelled(
    query: str,
    document: str,
    relevant: bool,
    row: int,
    *,
    query_id: str | None = None,
    document_id: str | None = None,
    task: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Judgement:
    """A pair with a binary label; ids are made from the texts where there are none.

    Example:
        >>> labelled("copy a folder", "shutil.copytree", True, row=1).relevance
        1.0
    """
    return Judgement(
        query_id or text_id(query),
        document_id or text_id(document),
        BINARY,
        query,
        document,
        float(relevant),
        judge=JUDGE,
        task=task,
        row_group=str(row),
        row=row,
        extra=extra or {},
    )
