"""Triton kernels for lengths and angles of token vectors: each reads its operands once. All arithmetic is float32."""

# ruff: noqa: ANN001, ANN201, PLR0913  (the compiler reads these functions, not Python)

import triton.language as tl

from vitrail.relevance.kernels import _jit


@_jit
def rows(x, y, z, x_length, y_length, z_length, product, width, PAIR: tl.constexpr, BLOCK: tl.constexpr):
    """For one token: the length of x, and with PAIR also the lengths of y and z and their scalar product."""
    token = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    real = places < width
    own = tl.load(x + token * width + places, mask=real, other=0.0).to(tl.float32)
    tl.store(x_length + token, tl.sqrt(tl.sum(own * own)))
    if PAIR:
        first = tl.load(y + token * width + places, mask=real, other=0.0).to(tl.float32)
        second = tl.load(z + token * width + places, mask=real, other=0.0).to(tl.float32)
        tl.store(y_length + token, tl.sqrt(tl.sum(first * first)))
        tl.store(z_length + token, tl.sqrt(tl.sum(second * second)))
        tl.store(product + token, tl.sum(first * second))


@_jit
def heads(v, back, gram, length, product, v_b, v_g, v_t, count, groups, tokens, d, BLOCK_T: tl.constexpr,
          BLOCK_D: tl.constexpr):  # fmt: skip
    """For one head and some tokens: `sqrt(v^T G v)`, and the scalar product of v with what came back to it."""
    head, sample = tl.program_id(1) % count, (tl.program_id(1) // count).to(tl.int64)
    offs_t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_d = tl.arange(0, BLOCK_D)
    real = (offs_t < tokens)[:, None] & (offs_d < d)[None, :]
    value_at = v + sample * v_b + (head // groups) * v_g + offs_t[:, None].to(tl.int64) * v_t + offs_d[None, :]
    value = tl.load(value_at, mask=real, other=0.0).to(tl.float32)
    square = (offs_d < d)[:, None] & (offs_d < d)[None, :]
    own = tl.load(gram + head * d * d + offs_d[:, None] * d + offs_d[None, :], mask=square, other=0.0)
    squared = tl.sum(tl.dot(value, own, input_precision="tf32x3") * value, axis=1)
    back_at = back + ((sample * tokens + offs_t[:, None]) * count + head) * d + offs_d[None, :]
    products = tl.sum(tl.load(back_at, mask=real, other=0.0).to(tl.float32) * value, axis=1)
    found_at = (sample * count + head) * tokens + offs_t
    tl.store(length + found_at, tl.sqrt(tl.maximum(squared, 0.0)), mask=offs_t < tokens)
    tl.store(product + found_at, products, mask=offs_t < tokens)


@_jit
def weights(length, product, original, valid, out, count, tokens, TINY: tl.constexpr, LENGTHS: tl.constexpr,
            DIRECTIONS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """For one head: the length ratio, times the softmax of the cosines over all real tokens."""
    row, sample = tl.program_id(0).to(tl.int64) * tokens, (tl.program_id(0) // count).to(tl.int64) * tokens
    places = tl.arange(0, BLOCK)
    real = places < tokens
    new = tl.load(length + row + places, mask=real, other=0.0)
    old = tl.load(original + sample + places, mask=real, other=1.0)
    found = tl.full([BLOCK], 1.0, dtype=tl.float32)
    if LENGTHS:
        found = new / tl.maximum(old, TINY)
    if DIRECTIONS:
        seen = real & (tl.load(valid + sample + places, mask=real, other=0) != 0)
        cosine = tl.load(product + row + places, mask=real, other=0.0) / tl.maximum(new * old, TINY)
        cosine = tl.where(seen, cosine, float("-inf"))
        shares = tl.exp(cosine - tl.max(cosine))
        found = found * (shares / tl.sum(shares))
    tl.store(out + row + places, found, mask=real)
