"""The parts of a model: tables by family, and how a model is looked up in them."""

from torch import nn

from vitrail.errors import AnatomyError
from vitrail.models.anatomy.families import (
    FAMILIES,
    TIMM_CLASSES,
    TextTower,
    huggingface_anatomy,
    text_anatomy,
    timm_anatomy,
    torchvision_anatomy,
)
from vitrail.models.anatomy.parts import Anatomy, Block, Body, Finder, resolve

FINDERS: tuple[Finder, ...] = (
    text_anatomy,
    huggingface_anatomy,
    timm_anatomy,
    torchvision_anatomy,
)


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of a model of a known family; None for all others."""
    return next((found for finder in FINDERS if (found := finder(model)) is not None), None)


def anatomy(model: nn.Module) -> Anatomy:
    """The anatomy of a model of a known family."""
    if (found := known_anatomy(model)) is not None:
        return found
    lists = [n for n, m in model.named_modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    raise AnatomyError(
        f"no anatomy is known for {type(model).__name__}. Looked for: Hugging Face "
        f"{', '.join(FAMILIES)}; timm {', '.join(sorted(TIMM_CLASSES))}; torchvision "
        f"VisionTransformer. Found lists of modules at: {', '.join(lists) or 'nowhere'}. "
        "Name the parts yourself: vitrail.explain(..., anatomy=vitrail.Anatomy(blocks='encoder.layers', "
        "prefix=1, readout='cls', ...)); attention-only methods need no more than prefix and readout."
    )


__all__ = ["Anatomy", "Block", "Body", "TextTower", "anatomy", "known_anatomy", "resolve"]
