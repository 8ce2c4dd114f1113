"""A page as its elements and texts, to be held against what data may not do to it."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr", "base", "source"}
ACTIVE = {"script", "iframe", "b", "i", "link", "base", "object", "form"}
"""Elements that no page of ours has: they come from data, or act, or reach outside."""


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

    def check_harmless(self):
        """No active or open element, handler, comment, outside address or repeated id."""
        assert not {tag for tag, _ in self.elements} & ACTIVE
        assert not self.comments and not self.open
        for _, attributes in self.elements:
            assert not [name for name in attributes if name.startswith("on")]
            assert (attributes.get("href") or "#").startswith("#")
            assert (attributes.get("src") or "data:image/svg+xml").startswith("data:image/svg+xml")
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
