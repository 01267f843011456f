from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "path", "polyline"}


class Reader(HTMLParser):
    """What a browser would find: tags with their attributes, the text, and the cells of every table."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.tables, self.open = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        while tag not in VOID and self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self.open or "style" in self.open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]
