from dataclasses import replace

import pytest
import torch
from layers import B, H, T, stack
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.methods import tam
from vitrail.methods.paths import rows_read


def by_loops(layers, b, row, start):
    """pi = E_h A^L[row], then pi <- pi P + pi, entry by entry."""
    state = [sum(layers[-1].probs[b, h, row, k] for h in range(H)) / H for k in range(T)]
    for one in reversed(layers[start:-1]):
        mixing = one.probs[b].mean(dim=0)
        state = [state[k] + sum(state[q] * mixing[q, k] for q in range(T)) for k in range(T)]
    return torch.stack(state)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_the_chain_adds_what_each_transition_brings(start):
    layers = stack(depth=4)
    found = tam.chain(layers, rows_read(layers[-1]).chosen, start=start)
    assert_close(found[:, 0], torch.stack([by_loops(layers, b, 0, start) for b in range(B)]))


def test_every_row_that_is_read_is_a_chain_of_its_own():
    layers = stack(readout=torch.full((B, T), 1 / T, dtype=torch.float64))
    found = tam.chain(layers, rows_read(layers[-1]).chosen, start=0)
    for row in range(T):
        assert_close(found[:, row], torch.stack([by_loops(layers, b, row, 0) for b in range(B)]))


def test_tokens_that_attend_to_themselves_only_double_at_every_transition():
    eye = torch.eye(T, dtype=torch.float64).expand(B, H, T, T)
    layers = [replace(one, weights=eye) for one in stack(depth=4)]
    readout = layers[-1].readout
    for start, factor in [(3, 1), (2, 2), (0, 8)]:
        assert_close(tam.chain(layers, readout[:, None], start=start)[:, 0], factor * readout)


def test_uniform_attention_gives_all_tokens_the_same():
    even = torch.full((B, H, T, T), 1 / T, dtype=torch.float64)
    layers = [replace(one, weights=even) for one in stack(depth=3)]
    expected = torch.full((B, T), 4 / T, dtype=torch.float64)
    assert_close(tam.chain(layers, layers[-1].readout[:, None], start=0)[:, 0], expected)


def test_a_bert_is_explained_as_its_own_attention_says():
    model, inputs = tiny("hf_bert_eager"), MODELS["hf_bert_eager"].inputs()
    gradients = []
    for alpha in torch.linspace(0, 1, 4, dtype=torch.float64):
        handle = model.bert.embeddings.register_forward_hook(lambda module, args, out, alpha=alpha: alpha * out)
        out = model(**inputs, output_attentions=True)
        handle.remove()
        gradients += torch.autograd.grad(out.logits[:, 1].sum(), out.attentions[-1])
    weights = torch.stack(gradients).mean(dim=0).clamp(min=0).mean(dim=1)[:, 0]
    first, second, third = (probs.mean(dim=1).detach() for probs in out.attentions)
    state = third[:, :1]
    for mixing in (second, first):
        state = state @ mixing + state
    for start in (0, None):  # three blocks are too few for the published start
        found = vitrail.explain(model, inputs, "tam", 1, start_layer=start, steps=4)
        assert_close(found.scores, weights * state[:, 0])


def test_steps_are_points_of_the_path():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    few, many = (vitrail.explain(model, inputs, "tam", 1, steps=steps).scores for steps in (2, 3))
    assert not torch.allclose(few, many)
