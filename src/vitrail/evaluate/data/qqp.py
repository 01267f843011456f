"""QQP: pairs of questions from Quora that ask the same or not, as split by GLUE (Wang et al., arXiv:1804.07461)."""

from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.labelled import Layout, labelled_texts
from vitrail.evaluate.data.rows import Source, open_rows

CLASSES = ("not duplicate", "duplicate")
LAYOUT = Layout(
    text=("question1",),
    second=("question2",),
    label=("is_duplicate", "label"),
    codes={"0": 0, "1": 1},
    classes=CLASSES,
)


def read_qqp(source: Source, *, split: str = "dev") -> Dataset[TextExample]:
    """The pairs of a split. Some rows of the published training file lack columns; reading one raises."""
    return labelled_texts("qqp", open_rows(source, split=split), LAYOUT)
