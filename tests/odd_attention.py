"""A tiny ViT whose blocks write their attention in many ways, and gae of it by plain autograd."""

import torch
import torch.nn.functional as F
from torch import nn


@torch.jit.script
def scripted(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


def plain(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def heads_one_by_one(attend):
    """Attention of single matrices `[t, d]`, head by head."""

    def every(q, k, v):
        rows = [
            torch.stack([attend(*one) for one in zip(*sample, strict=True)]) for sample in zip(q, k, v, strict=True)
        ]
        return torch.stack(rows)

    return every


def in_chunks(q, k, v):
    scores = [q @ some.mT for some in k.chunk(2, 2)]
    largest = torch.stack([some.amax(-1) for some in scores]).amax(0)[..., None]
    powers = [(some - largest).exp() for some in scores]
    total = sum(some.sum(-1, keepdim=True) for some in powers)
    return sum(some @ values for some, values in zip(powers, v.chunk(2, 2), strict=True)) / total


def heads_before_samples(q, k, v):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).transpose(0, 1)


def normalised_later(q, k, v):
    powers = (q @ k.mT).exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


def less_logsumexp(q, k, v):
    scores = q @ k.mT
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def only_for_the_class(q, k, v):
    return torch.cat([(q @ k.mT).softmax(-1)[:, :, :1] @ v, torch.zeros_like(v)[:, :, 1:]], dim=2)


def by_kernel(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(2)[..., None])


SOFTMAX = {
    "plain": plain,
    "keys first": lambda q, k, v: (k @ q.mT).softmax(-2).mT @ v,
    "e to a log-softmax": lambda q, k, v: (q @ k.mT).log_softmax(-1).exp() @ v,
    "sum of products": lambda q, k, v: ((q @ k.mT).softmax(-1)[..., None] * v[:, :, None]).sum(-2),
    "vecdot": lambda q, k, v: torch.linalg.vecdot((q @ k.mT).softmax(-1)[..., None, :], v.mT[:, :, None]),
    "heads before samples": heads_before_samples,
    "softmin": lambda q, k, v: F.softmin(-(q @ k.mT), dim=-1) @ v,
    "aten softmax": lambda q, k, v: torch.ops.aten.softmax(q @ k.mT, -1) @ v,
    "aten sdpa": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v, scale=1.0),
    "tensordot": heads_one_by_one(
        lambda q, k, v: torch.tensordot(torch.tensordot(q, k, dims=([1], [1])).softmax(-1), v, dims=1)
    ),
    "mm": heads_one_by_one(lambda q, k, v: torch.mm(torch.mm(q, k.T).softmax(-1), v)),
    "mv": heads_one_by_one(
        lambda q, k, v: torch.stack([torch.mv(v.T, torch.mv(k, row).softmax(-1)) for row in q.unbind(0)])
    ),
    "linear": heads_one_by_one(lambda q, k, v: F.linear((q @ k.T).softmax(-1), v.T)),
    "normalised later": normalised_later,
    "less logsumexp": less_logsumexp,
    "chunks of keys": in_chunks,
    "scripted": lambda q, k, v: scripted(q, k, v),
}
"""Ways to write softmax attention over all tokens, without a scale."""
OTHER = {
    "only for the class": only_for_the_class,
    "sigmoid": lambda q, k, v: (q @ k.mT).sigmoid() @ v / k.shape[2],
    "relu": lambda q, k, v: (q @ k.mT).relu() @ v / k.shape[2],
    "linear attention": by_kernel,
    "mean of all": lambda q, k, v: v.mean(2, keepdim=True).expand_as(v),
    "neighbours": lambda q, k, v: (v + v.roll(1, 2)) / 2,
    "running mean": lambda q, k, v: v.cumsum(2) / v.shape[2],
}
"""What else moves information between tokens."""


class Block(nn.Module):
    """A block; `maps` keeps its attention maps where they are asked for."""

    def __init__(self, form=plain, width=16, heads=2):
        super().__init__()
        self.form, self.heads, self.maps = form, heads, None
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def split(self, x):
        b, t, d = x.shape
        return (
            y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=2)
        )

    def attend(self, x):
        q, k, v = self.split(x)
        if self.maps is not None:
            self.maps.append((q @ k.mT).softmax(-1))
            out = self.maps[-1] @ v
        else:
            out = self.form(q, k, v)
        return self.proj(out.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.ffn(x)


class OddBlock(Block):
    """A block of another class."""


class ViT(nn.Module):
    """A ViT whose answer is read from the class token, from the mean of all tokens, or as `read` says."""

    def __init__(self, blocks, readout="class", read=None):
        super().__init__()
        self.embed, self.cls = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
        self.pos, self.blocks = nn.Parameter(torch.randn(1, 10, 16)), nn.ModuleList(blocks)
        self.norm, self.head, self.readout, self.read = nn.LayerNorm(16), nn.Linear(16, 3), readout, read

    def forward(self, images):
        x = self.embed(images).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.read is not None:
            return self.head(self.read(x))
        return self.head(x[:, 0] if self.readout == "class" else x.mean(dim=1))


def vit(*forms, readout="class", read=None):
    """A model of three blocks with this attention in each; None for a plain block."""
    torch.manual_seed(1)
    blocks = [Block() if form is None else OddBlock(form) for form in forms]
    model = ViT(blocks, readout, read)
    if isinstance(read, nn.Module):
        model.pooling = read
    return model.double().eval()


def images():
    return torch.randn(2, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def gae_by_autograd(model, x, target):
    """The answer of a model whose blocks all attend plainly, and its gae, by eager autograd."""
    maps = []
    for block in model.blocks:
        block.maps = maps
    try:
        answer = model(x)
    finally:
        for block in model.blocks:
            block.maps = None
    gradients = torch.autograd.grad(answer[:, target].sum(), maps)
    scores = torch.zeros(len(x), 10, dtype=x.dtype)
    scores[:, 0 if model.readout == "class" else slice(None)] = 1 if model.readout == "class" else 0.1
    for weights, gradient in zip(reversed(maps), reversed(gradients), strict=True):
        scores = scores + torch.einsum("bq,bqk->bk", scores, (weights * gradient).clamp(min=0).mean(dim=1))
    return answer, scores[:, 1:].detach()
