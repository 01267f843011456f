"""What can be seen in a picture, in the pixels of what the model sees: objects by PASCAL VOC's classes, and boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import data
from vitrail.evaluate.data.examples import IGNORE, ImageExample

Size = tuple[int, int]
Boxes = list[list[float]]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one picture.

    Args:
        mask: VOC's class of every pixel; classes that the model does not know are ignored.
        classes: for every class of the mask, the class of the model that is explained for it.
    """

    mask: Tensor
    classes: Mapping[int, int]


def find_objects(example: ImageExample, size: Size, logits: Tensor, known: Mapping[int, Sequence[int]]) -> Objects:
    """The objects whose class the model knows; each is explained by the likeliest of the model's classes for it."""
    mask = example.mask
    assert mask is not None
    mask = data.resize_mask(mask, size)
    there = [int(value) for value in mask.unique() if value > 0]
    if not there:
        raise InputError("the mask shows none of PASCAL VOC's classes.")
    classes = {value: max(known[value], key=lambda c: float(logits[c])) for value in there if value in known}
    if not classes:
        raise InputError("the mask shows only classes that the model does not know.")
    for value in set(there) - set(classes):
        mask = mask.masked_fill(mask == value, IGNORE)
    return Objects(mask, classes)


def find_boxes(example: ImageExample, size: Size) -> Boxes:
    """Left, top, right, bottom of the boxes, cut where they leave the picture."""
    (wide, high), (height, width) = example.image.size, size
    cut = (
        (max(b.x0, 0) / wide, max(b.y0, 0) / high, min(b.x1, wide) / wide, min(b.y1, high) / high)
        for b in example.boxes
    )
    boxes = [[x0 * width, y0 * height, x1 * width, y1 * height] for x0, y0, x1, y1 in cut if x0 < x1 and y0 < y1]
    if not boxes:
        raise InputError("there are no boxes in this picture.")
    return boxes
