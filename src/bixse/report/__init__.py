"""Tables, plots and self-contained HTML pages. A call of this package is a call of `bixse.reporting.report`.

Example:
    >>> import bixse
    >>> data = ({"q1": "copy a tree"}, {"d1": "shutil.copytree: copy a tree"}, {"q1": {"d1": 3}})
    >>> bixse.report({"BM25": bixse.evaluate("bm25", data)}, collection=data).data.systems[0].metrics["ndcg@10"]
    1.0
"""

import sys
from types import ModuleType
from typing import Any

from bixse.extensions import extension


class _Callable(ModuleType):
    """The type of this package. Importing the package hides the function `bixse.report`, so a call must do the same."""

    def __call__(self, *results: Any, **options: Any) -> Any:
        return extension("report")(*results, **options)


sys.modules[__name__].__class__ = _Callable
