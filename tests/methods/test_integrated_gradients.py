import copy

import pytest
import torch
from layers import random
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import OptionError
from vitrail.methods import integrated_gradients as ig
from vitrail.methods.paths import midpoints, path_sum

both = pytest.mark.parametrize(
    ("method", "options"), [("integrated_gradients", {"steps": 3}), ("input_x_gradient", {})]
)


def bumpy(x):
    return (x.sin() * x.square()).sum(dim=1) + x.prod(dim=1)


def along_the_path(function, x, steps):
    def some(points):
        total = torch.zeros_like(x)
        for point in points:
            here = (point * x).requires_grad_()
            total += torch.autograd.grad(function(here).sum(), here)[0]
        return total

    return ig.attributed(x, path_sum(some, midpoints(steps), batch=3), steps)


def test_completeness():
    """Prop. 1: the scores add up to F(x) - F(x')."""
    x = random(4, 3)
    found = along_the_path(bumpy, x, 512)
    missing = ig.residual(found, bumpy(x), bumpy(0 * x))
    assert_close(missing, torch.zeros(4, dtype=torch.float64), atol=1e-5, rtol=0)


def test_the_residual_falls_with_the_square_of_the_steps():
    """The midpoint rule is of second order."""
    x = random(4, 3)
    few, many = (ig.residual(along_the_path(bumpy, x, n), bumpy(x), bumpy(0 * x)).abs() for n in (16, 32))
    assert_close(few / many, torch.full_like(few, 4.0), rtol=0.05, atol=0)  # up to terms of fourth order


def test_a_polynomial_of_second_degree_is_exact_in_one_step():
    """F = x1 x2 + 3 x1: by hand, x1 gets x1 x2 / 2 + 3 x1, and x2 gets x1 x2 / 2."""
    x = torch.tensor([[2.0, 5.0]]).double()
    found = along_the_path(lambda x: x[:, 0] * x[:, 1] + 3 * x[:, 0], x, 1)
    assert_close(found, torch.tensor([[11.0, 5.0]]).double())


def linear_model():
    """Blocks that add nothing: the logit is the mean over tokens of a fixed vector times the embedding."""
    model = copy.deepcopy(tiny("own_pre_norm"))
    for block in model.encoder.layers:
        for part in (block.self_attn.out_proj, block.linear2):
            part.weight.data.zero_()
            part.bias.data.zero_()
    return model


@both
def test_a_linear_model_gives_weight_times_embedding(method, options):
    model, ids = linear_model(), MODELS["own_pre_norm"].inputs()
    x = model.embed(ids) + model.places[:9]
    expected = (x @ model.head.weight[1] / 9).detach()
    assert_close(vitrail.explain(model, ids, method, 1, **options).scores, expected)


def by_hand(model, x, run, target, steps):
    """The mean of gradients at the middles, times x, with `run` as the model on something in place of x."""
    total = torch.zeros_like(x)
    for step in range(steps):
        here = (x * (step + 0.5) / steps).requires_grad_()
        total += torch.autograd.grad(run(here)[:, target].sum(), here)[0]
    return x * total / steps


def bert_with(model, inputs, module):
    def run(x):
        handle = module.register_forward_hook(lambda module, args, out: x)
        logits = model(**inputs).logits
        handle.remove()
        return logits

    return run


@pytest.mark.parametrize(
    ("level", "path"), [("embedding_output", "embeddings"), ("inputs_embeds", "embeddings.word_embeddings")]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_texts_are_scaled_where_the_level_says(level, path, batch):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    module = model.bert.get_submodule(path)
    kept = []
    handle = module.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    logits = model(**inputs).logits.detach()
    handle.remove()
    run = bert_with(model, inputs, module)
    expected = by_hand(model, kept[0], run, 1, 4)
    found = vitrail.explain(model, inputs, "integrated_gradients", 1, steps=4, level=level, batch=batch)
    assert_close(found.scores, expected.sum(dim=2))
    missing = logits[:, 1] - run(0 * kept[0])[:, 1] - expected.sum(dim=(1, 2))
    assert_close(torch.tensor(found.provenance["residual"], dtype=torch.float64), missing.detach())


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_pictures_are_scaled_by_default(batch):
    model, x = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    found = vitrail.explain(model, x, "integrated_gradients", [0, 2], steps=5, batch=batch)
    expected = torch.cat([by_hand(model, x[i : i + 1], model, c, 5) for i, c in enumerate([0, 2])]).sum(dim=1)
    assert_close(found.pixels, expected)
    patches = expected.unflatten(1, (4, 16)).unflatten(3, (4, 16)).sum(dim=(2, 4))
    assert_close(found.scores, patches.flatten(1))


def test_scores_of_a_model_add_up():
    for name in ("timm_vit", "hf_bert"):
        model, inputs = tiny(name), MODELS[name].inputs()
        few, many = (
            torch.tensor(vitrail.explain(model, inputs, "integrated_gradients", 1, steps=n).provenance["residual"])
            for n in (2, 12)
        )
        assert bool((many.abs() < few.abs() / 4).all())


@both
def test_a_model_that_keeps_time_first_is_explained_like_its_twin(method, options):
    inputs = MODELS["own_time_first"].inputs()
    names = ("own_post_norm", "own_time_first")
    twin, other = (vitrail.explain(tiny(name), inputs, method, [0, 2], **options) for name in names)
    assert_close(twin.scores, other.scores)


def test_a_target_function_sees_the_batch_as_it_was_given():
    def chosen(logits):
        assert logits.shape[0] == 2
        return logits[torch.arange(2), torch.tensor([0, 2])]

    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    expected = vitrail.explain(model, inputs, "integrated_gradients", [0, 2], steps=4)
    found = vitrail.explain(model, inputs, "integrated_gradients", chosen, steps=4, batch=3)
    assert_close(found.scores, expected.scores)


def test_a_result_with_its_residual_can_be_saved(tmp_path):
    found = vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "integrated_gradients", 1, steps=2)
    assert vitrail.Attribution.load(found.save(tmp_path / "found.json")).equals(found)


def test_the_model_is_restored_when_a_later_pass_fails():
    model, runs = tiny("hf_bert"), []

    def fail(*_):
        runs.append(1)
        if len(runs) == 3:
            raise ZeroDivisionError

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "integrated_gradients", steps=6)
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 0}, "at least 1"),
        ({"batch": -1}, "at least 1"),
        ({"level": "pixel"}, "not a choice"),
        ({"level": "pixels"}, "is for image inputs"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(OptionError, match=words):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), "integrated_gradients", **wrong)
