"""MNLI: a premise and a hypothesis, and whether the first entails or contradicts the second.

Williams et al., NAACL 2018, as split by GLUE (Wang et al., arXiv:1804.07461).
"""

from vitrail.evaluate.data.dataset import Dataset
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.data.labelled import Layout, labelled_texts
from vitrail.evaluate.data.rows import Source, open_rows

CLASSES = ("entailment", "neutral", "contradiction")
NO_AGREEMENT = "-"
LAYOUT = Layout(
    text=("sentence1", "premise"),
    second=("sentence2", "hypothesis"),
    label=("gold_label", "label"),
    codes={**{name: i for i, name in enumerate(CLASSES)}, **{str(i): i for i in range(3)}, NO_AGREEMENT: None},
    classes=CLASSES,
)


def read_mnli(source: Source, *, split: str = "dev_matched") -> Dataset[TextExample]:
    """The pairs of a split; classes in the order of the Hugging Face hub, which not every model shares."""
    return labelled_texts("mnli", open_rows(source, split=split), LAYOUT)
