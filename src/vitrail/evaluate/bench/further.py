"""Which other classes a metric wants explained, for each example of a batch."""

from collections.abc import Callable

from vitrail.evaluate.bench.batches import Batch
from vitrail.evaluate.bench.pictures import Pictures

Classes = tuple[int, ...]
Further = Callable[[Batch, Classes], tuple[Classes, ...]]


def no_other(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """None."""
    return ((),) * len(batch.keys)


def neighbour(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """Another one, as AttCAT's code chooses it: the one before, 1 for class 0."""
    return tuple((c - 1 if c > 0 else 1,) for c in classes)


def rival(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """The likeliest beside the explained one; none where the model has but one class."""
    logits = batch.logits.clone()
    for row, c in enumerate(classes):
        logits[row, c] = -float("inf")
    return tuple((c,) if logits.shape[1] > 1 else () for c in logits.argmax(dim=1).tolist())


def of_objects(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """One for every class of PASCAL VOC that can be seen."""
    assert isinstance(batch, Pictures)
    return tuple(() if isinstance(found, str) else tuple(found.classes.values()) for found in batch.objects)
