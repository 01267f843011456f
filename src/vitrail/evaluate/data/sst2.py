"""SST-2: sentences of film reviews, negative or positive.

Socher et al., EMNLP 2013, as split by GLUE (Wang et al., arXiv:1804.07461).
"""

from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.labelled import Layout, labelled_texts
from vitrail.evaluate.data.rows import Source, open_rows

CLASSES = ("negative", "positive")
LAYOUT = Layout(text=("sentence", "content"), label=("label",), codes={"0": 0, "1": 1}, classes=CLASSES)


def read_sst2(source: Source, *, split: str = "dev") -> Dataset[TextExample]:
    """The sentences of a split."""
    return labelled_texts("sst2", open_rows(source, split=split), LAYOUT)
