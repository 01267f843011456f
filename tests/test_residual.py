"""Integrated gradients that do not add up are taken again, refused, or say so."""

import pytest
import torch
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.residuals import not_complete
from vitrail.errors import MethodError


class TalkingHeads(nn.Module):
    """Patches that are normed one by one, and attention whose heads are mixed after the softmax."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.cut = nn.Unfold(4, stride=4)
        self.eps, self.embed = eps, nn.Linear(48, 12)
        self.places = nn.Parameter(torch.randn(16, 12))
        self.qkv, self.mix = nn.Linear(12, 36, bias=False), nn.Parameter(torch.randn(3, 3))
        self.head = nn.Linear(12, 5)

    def normed(self, x):
        x = x - x.mean(dim=-1, keepdim=True)
        return x / (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def forward(self, pixels):
        x = self.embed(self.normed(self.cut(pixels).mT)) + self.places
        q, k, v = self.qkv(x).unflatten(2, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        attention = torch.einsum("hg,bgqk->bhqk", self.mix, (q @ k.mT / 2).softmax(dim=-1))
        x = x + (attention @ v).transpose(1, 2).flatten(2)
        return self.head(x.mean(dim=1))


def picture(batch=2):
    return torch.randn(batch, 3, 16, 16, dtype=torch.float64)


def change(model, x, c=1):
    with torch.no_grad():
        return model(x)[:, c] - model(torch.zeros_like(x))[:, c]


@pytest.mark.parametrize("eps", [1e-5, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_default_adds_up_where_nearly_all_of_the_change_is_close_to_zero(eps, dtype):
    model, x = TalkingHeads(eps).to(dtype).eval(), picture().to(dtype)
    found = vitrail.explain(model, x, target=1)
    assert found.method == "integrated_gradients"
    assert "default" in found.provenance
    assert found.provenance["path"] == "points at powers of 6, which lie closer to zero"
    assert_close(found.scores.sum(dim=1), change(model, x), rtol=0.05, atol=0)
    assert not any("converge" in said or "rounding" in said for said in found.provenance["assumed"])


def test_a_default_that_never_adds_up_is_refused():
    """The answer depends on nothing but the direction of the picture: all of the change is at zero itself."""
    model = TalkingHeads(1e-60).double().eval()
    with pytest.raises(MethodError, match=r"did not converge in 400 steps.*adds? up to.*Name a method"):
        vitrail.explain(model, picture(), target=1)


def test_a_method_that_is_named_takes_its_steps_and_says_what_they_lack():
    model, x = TalkingHeads().double().eval(), picture()
    few = vitrail.explain(model, x, "integrated_gradients", 1, steps=7)
    assert few.options["steps"] == 7
    assert "did not converge in 7 steps" in few.provenance["assumed"][0]
    assert_close(few.scores.sum(dim=1) + torch.tensor(few.provenance["residual"]).double(), change(model, x))


def test_one_stream_says_what_the_scores_lack_too():
    few, many = (
        vitrail.explain(tiny(name), MODELS[name].inputs(), "integrated_gradients", 1, steps=steps)
        for name, steps in (("own_pre_norm", 3), ("own_post_norm", 50))
    )
    assert "did not converge in 3 steps" in few.provenance["assumed"][-1]
    assert "assumed" not in many.provenance


@pytest.mark.parametrize(
    ("residual", "at_input", "at_zero", "largest", "dtype", "fine"),
    [
        (0.04, 1.0, 0.0, 1.0, torch.float64, True),
        (0.06, 1.0, 0.0, 1.0, torch.float64, False),
        (-0.06, 0.0, 1.0, 1.0, torch.float64, False),
        (1e-3, 100.0, 99.999, 1.0, torch.float64, False),  # a share of the change, not of the answer
        (1e-3, 100.0, 99.999, 1.0, torch.float32, False),
        (1e-4, 100.0, 100.0, 1.0, torch.float32, True),  # what two answers of this size differ by anyway
        (1e-4, 100.0, 100.0, 1.0, torch.float64, False),
        (0.3, 1.0, 1.0, 1.0, torch.bfloat16, True),
        (float("nan"), 1.0, 0.0, 1.0, torch.float64, False),
    ],
)
def test_what_may_be_missing_is_a_share_of_the_change_and_rounding(residual, at_input, at_zero, largest, dtype, fine):
    numbers = [torch.tensor([x], dtype=torch.float64) for x in (residual, at_input, at_zero, largest)]
    assert (not_complete(*numbers, [dtype], steps=3) is None) == fine
