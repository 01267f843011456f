"""Data sets: pictures, texts and questions with their annotations.

`load("pets", path)` gives a `Dataset`; `DATASETS` lists the data sets and the files each of them needs.
"""

from typing import Any

from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.data import labelled, segmented, texts
from vitrail.evaluate.data.examples import (
    IGNORE,
    Box,
    Dataset,
    DatasetEntry,
    Example,
    GoldAnswer,
    ImageExample,
    QuestionExample,
    Span,
    TextExample,
)
from vitrail.evaluate.data.files import Source
from vitrail.evaluate.data.pictures import resize_mask

_LABEL = ("label",)
_TABLE = "<split>.tsv, .csv or .parquet, or a datasets object"

DATASETS: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry(
            "imagenet", labelled.read_imagenet, "image", ("label", "boxes"),
            "a folder of synsets, or labels.csv with images/", "Russakovsky et al., IJCV 2015, arXiv:1409.0575",
        ),
        DatasetEntry(
            "imagenet_segmentation", labelled.read_imagenet_segmentation, "image", ("mask",),
            "gtsegs_ijcv.mat (needs h5py)", "Guillaumin, Küttel & Ferrari, IJCV 2014", ("background", "object"),
        ),
        DatasetEntry(
            "voc", segmented.read_voc, "image", ("mask",),
            "VOCdevkit/VOC2012", "Everingham et al., IJCV 2010", segmented.VOC,
        ),
        DatasetEntry(
            "pets", segmented.read_pets, "image", ("label", "mask"),
            "images/ with annotations/, or with trimaps/ and labels.csv", "Parkhi et al., CVPR 2012",
        ),
        DatasetEntry(
            "coco", segmented.read_coco, "image", ("mask", "boxes"),
            "annotations/instances_<split>.json, or labels/<split>/*.txt; and the pictures",
            "Lin et al., ECCV 2014, arXiv:1405.0312", segmented.COCO,
        ),
        DatasetEntry(
            "cifar10", labelled.read_cifar10, "image", _LABEL,
            "cifar-10-binary.tar.gz or cifar-10-python.tar.gz, packed or not", "Krizhevsky, 2009", labelled.CIFAR10,
        ),
        DatasetEntry(
            "cifar100", labelled.read_cifar100, "image", _LABEL,
            "cifar-100-binary.tar.gz or cifar-100-python.tar.gz, packed or not", "Krizhevsky, 2009",
        ),
        DatasetEntry(
            "imagenette", labelled.read_imagenette, "image", _LABEL,
            "<split>/ or <split>.zip of synsets", "Howard, fast.ai, 2019", labelled.IMAGENETTE,
        ),
        DatasetEntry("sst2", texts.read_sst2, "text", _LABEL, _TABLE, "Socher et al., EMNLP 2013", texts.SENTIMENTS),
        DatasetEntry(
            "qqp", texts.read_qqp, "text", _LABEL,
            _TABLE, "GLUE, Wang et al., arXiv:1804.07461", texts.DUPLICATES,
        ),
        DatasetEntry("mnli", texts.read_mnli, "text", _LABEL, _TABLE, "Williams et al., NAACL 2018", texts.ENTAILMENTS),
        DatasetEntry(
            "amazon_polarity", texts.read_amazon, "text", _LABEL,
            _TABLE, "Zhang, Zhao & LeCun, NeurIPS 2015, arXiv:1509.01626", texts.SENTIMENTS,
        ),
        DatasetEntry(
            "yelp_polarity", texts.read_yelp, "text", _LABEL,
            _TABLE, "Zhang, Zhao & LeCun, NeurIPS 2015, arXiv:1509.01626", texts.SENTIMENTS,
        ),
        DatasetEntry(
            "imdb", texts.read_imdb, "text", _LABEL,
            f"aclImdb/<split>/neg and pos, or {_TABLE}", "Maas et al., ACL 2011", texts.SENTIMENTS,
        ),
        DatasetEntry(
            "eraser_movies", texts.read_eraser_movies, "text", ("label", "rationale"),
            "<split>.jsonl and docs/", "DeYoung et al., ACL 2020, arXiv:1911.03429", texts.SENTIMENTS,
        ),
        DatasetEntry(
            "squad", texts.read_squad, "question", ("answers",),
            "a SQuAD JSON file or folder, .parquet, or a datasets object",
            "Rajpurkar et al., EMNLP 2016, arXiv:1606.05250",
        ),
        DatasetEntry(
            "squad2", texts.read_squad2, "question", ("answers",),
            "a SQuAD JSON file or folder, .parquet, or a datasets object",
            "Rajpurkar, Jia & Liang, ACL 2018, arXiv:1806.03822",
        ),
    )
}  # fmt: skip


NO_SOURCES = (type(None), bool, int, float, bytes, list, tuple)
"""Types of what people pass by mistake."""


def load(
    name: str,
    source: Source,
    *,
    limit: int | None = None,
    offset: int = 0,
    every: int = 1,
    **options: Any,  # noqa: ANN401
) -> Dataset[Any]:
    """The examples of a data set, or of a part of it, in an order that is always the same.

    Args:
        name: one of `DATASETS`.
        source: the path, or an object of the library `datasets` for texts and questions.
        limit: at most so many examples, from `offset` on, every `every`-th one.
        options: what the set's reader takes, such as `split`.
    """
    if not isinstance(name, str) or name not in DATASETS:
        raise OptionError(f"there is no data set {name!r}. {suggest(str(name), DATASETS)}")
    if type(source) in NO_SOURCES:
        raise InputError(
            f"the source of {name} is a path, or an object of the library datasets, not {type(source).__name__}."
        )
    for option, value in {"limit": limit, "offset": offset, "every": every}.items():
        if not isinstance(value, int | None) or isinstance(value, bool):
            raise OptionError(f"{option} is a whole number, not {value!r}.")
    return DATASETS[name].open(source, **options).take(limit=limit, offset=offset, every=every)


__all__ = [
    "DATASETS",
    "IGNORE",
    "Box",
    "Dataset",
    "DatasetEntry",
    "Example",
    "GoldAnswer",
    "ImageExample",
    "QuestionExample",
    "Span",
    "TextExample",
    "load",
    "resize_mask",
]
