"""Padding is what a mask says, never what attention shows."""

import pytest
import torch
from reach_models import Block, Small, causal, ids, strictly_causal
from torch import nn

import vitrail
from vitrail import targets

METHODS = ("gae", "attn_lrp", "integrated_gradients")


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_causal_model_without_attention_to_itself_is_read_at_its_last_token(by_hand, batch):
    model = Small(strictly_causal, by_hand=by_hand)
    inputs = {"input_ids": ids(batch)}
    last = model(**inputs)[:, -1].argmax(dim=1)
    for method in METHODS:
        found = vitrail.explain(model, inputs, method, targets.logit(3))
        assert found.readout is None or found.readout.tolist() == [7] * batch
        assert found.valid is None
        assert bool((found.scores[:, -1] != 0).all())
    found = vitrail.explain(model, inputs, "gae")
    assert found.readout.tolist() == [7] * batch
    assert torch.as_tensor(found.target.first).tolist() in (last.tolist(), last.tolist()[0])


class Hides(Small):
    """No token attends to the third, but the mean reads it."""

    def mask(self, input_ids, attention_mask):
        return (torch.arange(input_ids.shape[1]) != 2)[None, None, None]


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("method", [*METHODS, "rollout", "input_x_gradient"])
def test_a_word_that_only_the_mean_reads_has_a_score(method, by_hand):
    model, inputs = Hides(read="mean", by_hand=by_hand), {"input_ids": ids(1)}
    found = vitrail.explain(model, inputs, method, 3)
    assert found.valid is None
    assert float(found.scores[0, 2]) != 0


def test_a_word_that_only_the_mean_reads_has_its_gradient():
    model, words = Hides(read="mean"), ids(1)
    x = (model.words(words) + model.places(torch.arange(8))).detach().requires_grad_()
    y = x
    for block in model.blocks:
        y = block(y, model.mask(words, None))
    (gradient,) = torch.autograd.grad(model.head(model.norm(y).mean(dim=1))[0, 3], x)
    found = vitrail.explain(model, {"input_ids": words}, "input_x_gradient", 3)
    torch.testing.assert_close(found.scores, (gradient * x).sum(dim=2).detach())


class Sparse(Block):
    """Attention to the two best keys alone."""

    def attend(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / 3
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        best = scores.topk(2, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < best, -torch.inf).softmax(dim=-1) @ v


def sparse(*args, **options):
    model = Small(*args, **options)
    torch.manual_seed(3)
    model.blocks = nn.ModuleList(Sparse() for _ in range(2)).double().eval()
    return model


@pytest.mark.parametrize("seed", range(4))
def test_sparse_attention_has_no_padding(seed):
    model, words = sparse(read="mean"), ids(2, 8, seed)
    for method in METHODS:
        found = vitrail.explain(model, {"input_ids": words}, method, 3)
        assert found.valid is None
        assert bool((found.scores != 0).all())
    model = sparse(causal)
    found = vitrail.explain(model, {"input_ids": words}, "gae", targets.logit(3))
    assert found.readout.tolist() == [7, 7]


class Pads(Small):
    """Padding is a word of its own, which the model hides itself."""

    def mask(self, input_ids, attention_mask):
        return causal(input_ids.shape[1])[None, None] & (input_ids != 0)[:, None, None]


class Named(Small):
    """A mask of another name, in which padding is true."""

    def forward(self, input_ids, padding):
        return super().forward(input_ids, ~padding)


@pytest.mark.parametrize("own", [True, False])
def test_padding_that_another_mask_names_is_padding(own):
    words = ids(2)
    words[0, 5:] = 0 if own else 9
    model = Pads() if own else Named(causal)
    more = {} if own else {"padding": torch.arange(8) >= torch.tensor([[5], [8]])}
    found = vitrail.explain(model, {"input_ids": words, **more}, "gae", targets.logit(3))
    assert found.readout.tolist() == [4, 7]
    assert found.valid.sum(dim=1).tolist() == [5, 8]
    alone = {"input_ids": words[:1, :5], **({} if own else {"padding": more["padding"][:1, :5]})}
    short = vitrail.explain(model, alone, "gae", targets.logit(3))
    torch.testing.assert_close(found.scores[:1, :5], short.scores)


class AsksAlone(Small):
    """The last token, the same word in every text, sees all others and is seen by none."""

    def mask(self, input_ids, attention_mask):
        n = input_ids.shape[1]
        seen = causal(n) & (torch.arange(n) != n - 1)
        return seen[None, None]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_last_token_that_no_token_sees_is_read(by_hand):
    words = ids(2)
    words[:, -1] = 9
    words[:, :-1] = words[:, :-1].where(words[:, :-1] != 9, 8)
    found = vitrail.explain(AsksAlone(by_hand=by_hand), {"input_ids": words}, "gae", targets.logit(3))
    assert found.valid is None
    assert found.readout.tolist() == [7, 7]


def test_a_last_word_that_sparse_attention_leaves_out_is_read():
    model = sparse(causal)
    for seed in range(20):
        found = vitrail.explain(model, {"input_ids": ids(2, 8, seed)}, "gae", targets.logit(3))
        assert found.valid is None, seed
        assert found.readout.tolist() == [7, 7], seed
