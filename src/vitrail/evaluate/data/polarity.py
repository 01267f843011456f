"""Amazon and Yelp polarity: reviews with one or two stars against four or five.

Zhang, Zhao and LeCun, NeurIPS 2015, arXiv:1509.01626. The published CSV files have no header, labels 1 and 2, and line
breaks written as a backslash and an n. Titles of Amazon reviews are left out.
"""

from dataclasses import replace

from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.labelled import Layout, labelled_texts
from vitrail.evaluate.data.rows import Source, open_rows

CLASSES = ("negative", "positive")
LAYOUT = Layout(text=("content", "text"), label=("label",), codes={"0": 0, "1": 1}, classes=CLASSES)


def _break_lines(text: str) -> str:
    return text.replace("\\n", "\n")


PUBLISHED = replace(LAYOUT, codes={"1": 0, "2": 1}, polish=_break_lines)


def read_amazon(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split of Amazon polarity."""
    return _read("amazon_polarity", source, split, ("label", "title", "content"))


def read_yelp(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split of Yelp polarity."""
    return _read("yelp_polarity", source, split, ("label", "text"))


def _read(name: str, source: Source, split: str, published: tuple[str, ...]) -> Dataset[TextExample]:
    rows = open_rows(source, split=split, headless=published)
    return labelled_texts(name, rows, PUBLISHED if rows.headless else LAYOUT)
