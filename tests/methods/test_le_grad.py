import pytest
import torch
from plain_vit import plain_vit, watched
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.shadow import autograd
from vitrail.errors import AnatomyError, OptionError
from vitrail.methods import le_grad
from vitrail.relevance.runner import forwarding, leaving, scalar_from

every_kind = pytest.mark.parametrize(
    "name", ["hf_vit", "hf_bert", "hf_dinov2", "hf_gpt2", "hf_llama_classifier", "timm_siglip", "torchvision_vit",
             "hf_modernbert", "own_time_first", "own_pre_norm"],
)  # fmt: skip


def by_hand(model, images, target, *, tokens, skipped=0):
    """The head on each block's tokens, and the gradient of that one number at the block's own attention."""
    total = 0
    with watched(model) as seen:
        x = model._pos_embed(model.patch_embed(images))
        for index, block in enumerate(model.blocks):
            x = block(x)
            read = x.mean(dim=1) if tokens == "mean" else x[:, 0]
            logit = model.head(model.norm(read))[:, target].sum()
            (gradient,) = torch.autograd.grad(logit, seen["maps"][index], retain_graph=True)
            positive = gradient.clamp(min=0).mean(dim=1)
            row = positive.mean(dim=1) if tokens == "mean" else positive[:, 0]
            total = total + row if index >= skipped else total
    return total[:, 1:]


@pytest.mark.parametrize("tokens", ["mean", "readout"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_model_gives_what_its_head_on_every_blocks_tokens_gives(tokens, fused):
    model, images = plain_vit()
    expected = by_hand(model, images, 3, tokens=tokens)
    for block in model.blocks:
        block.attn.fused_attn = fused
    assert_close(vitrail.explain(model, images, "le_grad", 3, tokens=tokens).scores, expected)


def test_only_the_last_blocks_take_part_when_asked_for():
    model, images = plain_vit()
    expected = by_hand(model, images, 3, tokens="mean", skipped=1)
    assert_close(vitrail.explain(model, images, "le_grad", 3, blocks=2).scores, expected)
    assert vitrail.METHODS["le_grad"].preset("official") == {"blocks": 2}


def test_blocks_add_up():
    model, images = plain_vit()
    one, two, three, every = (vitrail.explain(model, images, "le_grad", 3, blocks=n).scores for n in (1, 2, 3, "all"))
    assert_close(three, every)
    assert bool(((two - one) >= 0).all())
    assert (two - one).amax() > 0


def test_the_readout_form_of_the_last_block_is_its_positive_attention_gradient():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    last = vitrail.record(model, inputs, 1).layers[-1]
    expected = last.probs_grad.clamp(min=0)[:, :, 0].mean(dim=1)
    assert_close(vitrail.explain(model, inputs, "le_grad", 1, blocks=1, tokens="readout").scores, expected)


def test_the_mean_runs_over_real_tokens_and_stands_everywhere():
    tokens = torch.tensor([[[1.0], [3.0], [9.0]]])
    valid = torch.tensor([[True, True, False]])
    assert_close(le_grad.mean_everywhere(tokens, valid), torch.full((1, 3, 1), 2.0))


@every_kind
def test_behind_the_last_blocks_own_tokens_is_the_models_own_answer(name, monkeypatch):
    """The tail is the model's: with nothing replaced, the scalar is that of a plain run, bit for bit."""
    found = []

    def sensitivities(runner, indices, read):
        found.append((scalar_from(runner, leaving(runner, indices[-1])), runner.part.scalar))
        return {index: torch.zeros_like(leaving(runner, index)) for index in indices}

    monkeypatch.setattr(le_grad, "sensitivities", sensitivities)
    vitrail.explain(tiny(name), MODELS[name].inputs(), "le_grad", 1)
    assert torch.equal(*found[0])


@every_kind
def test_the_model_is_as_it_was(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    with autograd(gradients=False):
        before = torch.cat([x.flatten() for x in tensors(model, inputs)])
        vitrail.explain(model, inputs, "le_grad", 1)
        assert torch.equal(torch.cat([x.flatten() for x in tensors(model, inputs)]), before)
    assert not any("forward" in vars(module) for module in model.modules())


def tensors(model, inputs):
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return [out] if isinstance(out, torch.Tensor) else [out.logits]


def test_the_model_is_restored_when_its_head_fails():
    model, images = plain_vit()
    before, calls = model(images), []

    def fail(module, args):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no head")

    handle = model.head.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no head"):
        vitrail.explain(model, images, "le_grad", 1)
    handle.remove()
    assert torch.equal(model(images), before)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_forward_of_the_modules_own_comes_back():
    module = torch.nn.Identity()
    module.forward = own = lambda x: "own"
    with forwarding(module, lambda *_: "ours"):
        assert module("x") == "ours"
    assert module.forward is own


def test_half_precision_keeps_small_gradients():
    model, images = plain_vit()
    expected = vitrail.explain(model, images, "le_grad", 3).scores.float()
    found = vitrail.explain(model.half(), images.half(), "le_grad", 3).scores
    # Weights and activations are rounded to three digits.
    assert_close(found, expected, atol=0.05 * float(expected.max()), rtol=0)


def test_options_that_cannot_be_are_refused():
    model, images = plain_vit()
    for options, words in [
        ({"blocks": "some"}, "blocks='some'"),
        ({"blocks": 4}, "the model has 3"),
        ({"blocks": 0}, "the model has 3"),
        ({"tokens": "first"}, "tokens='first'"),
    ]:
        with pytest.raises(OptionError, match=words):
            vitrail.explain(model, images, "le_grad", **options)
    with pytest.raises(AnatomyError, match="needs the blocks"):
        vitrail.explain(model, images, "le_grad", anatomy=vitrail.Anatomy(prefix=1, readout="cls"))


class Beside(nn.Module):
    """A model whose head also reads the pictures themselves."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, pixel_values):
        return self.vit(pixel_values=pixel_values).logits * pixel_values.mean(dim=(1, 2, 3))[:, None].exp()


def test_a_head_that_reads_more_of_the_batch_is_given_all_of_it():
    model, pictures = Beside(tiny("hf_vit")), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    together = vitrail.explain(model, pictures, "le_grad", 1).scores
    for number, picture in enumerate(pictures):
        assert_close(together[number], vitrail.explain(model, picture[None], "le_grad", 1).scores[0])
    plain = vitrail.explain(model.vit, pictures, "le_grad", 1).scores
    assert float((together - plain).abs().max()) > 1e-6
