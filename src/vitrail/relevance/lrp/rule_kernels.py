"""Triton kernels for the entrywise rules: one pass over memory where torch makes seven. All arithmetic is float32."""

# ruff: noqa: ANN001, ANN201, PLR0913  (the compiler reads these functions, not Python)

import triton.language as tl

from vitrail.relevance.kernels import _jit


@_jit
def quotient(gradient, value, x, out, count, TINY: tl.constexpr, BLOCK: tl.constexpr):
    """`out = gradient * value / (x + TINY)`, entry by entry."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = places < count
    top = tl.load(gradient + places, mask=real, other=0.0).to(tl.float32)
    top = top * tl.load(value + places, mask=real, other=0.0).to(tl.float32)
    bottom = tl.load(x + places, mask=real, other=1.0).to(tl.float32) + TINY
    tl.store(out + places, (top / bottom).to(out.dtype.element_ty), mask=real)


@_jit
def layer_norm(gradient, x, weight, out, width, eps, WEIGHTED: tl.constexpr, CENTERED: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """One row of the gradient of a layer norm whose deviation is constant; its mean is too, unless CENTERED."""
    row = tl.program_id(0).to(tl.int64) * width
    places = tl.arange(0, BLOCK)
    real = places < width
    entries = tl.load(x + row + places, mask=real, other=0.0).to(tl.float32)
    apart = tl.where(real, entries - tl.sum(entries) / width, 0.0)
    scaled = tl.load(gradient + row + places, mask=real, other=0.0).to(tl.float32)
    if WEIGHTED:
        scaled = scaled * tl.load(weight + places, mask=real, other=0.0).to(tl.float32)
    scaled = scaled / tl.sqrt(tl.sum(apart * apart) / width + eps)
    if CENTERED:
        scaled = scaled - tl.sum(scaled) / width
    tl.store(out + row + places, scaled.to(out.dtype.element_ty), mask=real)
