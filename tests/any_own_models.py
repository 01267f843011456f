"""Transformers written by hand, in the forms that teaching code and small libraries use."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from any_models import WORDS, Fused, Own, blocks, own
from torch import nn


class MinGPT(nn.Module):
    """A decoder in the form of teaching code: fused projection, masked_fill with -inf, weights tied by hand."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(24), nn.LayerNorm(24)
            self.c_attn, self.c_proj = nn.Linear(24, 72), nn.Linear(24, 24)
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(24, 40), "c_proj": nn.Linear(40, 24)})
            self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))
            self.drop = nn.Dropout(0.1)

        def attend(self, x):
            b, t, c = x.size()
            q, k, v = self.c_attn(x).split(24, dim=2)
            q, k, v = (y.view(b, t, 3, c // 3).transpose(1, 2) for y in (q, k, v))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            att = self.drop(F.softmax(att, dim=-1))
            return self.drop(self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c)))

        def forward(self, x):
            x = x + self.attend(self.ln_1(x))
            return x + self.drop(self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)))))

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, 24),
                "wpe": nn.Embedding(64, 24),
                "h": nn.ModuleList([self.Block(), self.Block()]),
                "ln_f": nn.LayerNorm(24),
            }
        )
        self.lm_head = nn.Linear(24, WORDS, bias=False)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.shape[1], device=idx.device)[None]
        x = self.transformer["wte"](idx) + self.transformer["wpe"](pos)
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        return logits, None


class XStyle(nn.Module):
    """Layers kept as lists of (norms, part, residual), gated feed-forward, no module for a block."""

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_q, self.to_k, self.to_v = (nn.Linear(24, 24, bias=False) for _ in range(3))
            self.to_out = nn.Linear(24, 24, bias=False)

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (3, 8)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
            dots = torch.einsum("bhid,bhjd->bhij", q, k) * 8**-0.5
            out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1, dtype=torch.float32).type(q.dtype), v)
            return self.to_out(out.transpose(1, 2).flatten(2))

    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(24, 80), nn.Linear(40, 24)

        def forward(self, x):
            x, gate = self.up(x).chunk(2, dim=-1)
            return self.down(x * F.silu(gate))

    class Residual(nn.Module):
        def forward(self, x, residual):
            return x + residual

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 24), nn.Linear(24, 5)
        kinds = [self.Attend, self.Feed] * 2
        self.layers = nn.ModuleList(
            [nn.ModuleList([nn.ModuleList([nn.LayerNorm(24)]), kind(), self.Residual()]) for kind in kinds]
        )

    def forward(self, ids):
        x = self.embed(ids)
        for (norm,), part, residual in self.layers:
            x = residual(part(norm(x)), x)
        return self.head(x[:, 0])


class PreNormWrapped(nn.Module):
    """The lucidrains form: `attn(x) + x` and `ff(x) + x` in a loop over pairs, the norm inside each part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(192, 24), nn.Linear(24, 5)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 17, 24))
        self.layers = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        nn.Sequential(nn.LayerNorm(24), XStyle.Attend()),
                        nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24)),
                    ]
                )
                for _ in range(2)
            ]
        )

    def forward(self, image):
        patches = image.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        x = torch.cat([self.cls.expand(len(image), -1, -1), self.embed(patches)], dim=1) + self.pos
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.head(x[:, 0])


class SeqFirst(nn.Module):
    """`nn.TransformerEncoder` with tokens first, the default of torch, and its padding mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 3, 40, **options)
        self.embed, self.encoder = nn.Embedding(WORDS, 24), nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(24))
        self.head, self.batch_first = nn.Linear(24, 5), options.get("batch_first", False)

    def forward(self, input_ids, attention_mask=None):
        padding = None if attention_mask is None else attention_mask == 0
        x = self.embed(input_ids)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=padding)
        return self.head(x[:, 0] if self.batch_first else x[0])


class CausalTorch(nn.Module):
    """`nn.TransformerEncoder` with a causal mask: a small language model of a tutorial."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)
        self.embed, self.head = nn.Embedding(WORDS, 24), nn.Linear(24, WORDS)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, input_ids):
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.encoder(self.embed(input_ids) * 24**0.5, mask=mask, is_causal=True))


class Regression(nn.Module):
    """One number for each sample, without an axis for it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Own(nn.Embedding(WORDS, 24), blocks(Fused, Fused))
        self.head = nn.Linear(5, 1)

    def forward(self, input_ids):
        return self.head(self.body(input_ids)).squeeze(-1)


