"""Would a backward pass that also sums the relevance row be faster than the library's, followed by our kernel?

A backward pass of attention in Triton has every tile that `gae` needs: one kernel for dK, dV and the row, four
products, one for dQ, three. Here both are written, checked against autograd, and timed against what `vitrail` does: the
backward pass that torch chooses, five products, and `pull`, two. The best of several tilings counts.

    python benchmarks/joint.py          # on a GPU; without one, a check in Triton's interpreter
"""

# ruff: noqa: PLR0913  (the compiler reads the kernels, not Python)

import os
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

from vitrail.capture.recording.layer import Layer
from vitrail.capture.seams.call import kept_logsumexp
from vitrail.relevance import dense, fused

LOG2E = tl.constexpr(1.4426950408889634)
SHAPES = [(8, 16, 1370, 64), (1, 16, 4096, 64), (1, 16, 16384, 64), (1, 8, 16384, 128)]
TILINGS_KV = [(64, 128, 8, 2), (64, 128, 8, 3), (64, 64, 4, 3), (32, 128, 4, 3), (64, 128, 4, 2), (128, 128, 8, 2)]
TILINGS_Q = [(128, 64, 8, 3), (64, 64, 4, 3), (128, 64, 4, 3), (128, 128, 8, 2)]


@triton.jit
def keys_and_row(q, k, v, dz, lse, delta, rows, dk, dv, out, n, heads, scale, D: tl.constexpr, BLOCK_Q: tl.constexpr,
                 BLOCK_K: tl.constexpr):  # fmt: skip
    """One block of keys of dK and dV, and of `sum_q rows[q] * A+[q, k]`."""
    blocks = tl.cdiv(n, BLOCK_K)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    offs_k = (tl.program_id(0) % blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_d, real_k = tl.arange(0, D), (offs_k < n)[:, None]
    at = head * n * D + offs_k[:, None] * D + offs_d[None, :]
    key, value = tl.load(k + at, mask=real_k, other=0.0), tl.load(v + at, mask=real_k, other=0.0)
    key_grad, value_grad = tl.zeros([BLOCK_K, D], tl.float32), tl.zeros([BLOCK_K, D], tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, n, BLOCK_Q):
        offs_q = start + tl.arange(0, BLOCK_Q)
        real_q = offs_q < n
        here = head * n * D + offs_q[:, None] * D + offs_d[None, :]
        query = tl.load(q + here, mask=real_q[:, None], other=0.0)
        upstream = tl.load(dz + here, mask=real_q[:, None], other=0.0)
        row = tl.load(rows + head // heads * n + offs_q, mask=real_q, other=0.0)
        normaliser = tl.load(lse + head * n + offs_q, mask=real_q, other=float("inf")) * LOG2E
        probs = tl.exp2(tl.dot(key, tl.trans(query)) * (scale * LOG2E) - normaliser[None, :])
        gradient = tl.dot(value, tl.trans(upstream))
        total += tl.sum(probs * tl.maximum(gradient, 0.0) * row[None, :], axis=1)
        value_grad += tl.dot(probs.to(upstream.dtype), upstream)
        inner = probs * (gradient - tl.load(delta + head * n + offs_q, mask=real_q, other=0.0)[None, :])
        key_grad += tl.dot(inner.to(query.dtype), query)
    tl.store(dk + at, (key_grad * scale).to(key.dtype), mask=real_k)
    tl.store(dv + at, value_grad.to(key.dtype), mask=real_k)
    tl.store(out + head * n + offs_k, total, mask=offs_k < n)


@triton.jit
def queries(q, k, v, dz, lse, delta, dq, n, scale, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """One block of queries of dQ."""
    blocks = tl.cdiv(n, BLOCK_Q)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    offs_q = (tl.program_id(0) % blocks) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    offs_d, real_q = tl.arange(0, D), offs_q < n
    at = head * n * D + offs_q[:, None] * D + offs_d[None, :]
    query = tl.load(q + at, mask=real_q[:, None], other=0.0)
    upstream = tl.load(dz + at, mask=real_q[:, None], other=0.0)
    normaliser = tl.load(lse + head * n + offs_q, mask=real_q, other=0.0) * LOG2E
    shift = tl.load(delta + head * n + offs_q, mask=real_q, other=0.0)
    total = tl.zeros([BLOCK_Q, D], tl.float32)
    for start in range(0, n, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        here = head * n * D + offs_k[:, None] * D + offs_d[None, :]
        key = tl.load(k + here, mask=(offs_k < n)[:, None], other=0.0)
        value = tl.load(v + here, mask=(offs_k < n)[:, None], other=0.0)
        probs = tl.exp2(tl.dot(query, tl.trans(key)) * (scale * LOG2E) - normaliser[:, None])
        inner = probs * (tl.dot(upstream, tl.trans(value)) - shift[:, None])
        total += tl.dot(inner.to(key.dtype), key)
    tl.store(dq + at, (total * scale).to(query.dtype), mask=real_q[:, None])


class Case:
    """One attention layer, its gradient and a row of relevance."""

    def __init__(self, shape: tuple[int, int, int, int], device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.batch, self.heads, self.n, self.d = shape
        self.query, self.key, self.value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
        self.leaves = [x.requires_grad_() for x in (self.query, self.key, self.value)]
        self.output = F.scaled_dot_product_attention(*self.leaves)
        self.upstream, self.rows = torch.randn_like(self.output), torch.rand(self.batch, self.n, device=device)
        scores = kept_logsumexp(self.output, self.query)
        assert scores is not None
        self.lse = scores.contiguous()
        self.layer = Layer(
            index=0, depth=2, valid=torch.ones_like(self.rows, dtype=torch.bool), readout=self.rows,
            query=self.query.detach(), key=self.key.detach(), value=self.value.detach(), output=self.output.detach(),
            output_grad=self.upstream, logsumexp=self.lse, scale=self.d**-0.5, backend="fused",
        )  # fmt: skip

    def library(self) -> tuple[Tensor, ...]:
        """The backward pass that torch chooses."""
        return torch.autograd.grad(self.output, self.leaves, self.upstream, retain_graph=True)

    def pull(self) -> Tensor:
        """Our kernel for the row."""
        return fused.pull(self.layer, self.rows, dense.positive)

    def delta(self) -> Tensor:
        """Each query's sum of A * G."""
        return (self.output.detach().float() * self.upstream.float()).sum(dim=3)

    def joint_keys(self, delta: Tensor, tiling: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of keys and values, and the row."""
        block_q, block_k, warps, stages = tiling
        dk, dv = torch.empty_like(self.key), torch.empty_like(self.value)
        out = torch.empty(self.batch, self.heads, self.n, device=self.key.device)
        grid = (-(-self.n // block_k) * self.batch * self.heads,)
        keys_and_row[grid](
            *(x.detach() for x in self.leaves), self.upstream, self.lse, delta, self.rows, dk, dv, out, self.n,
            self.heads, self.d**-0.5, D=self.d, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return dk, dv, out

    def joint_queries(self, delta: Tensor, tiling: tuple[int, int, int, int]) -> Tensor:
        """The gradient of queries."""
        block_q, block_k, warps, stages = tiling
        dq = torch.empty_like(self.query)
        grid = (-(-self.n // block_q) * self.batch * self.heads,)
        queries[grid](
            *(x.detach() for x in self.leaves), self.upstream, self.lse, delta, dq, self.n, self.d**-0.5, D=self.d,
            BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return dq

    def check(self, tolerance: float) -> None:
        """Raise unless the joint kernels give what autograd and `pull` give."""
        delta = self.delta()
        dk, dv, row = self.joint_keys(delta, TILINGS_KV[2])
        found = {"dq": self.joint_queries(delta, TILINGS_Q[1]), "dk": dk, "dv": dv, "row": row}
        for (name, mine), expected in zip(found.items(), (*self.library(), self.pull()), strict=True):
            error = float((mine.float() - expected.float()).abs().max() / expected.float().abs().max())
            if not error < tolerance:
                raise SystemExit(f"{name} is off by {error:.1e} of its largest entry")


def milliseconds(run: Callable[[], object], times: int = 10) -> float:
    """The smallest mean over three rounds."""
    run()
    found = []
    for _ in range(3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / times)
    return min(found)


def best(run: Callable[[tuple[int, int, int, int]], object], tilings: Iterable[tuple[int, int, int, int]]) -> float:
    """The time of the fastest tiling that fits."""
    found = []
    for tiling in tilings:
        try:
            found.append(milliseconds(lambda tiling=tiling: run(tiling)))
        except triton.runtime.errors.OutOfResources:
            continue
    return min(found)


def main() -> None:
    """Check, then print one line for each shape."""
    if not torch.cuda.is_available():
        Case((1, 2, 70, 16), "cpu", torch.float32).check(1e-4)
        print("the kernels agree with autograd; there is no GPU to time them on")
        return
    print("| batch, heads, tokens, width | library's backward | `pull` | dK, dV, row | dQ | joint | joint / (both) |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for shape in SHAPES:
        case = Case(shape, "cuda", torch.bfloat16)
        case.check(2e-2)
        delta = case.delta()
        library, pull, shift = milliseconds(case.library), milliseconds(case.pull), milliseconds(case.delta)
        keys = best(lambda tiling, case=case, delta=delta: case.joint_keys(delta, tiling), TILINGS_KV)
        rest = best(lambda tiling, case=case, delta=delta: case.joint_queries(delta, tiling), TILINGS_Q)
        joint = keys + rest + shift
        times = " | ".join(f"{x:.3f}" for x in (library, pull, keys, rest, joint))
        print(f"| {', '.join(map(str, shape))} | {times} | {joint / (library + pull):.2f} |", flush=True)


if __name__ == "__main__":
    main()
