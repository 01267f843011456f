"""Attention that is not recognised, wherever it stands: the map is that of eager autograd, or there is none."""

from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from odd_attention import OTHER, SOFTMAX, Block, gae_by_autograd, images, vit
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.structure.unseen_mixing import batch_first_state, find_unseen_mixing
from vitrail.errors import SeamError

PLACES = [(0, "class"), (1, "mean"), (2, "class"), (2, "mean")]
SEEN = ("plain", "keys first", "e to a log-softmax")


def placed(form, place):
    forms = [None] * 3
    forms[place] = form
    return forms


@pytest.mark.parametrize(("place", "readout"), PLACES)
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_attention_is_explained_as_it_is_or_refused(name, place, readout):
    model, x = vit(*placed(SOFTMAX[name], place), readout=readout), images()
    answer, expected = gae_by_autograd(model, x, 1)
    assert_close(model(x), answer)
    with nullcontext() if name in SEEN else suppress(SeamError):
        assert_close(vitrail.explain(model, x, "gae", 1).scores, expected)


@pytest.mark.parametrize(("place", "readout"), PLACES)
@pytest.mark.parametrize("name", OTHER)
def test_what_else_mixes_tokens_is_refused_wherever_it_stands(name, place, readout):
    with pytest.raises(SeamError):
        vitrail.explain(vit(*placed(OTHER[name], place), readout=readout), images(), "gae", 1)


@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm"])
@pytest.mark.parametrize("form", ["sigmoid", "neighbours"])
def test_a_last_block_of_another_kind_is_refused_by_every_walk(form, method):
    with pytest.raises(SeamError, match="after the last attention that was seen"):
        vitrail.explain(vit(None, None, OTHER[form]), images(), method, 1)


def test_the_default_falls_to_gradients_at_the_inputs_and_says_why():
    found = vitrail.explain(vit(None, None, OTHER["sigmoid"]), images(), target=1)
    assert found.method == "integrated_gradients"
    assert "after the last attention that was seen" in found.provenance["default"]


def class_query(q, k, v):
    return torch.cat([(q[:, :, :1] @ k.mT).softmax(-1) @ v, torch.zeros_like(v)[:, :, 1:]], dim=2)


@pytest.mark.parametrize("name", [*OTHER, "softmin", "aten softmax", "scripted"])
def test_models_with_several_streams_are_refused_too(name):
    """Queries of the class token alone make a model of two sequences of its blocks."""
    assert vitrail.explain(vit(None, class_query, None), images(), "gae", 1).scores.shape == (2, 9)
    with pytest.raises(SeamError):
        vitrail.explain(vit(None, class_query, {**SOFTMAX, **OTHER}[name]), images(), "gae", 1)


WEIGHTS = torch.randn(16, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
FLAT = torch.randn(160, 16, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0].mean(dim=1)


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x):
        return self.mix(x.mT).mean(dim=2)


READOUTS = {
    "mean": lambda x: x.mean(dim=1),
    "maximum": lambda x: x.amax(dim=1),
    "two tokens": lambda x: (x[:, 0] + x[:, 1]) / 2,
    "side by side": lambda x: F.gelu(x.flatten(1) @ FLAT),
    "a gate of each token": lambda x: (x * x.flip(-1).sigmoid()).mean(dim=1),
    "a gate of the mean": lambda x: x.mean(dim=1) * x.mean(dim=1).flip(-1).sigmoid(),
    "unit length": lambda x: F.normalize(x.mean(dim=1), dim=-1),
    "root mean square": lambda x: (x * x.pow(2).mean(dim=-1, keepdim=True).rsqrt()).mean(dim=1),
    "norm by hand": lambda x: ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)).mean(dim=1),
    "power mean": lambda x: x.abs().pow(3).mean(dim=1).pow(1 / 3),
    "weights of places": lambda x: (x * torch.linspace(0, 1, 10, dtype=x.dtype)[:, None]).sum(dim=1),
    "in place": lambda x: x.mul_(2).mean(dim=1),
}
MIXING = {
    "weights by hand": lambda x: ((x @ WEIGHTS).softmax(dim=1)[..., None] * x).sum(dim=1),
    "weights by einsum": lambda x: torch.einsum("bt,btd->bd", (x @ WEIGHTS).softmax(dim=1), x),
    "gates of the mean": lambda x: (x * x.mean(dim=1, keepdim=True).sigmoid()).mean(dim=1),
    "sigmoid of the class": lambda x: ((x[:, :1] @ x.mT).sigmoid() @ x)[:, 0],
    "second moments": lambda x: (x @ (x.mT @ x)).mean(dim=1),
    "recurrent": Recurrent(),
    "convolved": Convolved(),
}


@pytest.mark.parametrize("name", READOUTS)
def test_a_readout_is_no_mixing(name):
    found = vitrail.explain(vit(None, None, None, read=READOUTS[name]), images(), "gae", 1)
    assert found.method == "gae"
    assert bool(found.scores.any())


@pytest.mark.parametrize("name", MIXING)
def test_a_readout_that_mixes_by_content_or_keeps_its_tokens_is_refused(name):
    with pytest.raises(SeamError):
        vitrail.explain(vit(None, None, None, read=MIXING[name]), images(), "gae", 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_mixing_is_found_on_tensors_alone(dtype):
    stream = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(8)).to(dtype).requires_grad_()
    states = [batch_first_state(stream, first=True)]
    gated = (stream * stream.sigmoid()).mean(dim=1)
    pooled = ((stream @ WEIGHTS.to(dtype)).softmax(dim=1)[..., None] * stream).sum(dim=1)
    assert find_unseen_mixing(gated, states, []) is None
    assert "multiplied with each other (Mul)" in str(find_unseen_mixing(pooled, states, []))


class Loose(nn.Module):
    """The model adds what its sub-layers give, so that no module is a block."""

    def __init__(self, *forms):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.attention = nn.ModuleList(Attention(form) for form in forms)
        self.feed_forward = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in forms)
        self.double().eval()

    def forward(self, ids):
        x = self.embed(ids)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + attention(x)
            x = x + feed_forward(x)
        return self.head(x[:, 0])


class Attention(Block):
    def __init__(self, form):
        super().__init__(form)
        del self.ffn

    def forward(self, x):
        return self.attend(x)


def test_a_model_whose_blocks_are_no_modules_is_refused_too():
    x = torch.tensor([[1, 5, 9, 2, 4, 7], [1, 7, 8, 4, 2, 3]])
    assert bool(vitrail.explain(Loose(SOFTMAX["plain"], SOFTMAX["plain"]), x, "gae", 1).scores.any())
    for name in ("sigmoid", "neighbours", "linear attention"):
        with pytest.raises(SeamError, match="after the last attention that was seen"):
            vitrail.explain(Loose(SOFTMAX["plain"], OTHER[name]), x, "gae", 1)
