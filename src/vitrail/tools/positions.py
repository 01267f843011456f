"""Pictures larger than a model was made for, where its positions can be interpolated."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

INTERPOLATE = "interpolate_pos_encoding"
"""The keyword by which Hugging Face's models are asked to."""


def asked_to_interpolate(model: nn.Module) -> dict[str, Any]:
    """The keywords that make the model interpolate its positions; none if it takes none."""
    return {INTERPOLATE: True} if INTERPOLATE in inspect.signature(model.forward).parameters else {}


@contextmanager
def of_any_size(model: nn.Module) -> Iterator[None]:
    """Let a shadow of a timm model take pictures of any size, as if made with `dynamic_img_size=True`; then undo it."""
    patches = getattr(model, "patch_embed", None)
    if not hasattr(model, "dynamic_img_size") or not hasattr(patches, "strict_img_size") or model.dynamic_img_size:
        yield
        return
    from timm.layers.format import Format

    changes: list[tuple[Any, str, Any]] = [
        (model, "dynamic_img_size", True),
        (patches, "strict_img_size", False),
        (patches, "flatten", False),
        (patches, "output_fmt", Format.NHWC),
    ]
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)
