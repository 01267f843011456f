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


class Opposites(TalkingHeads):
    """Patches on the right count against those on the left, by a function that even points cannot follow."""

    def __init__(self, eps, steep=lambda means: (1000 * means).tanh()):
        super().__init__(eps)
        self.steep = steep

    def forward(self, pixels):
        signs = torch.tensor([1.0, 1.0, -1.0, -1.0]).to(pixels).repeat(4)
        against = (self.steep(self.cut(pixels).mean(dim=1)) * signs).sum(dim=1)
        return super().forward(pixels) + against[:, None]


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


def test_a_sum_that_is_right_by_chance_does_not_pass_for_a_map():
    """Evenly spaced points miss what single patches do; their sum does not, as opposite patches cancel."""
    model, x = Opposites(eps=10.0).double().eval(), picture().abs()
    found = vitrail.explain(model, x, target=1)
    assert found.method == "integrated_gradients"
    total = torch.zeros_like(x)
    points = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    for point, weight in zip(points**6, 6 * points**5 / 1000, strict=True):
        at = (x * point).requires_grad_()
        total += weight * x * torch.autograd.grad(model(at)[:, 1].sum(), at)[0]
    assert found.pixels is not None
    assert_close(found.pixels, total.sum(dim=1), rtol=0.05, atol=0.01)
    assert bool((total.sum(dim=1).abs() > 0.02).any())


def test_each_sample_takes_its_own_points_whatever_its_batch_needs():
    model, x = TalkingHeads(eps=1e-2).double().eval(), picture(3)
    x[1:] *= torch.tensor([0.1, 30.0]).view(2, 1, 1, 1)
    together = vitrail.explain(model, x, target=1)
    alone = [vitrail.explain(model, one[None], target=1) for one in x]
    assert len({(one.options["steps"], one.provenance.get("path")) for one in alone}) > 1
    assert_close(together.scores, torch.cat([one.scores for one in alone]))
    assert_close(together.provenance["residual"], [one.provenance["residual"][0] for one in alone])


def test_a_default_that_adds_up_only_by_chance_is_refused():
    """Waves along the path that no number of points follows, of which half counts against the other."""
    model, x = Opposites(eps=10.0, steep=lambda means: (1e8 * means).sin()).double().eval(), picture(1)
    x = x.unflatten(3, (2, 8))[..., :1, :].expand(-1, -1, -1, 2, -1).flatten(3)
    with pytest.raises(MethodError, match="half as many give other scores"):
        vitrail.explain(model, x, target=1)


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