class TwoHeads(nn.Module):
    """A distilled model in training form gives two logits; in evaluation their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Own(nn.Embedding(WORDS, 24), blocks(Fused, Fused))

    def forward(self, input_ids):
        logits = self.body(input_ids)
        return logits, logits * 2


class DictOut(TwoHeads):
    def forward(self, input_ids):
        return {"logits": self.body(input_ids), "features": None}


class Residuals(Fused):
    """Squares and norms beside the attention: queries and keys normalised to length one, a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(10.0))

    def attend(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return ((self.temperature * q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Rotary(Fused):
    """Rotary queries and keys by complex numbers."""

    def attend(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10.0 ** torch.arange(4, dtype=x.dtype)
        turn = torch.polar(torch.ones_like(angle), angle)

        def rotate(y):
            return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (4, 2)).contiguous()) * turn).flatten(-2)

        return F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True).transpose(1, 2).flatten(2)


class ReZero(Fused):
    """A learned factor before each sum and no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        x = x + self.a * self.out(self.attend(x))
        return x + self.b * self.feed(x)


class AttentionOnly(Fused):
    """No feed-forward part."""

    def forward(self, x):
        return x + self.out(self.attend(self.first(x)))


class NoResidual(Fused):
    """No skip around the attention."""

    def forward(self, x):
        return self.feed(self.second(self.out(self.attend(self.first(x)))))


class Sandwich(Fused):
    """Norms before and after each part."""

    def __init__(self) -> None:
        super().__init__()
        self.third, self.fourth = nn.LayerNorm(24), nn.RMSNorm(24)

    def forward(self, x):
        x = x + self.third(self.out(self.attend(self.first(x))))
        return x + self.fourth(self.feed(self.second(x)))


class ByHandOneHead(Fused):
    """One head, no axis for it, `torch.bmm` and `nn.Softmax`."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def attend(self, x):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        return torch.bmm(self.softmax(torch.bmm(q, k.transpose(1, 2)) / 24**0.5), v)


class ManualExp(Fused):
    """The softmax written out with exp and a sum."""

    def attend(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = ((q @ k.mT) * q.shape[-1] ** -0.5).exp()
        return ((scores / scores.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2)


class HeadsInBatch(Fused):
    """Heads folded into the batch."""

    def attend(self, x):
        b, t, _ = x.shape
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        scores = torch.baddbmm(torch.zeros(b * 3, t, t, dtype=x.dtype), q, k.mT, alpha=8**-0.5)
        out = torch.bmm(torch.softmax(scores, -1), v)
        return out.unflatten(0, (b, 3)).transpose(1, 2).flatten(2)


def worded(*kinds: type[nn.Module], first: bool = False) -> Callable[[], nn.Module]:
    return lambda: Own(nn.Embedding(WORDS, 24), blocks(*kinds), first=first)


OWN = {
    "min_gpt": own(MinGPT),
    "x_style": own(XStyle),
    "pre_norm_wrapped": own(PreNormWrapped, "pixels"),
    "torch_tokens_first": own(SeqFirst, "text"),
    "torch_tokens_first_prenorm": own(lambda: SeqFirst(norm_first=True), "text"),
    "torch_fast_path": own(lambda: SeqFirst(batch_first=True), "text"),
    "torch_gelu": own(lambda: SeqFirst(batch_first=True, activation="gelu", norm_first=True), "text"),
    "torch_causal": own(CausalTorch),
    "regression": replace(own(Regression), single=True),
    "two_outputs": own(TwoHeads),
    "dict_output": own(DictOut),
    "normalized": own(worded(Residuals, Residuals)),
    "complex_rotary": own(worded(Rotary, Rotary)),
    "re_zero": own(worded(ReZero, ReZero)),
    "attention_only": own(worded(AttentionOnly, AttentionOnly)),
    "no_residual": own(worded(NoResidual, NoResidual)),
    "sandwich": own(worded(Sandwich, Sandwich)),
    "one_head": own(worded(ByHandOneHead, ByHandOneHead)),
    "manual_exp": own(worded(ManualExp, ManualExp)),
    "heads_in_batch": own(worded(HeadsInBatch, HeadsInBatch)),
}
