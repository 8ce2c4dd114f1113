"""`render_study`: one self-contained HTML page of a study: claims, plot and table.

No network, no JavaScript, every text from data escaped by Jinja; only the style sheet and the plot go in as markup.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from bixse.data.io.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def render_study(content: Mapping[str, Any]) -> str:
    """The page as text; the same content gives the same page.

    Args:
        content: title, command, about (lines), paper, verdict, plot (SVG that this package drew), tables (each with
            title, headers and rows) and notes (lines).

    Raises:
        jinja2.UndefinedError: a part of the content is missing.
    """
    css = Markup(files("bixse.report").joinpath("report.css").read_text(encoding="utf-8"))
    return _template().render(**{**content, "plot": Markup(content["plot"])}, css=css)


def write_study_page(content: Mapping[str, Any], path: Path) -> None:
    """Render the page into a file.

    Raises:
        StorageError: the file cannot be written.
    """
    write_atomically(path, render_study(content))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("bixse.report").joinpath("study.html.j2").read_text(encoding="utf-8"))
