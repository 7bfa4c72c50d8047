"""A page as a parser reads it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "path", "use", "rect"}


class Page(HTMLParser):
    """Tags, ids, text; and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "action"):
                self.links.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
