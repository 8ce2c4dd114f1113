"""The first page: what the folder holds, who labelled how much, and the command behind each figure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bixse.ui.ui_page import Page, with_pairs

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """Counts of the folder, and of labels by person."""
    index = workspace.index
    return {
        "run": str(workspace.run),
        "pairs": len(index),
        "queries": len(index.rows_of_query),
        "judge": index.judge,
        "statuses": Counter(status or "not judged" for status in index.status).most_common(),
        "without_text": index.without_text,
        "rubric": workspace.rubric.name,
        "people": workspace.labels.people(),
        "labels": len(workspace.labels.grades()),
        "command": workspace.audit_command(),
    }


PAGE = Page("overview", "Overview", show, fits=with_pairs)
