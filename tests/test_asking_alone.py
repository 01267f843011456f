"""Models in which one token alone asks, from the first attention on: the others are read, and get their scores."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from vitrail.errors import SeamError

WIDTH, CLASS = 8, 1


class Asking(nn.Module):
    """A block whose attention takes the queries of some rows."""

    def __init__(self, rows: slice) -> None:
        super().__init__()
        self.rows, self.norm, self.attend = rows, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.attend(self.norm(x)).chunk(3, dim=-1))
        q, (start, stop, _) = q[:, :, self.rows], self.rows.indices(x.shape[1])
        if maps is None:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            maps.append((q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1))
            out = maps[-1] @ v
        x = torch.cat([x[:, :start], x[:, self.rows] + out.transpose(1, 2).flatten(2), x[:, stop:]], dim=1)
        return x + self.feed(x)


class Asked(nn.Module):
    """Words, or patches after a class token; the answer is read where the last block asks."""

    def __init__(self, kind: str, *rows: slice) -> None:
        super().__init__()
        self.kind, self.words, self.patches = kind, nn.Embedding(30, WIDTH), nn.Conv2d(3, WIDTH, 4, 4)
        self.start, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(17, WIDTH))
        self.blocks, self.head = nn.ModuleList(map(Asking, rows)), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        if self.kind == "text":
            x = self.words(x)
        else:
            x = torch.cat([self.start.expand(len(x), -1, -1), self.patches(x).flatten(2).mT], dim=1)
        x = x + self.places[: x.shape[1]]
        for block in self.blocks:
            x = block(x, maps)
        return self.head(x[:, self.blocks[-1].rows][:, -1])  # pyright: ignore


def gae(model: Asked, x: Tensor) -> Tensor:
    """Chefer et al., Eqs. 5 and 6, with whole matrices."""
    maps: list[Tensor] = []
    scalar = model(x, maps)[:, CLASS].sum()
    found = torch.autograd.grad(scalar, maps)
    tokens = maps[0].shape[-1]
    relevance = torch.eye(tokens, dtype=x.dtype if x.is_floating_point() else torch.float64).repeat(len(x), 1, 1)
    for block, one, gradient in zip(model.blocks, maps, found, strict=True):
        relevance[:, block.rows] += (one * gradient).clamp(min=0).mean(dim=1) @ relevance
    return relevance[:, model.blocks[-1].rows][:, -1].detach()


FIRST, LAST, ALL = slice(0, 1), slice(-1, None), slice(None)


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize(
    "rows", [(FIRST,), (FIRST, FIRST), (FIRST, ALL), (LAST,), (LAST, LAST), (slice(1, 3), LAST)], ids=str
)
def test_tokens_that_are_read_get_their_scores(kind, rows):
    torch.manual_seed(0)
    model = Asked(kind, *rows).double().eval()
    x = torch.randint(0, 30, (2, 7)) if kind == "text" else torch.randn(2, 3, 16, 16, dtype=torch.float64)
    given = {"input_ids": x} if kind == "text" else x
    wrapped = model if kind == "image" else Named(model)
    found = vitrail.explain(wrapped, given, "gae", CLASS)
    expected = gae(model, x)
    torch.testing.assert_close(found.scores, expected if kind == "text" else expected[:, 1:], rtol=1e-9, atol=1e-12)


class Named(nn.Module):
    """A model of words whose input has a name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids)


class InChunks(Asking):
    """A block whose attention takes its queries some at a time."""

    def forward(self, x: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.attend(self.norm(x)).chunk(3, dim=-1))
        parts = [F.scaled_dot_product_attention(some, k, v) for some in q.split(4, dim=2)]
        x = x + torch.cat(parts, dim=2).transpose(1, 2).flatten(2)
        return x + self.feed(x)


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm"])
def test_queries_that_are_taken_some_at_a_time_are_refused(kind, method):
    torch.manual_seed(0)
    model = Asked(kind, ALL, ALL)
    model.blocks = nn.ModuleList([InChunks(ALL), InChunks(ALL)])
    model = model.double().eval()
    x = {"input_ids": torch.randint(0, 30, (2, 7))} if kind == "text" else torch.randn(2, 3, 16, 16).double()
    with pytest.raises(SeamError, match="takes its queries some at a time"):
        vitrail.explain(Named(model) if kind == "text" else model, x, method, CLASS)
