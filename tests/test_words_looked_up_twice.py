"""Models that ask their table of words more than once: a token shows several words, or words pass the blocks by."""

import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.errors import VitrailError

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, 2, 1]])
ADDED = {
    "moved": lambda words, ids: words(ids.roll(1, 1)),
    "constant": lambda words, ids: words(torch.tensor([[3]])),
    "the same": lambda words, ids: 0.5 * words(ids),
    "unused": lambda words, ids: (0 * words(ids), words(ids.flip(1)))[0],
}
READ = {
    "turned around": lambda words, ids: words(ids.flip(1))[:, 0],
    "one": lambda words, ids: words(ids[:, -1]),
    "beside": lambda words, ids: words(ids)[:, -1],
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Twice(nn.Module):
    """A classifier of words that reads its first token."""

    def __init__(self, added=None, read=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(20, 16)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 3)
        self.added, self.read = added, read

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]).expand_as(input_ids))
        x = x if self.added is None else x + self.added(self.words, input_ids)
        first = self.blocks(x)[:, 0]
        return self.head(first if self.read is None else first + self.read(self.words, input_ids))


def explained(method: str, **given) -> vitrail.Attribution:
    return vitrail.explain(Twice(**given).double().eval(), {"input_ids": IDS}, method, 1)


@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm", "auto", "attn_lrp", "input_x_gradient"])
@pytest.mark.parametrize("given", [{"added": "moved"}, {"read": "turned around"}, {"read": "one"}], ids=str)
def test_words_that_are_looked_up_elsewhere_too_are_refused(method, given):
    tables = {"added": ADDED, "read": READ}
    with pytest.raises(VitrailError, match="again for some of them elsewhere"):
        explained(method, **{name: tables[name][what] for name, what in given.items()})


@pytest.mark.parametrize("what", ["constant", "the same", "unused"])
def test_lookups_that_move_no_words_change_nothing_of_what_is_explained(what):
    for method in ("gae", "rollout", "attn_lrp"):
        assert explained(method, added=ADDED[what]).scores.shape == IDS.shape


def test_words_that_pass_the_blocks_by_are_no_walk():
    with pytest.raises(VitrailError, match="reads the table of words beside the blocks"):
        explained("gae", read=READ["beside"])


def test_gradients_at_the_words_count_every_lookup_of_them():
    model = Twice(read=READ["beside"]).double().eval()
    found = vitrail.explain(model, {"input_ids": IDS}, "input_x_gradient", 1)
    vectors = model.words.weight.detach()[IDS].requires_grad_()
    x = vectors + model.places.weight.detach()[: IDS.shape[1]]
    answer = model.head(model.blocks(x)[:, 0] + vectors[:, -1])[:, 1].sum()
    (gradient,) = torch.autograd.grad(answer, vectors)
    torch.testing.assert_close(found.scores, (vectors * gradient).sum(dim=2).detach())


@pytest.mark.parametrize("method", ["gae", "auto", "input_x_gradient"])
def test_a_constant_that_stands_in_a_single_text_is_said_to_be_possible(method):
    model = Twice(added=lambda words, ids: words(torch.tensor([4]))).double().eval()
    with pytest.raises(VitrailError, match=r"these ids, \[4\], are the model's own .* in one batch with a text"):
        vitrail.explain(model, {"input_ids": IDS[:1]}, method, 1)
    assert vitrail.explain(model, {"input_ids": IDS}, method, 1).scores.shape == IDS.shape
