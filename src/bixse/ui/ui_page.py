"""What a page is: a function from the run folder's files and the address to the values of its template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bixse.report.plots import Plot
    from bixse.ui.safety import Session
    from bixse.ui.workspace import Workspace


@dataclass(frozen=True)
class Visit:
    """What one request says."""

    session: Session
    query: Mapping[str, str]
    """Of the address, after `?`."""
    form: Mapping[str, str] = field(default_factory=dict)
    """What was sent."""
    address: str = ""
    """That of the server, such as http://127.0.0.1:8765."""

    @property
    def person(self) -> str:
        return self.session.person

    def number(self, name: str) -> int:
        """A whole number of the address, 0 where it says none."""
        text = self.query.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 10 else 0


Show: TypeAlias = "Callable[[Workspace, Visit], dict[str, Any]]"
"""Values of a template; reads files, changes nothing."""
Draw: TypeAlias = "Callable[[Workspace, Visit], Plot | None]"
"""A picture; None where there is none."""
Act: TypeAlias = "Callable[[Workspace, Visit], str]"
"""Changes something; the address to go on with."""


def always(workspace: Workspace) -> bool:
    """Whether a page has something to show: in any folder."""
    return True


def with_pairs(workspace: Workspace) -> bool:
    """In a folder with pairs to label."""
    return len(workspace.index) > 0


@dataclass(frozen=True)
class Page:
    """One page, as a module of `bixse.ui.pages` defines it (`PAGE`)."""

    name: str
    """Its address and its template: `/NAME` and `NAME.html.j2`."""
    title: str
    show: Show
    actions: Mapping[str, Act] = field(default_factory=dict)
    """`/NAME/ACTION`, by POST."""
    parts: Mapping[str, Show] = field(default_factory=dict)
    """`/NAME/PART`, by GET, of `NAME-PART.html.j2`: what is loaded later, such as progress."""
    fits: Callable[[Workspace], bool] = always
    """Whether this run folder has what the page shows."""
    needs_person: bool = False
    """Whether it asks for a name first."""
    pictures: Mapping[str, Draw] = field(default_factory=dict)
    """`/NAME/PICTURE.svg`, by GET."""
    news: Callable[[Workspace], str] | None = None
    """What changes when the page has news, such as the size of a file; told by server-sent events at `/NAME/news`."""
