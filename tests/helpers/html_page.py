"""A page as its elements and texts, to be held against what data may not do to it."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr", "base", "source"}
FOREIGN = {"iframe", "b", "i", "base", "object"}
"""Elements that come from data alone."""
ACTIVE = FOREIGN | {"script", "link", "form"}
"""Elements that no page of a report has: they act, or reach outside."""


class Page(HTMLParser):
    """Elements in order and texts; an element is closed where it belongs."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.comments, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    @property
    def text(self):
        """What is read, in single blanks."""
        return " ".join(" ".join(self.texts).split())

    def shape(self):
        """Tag, attribute names and class of every element."""
        return [(tag, sorted(attributes), attributes.get("class")) for tag, attributes in self.elements]

    def _check(self, forbidden, sources):
        assert not {tag for tag, _ in self.elements} & forbidden and not self.open
        for _, attributes in self.elements:
            assert not [name for name in attributes if name.startswith("on")]
            for name, beginnings in sources.items():
                assert (attributes.get(name) or beginnings[0]).startswith(beginnings)
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))

    def check_harmless(self):
        """No active or open element, handler, comment, outside address or repeated id."""
        self._check(ACTIVE, {"href": ("#",), "src": ("data:image/svg+xml",)})
        assert not self.comments

    def check_served(self):
        """No element of data, handler, style or repeated id; all that loads is of the server, scripts of its folder."""
        self._check(FOREIGN, dict.fromkeys(("href", "src", "action"), ("/", "#", "?")))
        for tag, attributes in self.elements:
            assert "style" not in attributes
            assert tag != "script" or attributes["src"].startswith("/static/")
