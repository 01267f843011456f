"""Which classes of a model are one of PASCAL VOC's twenty.

ImageNet has no class "person" or "potted plant": people stand in three of its classes, plants in that of flowerpots.
Cars leave out lorries and emergency vehicles, cats and dogs their wild relatives, as in VOC.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from vitrail.evaluate.data.coco import SPELT_IN_VOC
from vitrail.evaluate.data.imagenet import IMAGENETTE_SYNSETS
from vitrail.evaluate.data.segmented import VOC as VOC

# By VOC's class: numbers among ImageNet's 1,000 classes, (first, last) for neighbours.
IMAGENET: Mapping[str, tuple[int | tuple[int, int], ...]] = {
    "aeroplane": (404, 895),  # airliner, warplane
    "bicycle": (444, 671),  # tandem, mountain bike
    "bird": ((7, 24), (80, 100), (127, 146)),
    "boat": (403, 472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 871, 914),  # from aircraft carrier to yawl
    "bottle": (440, 720, 737, 898, 907),  # of beer, pills, soda, water, wine
    "bus": (654, 779, 874),  # minibus, school bus, trolleybus
    "car": (436, 468, 511, 609, 627, 656, 661, 751, 817),  # from estate car to sports car
    "cat": ((281, 285),),
    "chair": (423, 559, 765, 857),  # of a barber, folding, rocking, throne
    "cow": (345,),  # ox
    "diningtable": (532,),
    "dog": ((151, 268),),
    "horse": (339,),  # sorrel
    "motorbike": (665, 670),  # moped, scooter
    "person": ((981, 983),),  # baseball player, groom, diver
    "pottedplant": (738,),  # flowerpot
    "sheep": (348, 349),  # ram, bighorn
    "sofa": (831,),  # studio couch
    "train": (466, 547, 565, 705, 820, 829),  # bullet train, locomotives, carriages, tram
    "tvmonitor": (664, 782, 851),  # monitor, screen, television
}
COUNT = 1000
KNOWN = {0: "tench", 404: "airliner", 817: "sports car"}
"""Classes that tell ImageNet's numbering from another of 1,000 classes."""


def _numbers() -> dict[int, int]:
    """ImageNet's number -> VOC's."""
    found: dict[int, int] = {}
    for name, parts in IMAGENET.items():
        for part in parts:
            first, last = part if isinstance(part, tuple) else (part, part)
            found |= dict.fromkeys(range(first, last + 1), VOC.index(name))
    return found


NUMBERS = _numbers()
NAMED = {
    **{name: number for number, name in enumerate(VOC) if number},
    **{other: VOC.index(name) for other, name in SPELT_IN_VOC.items()},
    **{name.casefold(): NUMBERS[number] for name, number in IMAGENETTE_SYNSETS.values() if number in NUMBERS},
}
"""A class called like one of VOC, of COCO or of Imagenette -> VOC's number."""


@lru_cache(maxsize=8)
def voc_classes(names: tuple[str, ...] | None, count: int) -> dict[int, tuple[int, ...]]:
    """VOC's number -> the model's classes that are this class; by ImageNet's numbers, else by name."""
    if count == COUNT and (names is None or _is_imagenet(names)):
        pairs = list(NUMBERS.items())
    else:
        pairs = [(i, NAMED[word]) for i, label in enumerate(names or ()) for word in _words(label) if word in NAMED]
    return {wanted: tuple(sorted({i for i, number in pairs if number == wanted})) for _, wanted in pairs}


def _is_imagenet(names: Sequence[str]) -> bool:
    return all(name in _words(names[number]) for number, name in KNOWN.items())


def _words(label: str) -> set[str]:
    return {" ".join(part.casefold().replace("_", " ").split()) for part in label.split(",")}
