"""Films and series have one labelled score for each token that comes from them, wherever their channels stand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import SeamError


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 12)
        self.maps = []

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (9, 4)).transpose(-3, -2).split(3, dim=-3)
        self.maps.append((q @ k.mT / 2).softmax(dim=-1))
        return self.out((self.maps[-1] @ v).transpose(-3, -2).flatten(-2))


class Tokens(nn.Module):
    """A class token and the tokens that `cut` makes; the sums stand outside of the layers, so no module is a block."""

    def __init__(self, cut, channels):
        super().__init__()
        torch.manual_seed(4)
        self.cut, self.embed, self.mark = cut, nn.Linear(channels, 12), nn.Parameter(torch.randn(1, 1, 12))
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(2)), nn.Linear(12, 3)

    def forward(self, x):
        x = self.embed(self.cut(x))
        x = torch.cat([self.mark.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers:
            layer.maps = []
            x = x + layer(x)
        return self.head(x[:, 0])


class ByFrame(Tokens):
    """Tokens of one frame see each other, with a class token each; then the class tokens of all frames do."""

    def forward(self, x):
        x = self.embed(self.cut(x)).unflatten(1, (2, 4)).flatten(0, 1)
        x = torch.cat([self.mark.expand(len(x), -1, -1), x], dim=1)
        x = (x + self.layers[0](x))[:, 0].unflatten(0, (-1, 2))
        return self.head((x + self.layers[1](x)).mean(dim=1))


def cut_film(x):
    """[b, c, f, y, x] in boxes of 2 x 2 x 2."""
    x = x.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)


def cut_series(x):
    """[b, c, n] in fours."""
    return x.unflatten(2, (-1, 4)).transpose(1, 2).flatten(2)


FILM = torch.randn(2, 3, 4, 4, 4).double()
SERIES = torch.randn(2, 3, 16).double()
BOXES = tuple(
    f"frames {f}, rows {y}, columns {x}" for f in ("0-1", "2-3") for y in ("0-1", "2-3") for x in ("0-1", "2-3")
)


def of(kind, cut, channels):
    return kind(cut, channels).double().eval()


def by_autograd(model, x):
    """Gae of the class token, in plain loops over two layers."""
    answer = model(x)[:, 1].sum()
    maps = [layer.maps[-1] for layer in model.layers]
    scores = torch.zeros(len(x), maps[0].shape[-1], dtype=x.dtype)
    scores[:, 0] = 1
    for probs, gradient in zip(reversed(maps), reversed(torch.autograd.grad(answer, maps)), strict=True):
        scores = scores + torch.einsum("bq,bqk->bk", scores, (probs * gradient).clamp(min=0).mean(dim=1))
    return scores[:, 1:].detach()


@pytest.mark.parametrize("colours_first", [True, False])
def test_a_film_has_one_score_for_each_box(colours_first):
    cut = cut_film if colours_first else lambda x: cut_film(x.transpose(1, 2))
    x = FILM if colours_first else FILM.transpose(1, 2).contiguous()
    model = of(Tokens, cut, 24)
    found = vitrail.explain(model, x, "gae", 1)
    assert found.tokens == (BOXES,) * 2
    assert_close(found.scores, by_autograd(model, x))


def test_a_film_with_its_colours_first_has_no_score_of_a_class_token():
    walked = vitrail.explain(of(Tokens, cut_film, 24), FILM, "tokentm", 1)
    assert walked.tokens == (BOXES,) * 2
    assert walked.scores.shape == (2, 8)
    assert any("1 of 9 tokens come from no number" in said for said in walked.provenance["assumed"])


def test_a_series_with_its_channels_first_has_one_score_for_each_part():
    found = vitrail.explain(of(Tokens, cut_series, 12), SERIES, "tokentm", 1)
    assert found.tokens == (("places 0-3", "places 4-7", "places 8-11", "places 12-15"),) * 2
    assert found.scores.shape == (2, 4)


@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm"])
def test_frames_that_are_seen_one_by_one_have_no_scores_of_class_tokens(method):
    found = vitrail.explain(of(ByFrame, cut_film, 24), FILM, method, 1)
    assert found.tokens == (BOXES,) * 2
    assert found.scores.shape == (2, 8)


def test_tokens_of_no_known_part_are_refused_or_named_so():
    """Every number feeds every token."""
    model = of(Tokens, lambda x: cut_film(x + x.mean(dim=(2, 3, 4), keepdim=True)), 24)
    with pytest.raises(SeamError, match="from which part of the input"):
        vitrail.explain(model, FILM, "gae", 1)
    found = vitrail.explain(model, FILM, "tokentm", 1)
    assert any("each of the 9 tokens comes from was not measured" in said for said in found.provenance["assumed"])


def test_the_frames_of_a_film_are_its_pictures_wherever_its_colours_stand():
    model = of(Tokens, cut_film, 24)
    found = vitrail.explain(model, FILM, "input_x_gradient", 1)
    x = FILM.clone().requires_grad_()
    frames = (torch.autograd.grad(model(x)[:, 1].sum(), x)[0] * x).detach().sum(dim=1)
    assert [tuple(one.scores.shape) for one in found.streams.values()] == [(2, 1)] * 4
    for frame, one in zip(frames.unbind(dim=1), found.streams.values(), strict=True):
        assert_close(one.scores[:, 0], frame.sum(dim=(1, 2)))
