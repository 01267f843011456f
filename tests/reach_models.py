"""Small models in which some tokens cannot reach the answer, and which those are, found without Vitrail."""

from collections.abc import Callable
from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 40
WIDTH, HEADS = 24, 3


def sees_all(tokens: int) -> torch.Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool)


def causal(tokens: int) -> torch.Tensor:
    return sees_all(tokens).tril()


def strictly_causal(tokens: int) -> torch.Tensor:
    """No token sees itself; the first one, which would see nothing, does."""
    return sees_all(tokens).tril(-1) | (torch.arange(tokens) == 0).diag()


def window(tokens: int, width: int = 1) -> torch.Tensor:
    places = torch.arange(tokens)
    return (places[:, None] - places).abs() <= width


def packed(*lengths: int) -> torch.Tensor:
    return torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()


class Block(nn.Module):
    """Attention with whatever mask it is given, and a feed-forward part."""

    def __init__(self, *, by_hand: bool = False) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH))

    def attend(self, q, k, v, mask):
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9) if mask.dtype is torch.bool else scores + mask
        return scores.softmax(dim=-1) @ v

    def forward(self, x, mask=None):
        def heads(y):
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        y = self.norm(x)
        q, k, v = heads(self.query(y)), heads(self.key(y)), heads(self.value(y))
        x = x + self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return x + self.ffn(self.ffn_norm(x))


Read = Callable[[torch.Tensor], torch.Tensor]
READS: dict[str, Read] = {
    "every": lambda x: x,
    "first": lambda x: x[:, 0],
    "mean": lambda x: x.mean(dim=1),
}


class Small(nn.Module):
    """Words, blocks and a head.

    Args:
        pattern: which token may see which, if the model decides it.
        read: what the head is given of the tokens.
        additive: write masks as numbers that are added to the scores.
    """

    def __init__(self, pattern=None, read="every", *, by_hand=False, additive=False, depth=2, seed=0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block(by_hand=by_hand) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS if read == "every" else 5)
        self.pattern, self.read, self.additive = pattern, READS.get(read, read), additive
        self.double().eval()

    def mask(self, input_ids, attention_mask):
        tokens = input_ids.shape[1]
        allowed = None if self.pattern is None else self.pattern(tokens)[None, None]
        if attention_mask is not None and attention_mask.is_floating_point() and attention_mask.ndim == 4:
            return attention_mask
        if attention_mask is not None:
            given = attention_mask.bool()
            given = given if given.ndim == 4 else given[:, None, None, :]
            allowed = given if allowed is None else allowed & given
        if allowed is None or not self.additive:
            return allowed
        return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        mask = self.mask(input_ids, attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.read(self.norm(x)))


def ids(batch=2, tokens=8, seed=1):
    return torch.randint(3, WORDS, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def changes(model, inputs, scalar, tokens=None) -> torch.Tensor:
    """Which words change the scalar when other words stand in their places, tried one by one: `[b, t]`."""
    given = dict(inputs)
    words = given["input_ids"]
    found = torch.zeros(words.shape, dtype=torch.bool)
    with torch.no_grad():
        before = scalar(model(**given))
        for place in range(words.shape[1]):
            other = words.clone()
            other[:, place] = (other[:, place] - 3 + 11) % (WORDS - 3) + 3
            found[:, place] = (scalar(model(**{**given, "input_ids": other})) - before).abs() > 1e-12
    return found
