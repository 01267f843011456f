"""Blocks that work on the tokens of all samples in one axis, `[b * n, d]`."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import SeamError

IDS = torch.tensor([[3, 7, 1, 9, 4], [2, 8, 5, 6, 0], [1, 1, 2, 3, 5]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o, self.up = (nn.Linear(16, 16) for _ in range(5))

    def forward(self, x, shape):
        h = self.norm(x)
        q, k, v = (part(h).view(*shape, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.up(self.second(x))


class Model(nn.Module):
    """The same model with tokens of all samples in one axis, and with an axis of samples."""

    def __init__(self, *, flat, mean):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layers, self.head = nn.Embedding(12, 16), nn.ModuleList([Layer(), Layer()]), nn.Linear(16, 3)
        self.flat, self.mean = flat, mean

    def forward(self, input_ids):
        x = self.words(input_ids)
        x = x.flatten(0, 1) if self.flat else x
        for layer in self.layers:
            x = layer(x, input_ids.shape)
        x = x.view(*input_ids.shape, 16)
        return self.head(x.mean(1) if self.mean else x[:, 0])


@pytest.mark.parametrize("method", ["gae", "tokentm", "rollout", "attn_lrp", "input_x_gradient"])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_samples_in_one_axis_with_their_tokens_give_what_they_give_apart(batch, mean, method):
    given = {"level": "inputs_embeds"} if method in ("attn_lrp", "input_x_gradient") else {}
    flat, apart = (Model(flat=flat, mean=mean).double().eval() for flat in (True, False))
    found = vitrail.explain(flat, IDS[:batch], method, 1)
    wanted = vitrail.explain(apart, IDS[:batch], method, 1, **given)
    assert_close(found.scores, wanted.scores)


@pytest.mark.parametrize("method", ["gae", "rollout"])
def test_blocks_that_are_named_and_have_no_axis_of_samples_are_refused(method):
    with pytest.raises(SeamError, match="samples and tokens share an axis"):
        vitrail.explain(
            Model(flat=True, mean=False).double().eval(), IDS, method, 1, anatomy=vitrail.Anatomy(blocks="layers")
        )


def test_the_default_answers_where_samples_and_tokens_share_an_axis():
    found = vitrail.explain(Model(flat=True, mean=True).double().eval(), IDS, target=1)
    assert found.scores.shape == IDS.shape
    assert bool((found.scores != 0).any(dim=1).all())
