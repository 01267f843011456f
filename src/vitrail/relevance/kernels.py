"""Triton kernels: sums over attention maps, lengths and angles of token vectors, and entrywise rules.

No attention map is ever written to memory, and every operand is read once.

A tile of A comes from q, k and the logarithm of the softmax's denominator, a tile of G = ds/dA from the output's
gradient and v. `pull` tiles maps transposed, `[k, q]`, so that its sums over queries stay inside a warp. All
accumulation is float32. In the names of arguments `q_b` is the stride of q along the batch, and so on; `WEIGH` says
what an entry is worth, by the names of `vitrail.relevance.dense`. A name keeps its shape through a loop.
"""

# ruff: noqa: ANN001, ANN202, ANN201, C901, PLR0913, RET505  (the compiler reads these functions, not Python)

import inspect

import triton
import triton.language as tl
from triton import OutOfResources as OutOfResources

LOG2E = tl.constexpr(1.4426950408889634)
SCAN = tl.constexpr(1024)  # rows looked at together by `_span`


def _jit(function):
    """The compiled function, unwrapped first: a type checker may have wrapped it, and Triton reads its source."""
    return triton.jit(inspect.unwrap(function))


@_jit
def _place(blocks, heads, groups):
    """Return the block, sample, head and key head a program works on; neighbours share a head, and so a cache."""
    program = tl.program_id(0)
    head = (program // blocks) % heads
    sample = (program // blocks // heads).to(tl.int64)
    return program % blocks, sample, head.to(tl.int64), (head // groups).to(tl.int64)


@_jit
def _seen(scores, scale, mask, offs_q, offs_k, mask_q, mask_k, lowest, queries, keys, MASK: tl.constexpr,
          CAUSAL: tl.constexpr):  # fmt: skip
    """Scores in units of log2, mask added, and which entries may be seen; offsets broadcast to the tile."""
    scores = scores * (scale * LOG2E)
    seen = (offs_k < keys) & (offs_q < queries)
    if CAUSAL:
        seen = seen & (offs_k <= offs_q)
    if MASK != "none":
        given = tl.load(mask + offs_q.to(tl.int64) * mask_q + offs_k.to(tl.int64) * mask_k, mask=seen, other=0)
        if MASK == "bool":
            seen = seen & (given != 0)
        else:
            given = given.to(tl.float32)
            # Frameworks write "masked" as -inf or as a number near the lowest the dtype holds.
            seen = seen & (given > lowest)
            scores = scores + tl.where(seen, given, 0.0) * LOG2E
    return scores, seen


@_jit
def _worth(probs, gradient, shift, WEIGH: tl.constexpr):
    """Return the weight of entries by A and G; `shift` is each row's sum of A * G."""
    if WEIGH == "positive":
        return probs * tl.maximum(gradient, 0.0)
    elif WEIGH == "complete":
        return probs * gradient
    elif WEIGH == "magnitude":
        return probs * tl.abs(gradient)
    elif WEIGH == "score_gradient":
        return probs * (gradient - shift)
    elif WEIGH == "positive_gradient":
        return tl.maximum(gradient, 0.0)
    else:
        return gradient


@_jit
def _span(rows, queries):
    """The first and the last row that count, where most may be zero."""
    first, last = queries, 0
    for start in range(0, queries, SCAN):
        offs = start + tl.arange(0, SCAN)
        counts = tl.load(rows + offs, mask=offs < queries, other=0.0) != 0
        first = tl.minimum(first, tl.min(tl.where(counts, offs, queries)))
        last = tl.maximum(last, tl.max(tl.where(counts, offs + 1, 0)))
    return first, last


@_jit
def pull(q, k, v, dz, lse, delta, rows, mask, out, q_b, q_h, q_t, k_b, k_g, k_t, v_b, v_g, v_t, z_b, z_h, z_t, l_b, l_h,
         mask_b, mask_h, mask_q, mask_k, scale, lowest, heads, groups, queries, keys, d, e, WEIGH: tl.constexpr,
         MASK: tl.constexpr, CAUSAL: tl.constexpr, SPARSE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_Q: tl.constexpr,
         BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr):  # fmt: skip
    """One block of keys of `out[b, h, k] = sum_q rows[b, q] * w[b, h, q, k]`."""
    HAS_A: tl.constexpr = (WEIGH != "gradient") and (WEIGH != "positive_gradient")
    HAS_G: tl.constexpr = WEIGH != "attention"
    block, b, h, g = _place(tl.cdiv(keys, BLOCK_K), heads, groups)
    offs_k = block * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_d, offs_e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    real_k = (offs_k < keys)[:, None]
    key, value = 0.0, 0.0
    if HAS_A:
        key_at = k + b * k_b + g * k_g + offs_k[:, None] * k_t + offs_d[None, :]
        key = tl.load(key_at, mask=real_k & (offs_d < d)[None, :], other=0.0)
    if HAS_G:
        value_at = v + b * v_b + g * v_g + offs_k[:, None] * v_t + offs_e[None, :]
        value = tl.load(value_at, mask=real_k & (offs_e < e)[None, :], other=0.0)
    q += b * q_b + h * q_h
    dz += b * z_b + h * z_h
    lse += b * l_b + h * l_h
    delta += (b * heads + h) * queries
    rows += b * queries
    mask += b * mask_b + h * mask_h
    first, last = 0, queries
    if SPARSE:
        first, last = _span(rows, queries)
    if CAUSAL:
        first = tl.maximum(first, block * BLOCK_K)
    total = tl.zeros([BLOCK_K], dtype=tl.float32)
    for start in range(first // BLOCK_Q * BLOCK_Q, last, BLOCK_Q):
        offs_q = start + tl.arange(0, BLOCK_Q)
        real_q = offs_q < queries
        row = tl.load(rows + offs_q, mask=real_q, other=0.0)
        worth = tl.zeros([BLOCK_K, BLOCK_Q], dtype=tl.float32)
        if HAS_A:
            query_at = q + offs_q[None, :] * q_t + offs_d[:, None]
            query = tl.load(query_at, mask=real_q[None, :] & (offs_d < d)[:, None], other=0.0)
            worth = tl.dot(key, query, input_precision=PRECISION)
        worth, seen = _seen(
            worth, scale, mask, offs_q[None, :], offs_k[:, None], mask_q, mask_k, lowest, queries, keys, MASK, CAUSAL
        )
        if HAS_A:
            worth = tl.exp2(worth - tl.load(lse + offs_q, mask=real_q, other=0.0)[None, :] * LOG2E)
        if HAS_G:
            upstream_at = dz + offs_q[None, :] * z_t + offs_e[:, None]
            upstream = tl.load(upstream_at, mask=real_q[None, :] & (offs_e < e)[:, None], other=0.0)
            gradient = tl.dot(value, upstream, input_precision=PRECISION)
            shift = tl.zeros([BLOCK_Q], dtype=tl.float32)
            if WEIGH == "score_gradient":
                shift = tl.load(delta + offs_q, mask=real_q, other=0.0)
            worth = _worth(worth, gradient, shift[None, :], WEIGH)
        if CAUSAL or MASK != "none":  # else what is out of reach has row zero or is not stored
            worth = tl.where(seen, worth, 0.0)
        total += tl.sum(worth * row[None, :], axis=1)
    tl.store(out + (b * heads + h) * keys + offs_k, total, mask=offs_k < keys)


@_jit
def logsumexp(q, k, mask, out, q_b, q_h, q_t, k_b, k_g, k_t, mask_b, mask_h, mask_q, mask_k, scale, lowest, heads,
              groups, queries, keys, d, MASK: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
              BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One block of queries of the logarithm of the softmax's denominator, `[b, h, q]`."""
    block, b, h, g = _place(tl.cdiv(queries, BLOCK_Q), heads, groups)
    offs_q, offs_d = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    real_q = offs_q < queries
    query_at = q + b * q_b + h * q_h + offs_q[:, None] * q_t + offs_d[None, :]
    query = tl.load(query_at, mask=real_q[:, None] & (offs_d < d)[None, :], other=0.0)
    k += b * k_b + g * k_g
    mask += b * mask_b + h * mask_h
    highest = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_Q], dtype=tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, (block + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        key_at = k + offs_k[None, :] * k_t + offs_d[:, None]
        key = tl.load(key_at, mask=(offs_k < keys)[None, :] & (offs_d < d)[:, None], other=0.0)
        scores = tl.dot(query, key, input_precision=PRECISION)
        scores, seen = _seen(
            scores, scale, mask, offs_q[:, None], offs_k[None, :], mask_q, mask_k, lowest, queries, keys, MASK, CAUSAL
        )
        scores = tl.where(seen, scores, float("-inf"))
        raised = tl.maximum(highest, tl.max(scores, axis=1))
        base = tl.where(raised == float("-inf"), 0.0, raised)  # a row that has seen nothing yet
        total = total * tl.exp2(highest - base) + tl.sum(tl.exp2(scores - base[:, None]), axis=1)
        highest = raised
    # Whoever may see nothing has no map: with +inf here its row of A is zero.
    found = tl.where(total > 0, (highest + tl.log2(tl.where(total > 0, total, 1.0))) / LOG2E, float("inf"))
    tl.store(out + (b * heads + h) * queries + offs_q, found, mask=real_q)


@_jit
def push(q, k, columns, lse, mask, out, q_b, q_h, q_t, k_b, k_g, k_t, l_b, l_h, mask_b, mask_h, mask_q, mask_k, scale,
         lowest, heads, groups, queries, keys, d, c, MASK: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
         BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """One block of queries of `out[b, h] = A[b, h] @ columns[b]`, `[b, h, q, c]`."""
    block, b, h, g = _place(tl.cdiv(queries, BLOCK_Q), heads, groups)
    offs_q, offs_d, offs_c = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_C)
    real_q = offs_q < queries
    query_at = q + b * q_b + h * q_h + offs_q[:, None] * q_t + offs_d[None, :]
    query = tl.load(query_at, mask=real_q[:, None] & (offs_d < d)[None, :], other=0.0)
    normaliser = tl.load(lse + b * l_b + h * l_h + offs_q, mask=real_q, other=0.0) * LOG2E
    k += b * k_b + g * k_g
    columns += b * keys * c
    mask += b * mask_b + h * mask_h
    total = tl.zeros([BLOCK_Q, BLOCK_C], dtype=tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, (block + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        real_k = offs_k < keys
        key_at = k + offs_k[None, :] * k_t + offs_d[:, None]
        key = tl.load(key_at, mask=real_k[None, :] & (offs_d < d)[:, None], other=0.0)
        scores = tl.dot(query, key, input_precision=PRECISION)
        scores, seen = _seen(
            scores, scale, mask, offs_q[:, None], offs_k[None, :], mask_q, mask_k, lowest, queries, keys, MASK, CAUSAL
        )
        probs = tl.where(seen, tl.exp2(scores - normaliser[:, None]), 0.0)
        pushed_at = columns + offs_k[:, None] * c + offs_c[None, :]
        pushed = tl.load(pushed_at, mask=real_k[:, None] & (offs_c < c)[None, :], other=0.0)
        total += tl.dot(probs, pushed, input_precision="tf32x3")
    out_at = out + (b * heads + h) * queries * c + offs_q[:, None] * c + offs_c[None, :]
    tl.store(out_at, total, mask=real_q[:, None] & (offs_c < c)[None, :])


@_jit
def token_lengths(x, y, z, x_length, y_length, z_length, product, width, PAIR: tl.constexpr, BLOCK: tl.constexpr):
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
def head_changes(v, back, gram, length, product, v_b, v_g, v_t, count, groups, tokens, d, BLOCK_T: tl.constexpr,
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
def change_weights(length, product, original, valid, out, count, tokens, TINY: tl.constexpr, LENGTHS: tl.constexpr,
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
