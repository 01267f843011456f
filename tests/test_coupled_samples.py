"""Samples whose answers depend on each other are refused by every method in the same words."""

import pytest
import torch
import torch.nn.functional as F
from applying import WITH_SOURCES
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.refusals import COUPLED
from vitrail.errors import InputError, MethodError, SeamError, VitrailError
from vitrail.methods import METHODS

IDS = torch.tensor([[3, 7, 1, 9, 4], [2, 8, 5, 6, 0], [1, 1, 2, 3, 5], [9, 2, 4, 4, 1]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o, self.up = (nn.Linear(16, 16) for _ in range(5))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (part(h).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.up(self.second(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layers, self.head = nn.Embedding(12, 16), nn.ModuleList([Layer(), Layer()]), nn.Linear(16, 3)

    def enter(self, x):
        return x

    def end(self, y):
        return y

    def forward(self, input_ids):
        x = self.enter(self.words(input_ids))
        for layer in self.layers:
            x = layer(x)
        return self.end(self.head(x.mean(1)))


class Centred(Model):
    def end(self, y):
        return y - y.mean(0)


class Standardised(Model):
    def end(self, y):
        return (y - y.mean(0)) / (y.var(0, unbiased=False) + 0.1).sqrt()


class Contrasted(Model):
    def end(self, y):
        return y.softmax(0) * 3


class Neighbours(Model):
    def end(self, y):
        return y + 0.1 * y.roll(1, 0)


class Reversed(Model):
    def end(self, y):
        return y.flip(0)


class CentredWords(Model):
    """Statistics of the batch before the blocks."""

    def enter(self, x):
        return x / (x.square().mean((0, 2), keepdim=True) + 0.1).sqrt()


class ComparedToTheLast(Model):
    def end(self, y):
        return y - 0.5 * y[-1:].detach() + 0.1 * y[-1:]


COUPLING = [Centred, Standardised, Contrasted, Neighbours, Reversed, CentredWords, ComparedToTheLast]
APART = {*WITH_SOURCES, "grad_eclip"}
"""Methods that refuse this model for other reasons."""
TEXT = [name for name, entry in METHODS.items() if "text" in entry.inputs and name not in APART]


@pytest.mark.parametrize("make", COUPLING)
@pytest.mark.parametrize("batch", [2, 4])
def test_the_default_and_gae_refuse_samples_that_depend_on_each_other(make, batch):
    for method in ("auto", "gae", "integrated_gradients", "leave_one_out"):
        with pytest.raises(SeamError) as error:
            vitrail.explain(make().double().eval(), IDS[:batch], method, 1)
        assert str(error.value) == COUPLED


def test_every_method_refuses_in_the_same_words():
    model = Centred().double().eval()
    for method in TEXT:
        with pytest.raises(SeamError) as error:
            vitrail.explain(model, IDS[:2], method, 1)
        assert str(error.value) == COUPLED, method


@pytest.mark.parametrize("method", ["leave_one_out", "consensus"])
@pytest.mark.parametrize("make", [Neighbours, CentredWords])
def test_copies_of_one_sample_are_samples_too(make, method):
    """A method that runs copies of a sample at once would explain a batch of copies."""
    options = {"parts": "blanked_lrp"} if method == "consensus" else {}
    with pytest.raises((MethodError, VitrailError)) as error:
        vitrail.explain(make().double().eval(), IDS[:1], method, 1, **options)
    assert COUPLED in str(error.value)


class CentredByContent(Model):
    """The batch is compared where the first sample says so."""

    def forward(self, input_ids):
        x = self.layers[0](self.words(input_ids))
        if input_ids[0, 0] % 2:
            x = x - 0.5 * x.mean(0)
        return self.head(self.layers[1](x).mean(1))


class NeighboursOfFour(Model):
    """Two samples in the middle of a larger batch."""

    def enter(self, x):
        return x if len(x) < 4 else torch.cat([x[:1], x[1:2] + 0.3 * x[2:3], x[2:]])


@pytest.mark.parametrize("method", ["gae", "auto", "attn_lrp", "integrated_gradients", "input_x_gradient"])
def test_samples_that_depend_on_each_other_after_others_that_did_not(method):
    model, apart, compared = CentredByContent().double().eval(), IDS[[1, 0, 2]], IDS[[0, 1, 2]]
    vitrail.explain(model, apart, method, 1)
    for _ in range(2):
        with pytest.raises(SeamError) as error:
            vitrail.explain(model, compared, method, 1)
        assert str(error.value) == COUPLED
    vitrail.explain(model, apart, method, 1)


@pytest.mark.parametrize("method", ["gae", "auto", "attn_lrp", "integrated_gradients", "rollout"])
def test_every_sample_of_a_batch_is_looked_at(method):
    model = NeighboursOfFour().double().eval()
    vitrail.explain(model, IDS[:2], method, 1)
    with pytest.raises(SeamError) as error:
        vitrail.explain(model, IDS, method, 1)
    assert str(error.value) == COUPLED


def test_one_sample_alone_is_explained():
    found = vitrail.explain(CentredWords().double().eval(), IDS[:1], "gae", 1)
    assert bool((found.scores > 0).any())


@pytest.mark.parametrize("method", ["gae", "auto", "leave_one_out", "integrated_gradients"])
def test_samples_apart_are_explained_as_before(method):
    model = Model().double().eval()
    both, alone = (vitrail.explain(model, IDS[:n], method, 1) for n in (2, 1))
    assert_close(both.scores[:1], alone.scores)


class Kept(Model):
    """A model whose batch is fixed by a buffer."""

    def __init__(self, batch):
        super().__init__()
        self.register_buffer("cache", torch.zeros(batch, 5, 16))

    def enter(self, x):
        if x.shape[0] != self.cache.shape[0]:
            raise RuntimeError(f"the cache was made for {self.cache.shape[0]} samples")
        return x + self.cache


class OneOnly(Model):
    def enter(self, x):
        assert x.shape[0] == 1, "one sample at a time"
        return x


@pytest.mark.parametrize(("make", "batch"), [(lambda: Kept(1), 1), (lambda: Kept(4), 4), (OneOnly, 1)])
def test_a_model_of_a_fixed_batch_is_right_or_refused_in_words(make, batch):
    model, wanted = make().double().eval(), Model().double().eval()
    wanted.load_state_dict(model.state_dict(), strict=False)
    refused = {}
    for method in ("gae", "tokentm", "rollout", "auto", "leave_one_out", "integrated_gradients", "attn_lrp", "lrp"):
        try:
            found = vitrail.explain(model, IDS[:batch], method, 1)
        except (InputError, MethodError) as error:
            refused[method] = str(error)
            continue
        assert_close(found.scores, vitrail.explain(wanted, IDS[:batch], found.method, 1).scores)
    assert refused.keys() <= {"leave_one_out"}  # removes tokens from copies of the sample
    assert all("fails there" in why for why in refused.values())


class Broadcast(Model):
    """Its batch is fixed by what it adds: one sample is answered as two, and no error is raised."""

    def enter(self, x):
        return x + torch.zeros(2, 1, 16, dtype=x.dtype)


class Reshaped(Model):
    """Its batch is fixed by a view: of more samples, texts run into each other."""

    def enter(self, x):
        return x.reshape(2, -1, 16)


class FixedLength(Model):
    def enter(self, x):
        return x + torch.zeros(5, 16, dtype=x.dtype)


@pytest.mark.parametrize("make", [Broadcast, Reshaped])
def test_a_model_that_answers_another_number_of_samples_has_a_fixed_batch(make):
    model, wanted = make().double().eval(), Model().double().eval()
    with pytest.raises(MethodError, match=r"Its batch seems to be fixed"):
        vitrail.explain(model, IDS[:2], "leave_one_out", 1)
    found = vitrail.explain(model, IDS[:2], "auto", 1)
    assert_close(found.scores, vitrail.explain(wanted, IDS[:2], found.method, 1).scores)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_of_a_fixed_length_is_not_said_to_have_a_fixed_batch(batch):
    with pytest.raises(InputError, match=r"was run on 4 of 5 tokens") as error:
        vitrail.explain(FixedLength().double().eval(), IDS[:batch], "leave_one_out", 1)
    assert "batch" not in str(error.value)
