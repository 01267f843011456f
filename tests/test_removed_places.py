"""Methods that remove tokens remove those of a signal only where each of its places is a token."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import InputError


class Signal(nn.Module):
    """Tokens that `cut` makes of a signal of any length, and a mean of all of them."""

    def __init__(self, cut, channels):
        super().__init__()
        torch.manual_seed(2)
        self.cut, self.embed = cut, nn.Linear(channels, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def forward(self, input_values):
        return self.head(self.encoder(self.embed(self.cut(input_values))).mean(dim=1))


def pairs(x):
    return x[:, : x.shape[1] // 2 * 2].unflatten(1, (-1, 2)).flatten(2)


def frames(x):
    return x.mean(dim=2).unflatten(2, (2, 2)).unflatten(4, (2, 2)).permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(1, 3)


ODD = {
    "pairs of rows": (Signal(pairs, 8), torch.randn(2, 12, 4)),
    "backwards": (Signal(lambda x: x.flip(1), 4), torch.randn(2, 6, 4)),
    "patches of a film": (Signal(frames, 4), torch.randn(2, 3, 3, 4, 4)),
}
WHOLE = {
    "rows": (Signal(lambda x: x, 4), torch.randn(2, 6, 4)),
    "numbers": (Signal(lambda x: x[:, :, None], 1), torch.randn(2, 6)),
}


def given(table, name):
    model, x = table[name]
    return model.double().eval(), {"input_values": x.double()}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("method", ["leave_one_out", "sentence_drop"])
def test_a_token_that_is_no_place_of_the_signal_cannot_be_removed(method, name):
    model, inputs = given(ODD, name)
    options = {"sources": [(0, 2), (2, 4)]} if method == "sentence_drop" else {}
    with pytest.raises(InputError, match=r"removes tokens, but the \d+ tokens of this model are not the \d+ places"):
        vitrail.explain(model, inputs, method, 1, **options)
    assert vitrail.explain(model, inputs, "gae", 1).tokens is not None


@pytest.mark.parametrize("name", WHOLE)
def test_places_that_are_tokens_are_removed_one_by_one(name):
    model, inputs = given(WHOLE, name)
    x = inputs["input_values"]
    with torch.no_grad():
        whole = model(x)[:, 1]
        falls = [whole - model(torch.cat([x[:, :i], x[:, i + 1 :]], dim=1))[:, 1] for i in range(6)]
    assert_close(vitrail.explain(model, inputs, "leave_one_out", 1).scores, torch.stack(falls, dim=1))
