"""Read a folder of text files, one document per file: plain text, Markdown, and HTML without its markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from bixse.data.joined import Unjoined, warn_of
from bixse.errors import InputError
from bixse.files.files import read_text

HTML = (".html", ".htm")
SUFFIXES = (".txt", ".md", *HTML)
HIDDEN = {"script", "style", "template", "noscript"}
INLINE = re.compile("a|abbr|b|bdi|bdo|cite|code|em|font|i|kbd|mark|q|s|samp|small|span|strong|sub|sup|u|var|wbr")
"""Elements that do not end a word."""


class _Page(HTMLParser):
    """The title and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.parts: list[str] = []
        """The text; joined at the end, as `+=` on a text is quadratic."""
        self._inside = ""
        """The hidden element that the parser is in, or "title"."""
        self._pictures = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._break(tag)
        self._pictures += tag == "svg"
        if not self._inside and (tag in HIDDEN or (tag == "title" and not self.title and not self._pictures)):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._break(tag)
        self._pictures = max(self._pictures - (tag == "svg"), 0)
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.title += data
        elif not self._inside:
            self.parts.append(data)

    def _break(self, tag: str) -> None:
        self.parts.append("" if INLINE.fullmatch(tag) else " ")


def page_text(html: str) -> tuple[str, str]:
    """Return title and text of an HTML page, with white space as one space.

    Example:
        >>> page_text("<title>Copy</title><style>p {}</style><p>Copy a <b>fol</b>der.</p><p>Then stop.")
        ('Copy', 'Copy a folder. Then stop.')
    """
    page = _Page()
    page.feed(html)
    page.close()
    return " ".join(page.title.split()), " ".join("".join(page.parts).split())


def read_text_folder(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return columns of one row per text file below a folder, and a warning that counts the other files.

    The id is the path below the folder, with _ for white space, since ids have none.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    visible = [file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts)]
    texts = [file for file in visible if file.suffix.lower() in SUFFIXES]
    if not texts:
        raise InputError(
            f"{folder}: got a folder without {', '.join(SUFFIXES)} files; expected texts, a data set that `datasets` "
            "saved, or a file of rows; fix: name the file instead of its folder"
        )
    rows = []
    for file in texts:
        name = "_".join(file.relative_to(folder).as_posix().split())
        title, text = page_text(read_text(file)) if file.suffix.lower() in HTML else ("", read_text(file))
        rows.append((name, title, text.strip()))
    names = [str(file.relative_to(folder)) for file in visible]
    known = {str(file.relative_to(folder)) for file in texts}
    others = Unjoined.of("files of other kinds", names, known, "they are left out")
    return dict(zip(("_id", "title", "text"), map(list, zip(*rows, strict=True)), strict=True)), warn_of(folder, others)
