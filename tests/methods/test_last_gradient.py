"""The path from nothing to the input, and the gradient of the last map averaged along it."""

import pytest
import torch
from layers import B, H, T, layer, random
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail.errors import AnatomyError, OptionError
from vitrail.methods import paths
from vitrail.relevance import attention, gradient

METHODS = ("bi_head", "bi_token", "tam")
every_method = pytest.mark.parametrize("method", METHODS)


def mean_readout(*tokens):
    readout = torch.zeros(B, T, dtype=torch.float64)
    readout[:, tokens] = 1 / len(tokens)
    return readout


def test_the_path_holds_both_ends():
    points = paths.with_both_ends(20)
    assert (points[0], points[-1], len(points)) == (0, 1, 20)
    assert_close(torch.tensor(points).diff(), torch.full((19,), 1 / 19))


def test_midpoints_are_the_middles_of_equal_parts():
    assert paths.midpoints(4) == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_a_sum_over_the_path_is_the_same_however_many_points_run_at_once(batch):
    seen = []

    def some(points):
        seen.append(len(points))
        return torch.tensor(points).square().sum()

    total = paths.path_sum(some, paths.with_both_ends(7), batch=batch)
    assert_close(total, torch.tensor(paths.with_both_ends(7)).square().sum())
    assert max(seen) == min(batch, 7)
    assert sum(seen) == 7


@pytest.mark.parametrize("axis", [0, 1])
def test_copies_stand_one_after_the_other_wherever_samples_are_counted(axis):
    x = random(2, 5, 3) if axis == 0 else random(5, 2, 3)
    copies = torch.cat([x, x, x], dim=axis)
    points = [0.0, 0.5, 2.0]
    expected = torch.cat([point * x for point in points], dim=axis)
    assert_close(paths.scaled(copies, points, axis=axis), expected)
    assert_close(paths.copies_summed(expected, 3, axis=axis), 2.5 * x)


def test_one_row_is_read_of_a_class_token_and_every_row_of_a_mean():
    single, every = paths.rows_read(layer()), paths.rows_read(layer(readout=mean_readout(1, 2, 4)))
    assert single.chosen.shape == (B, 1, T)
    assert every.chosen.shape == (B, T, T)
    maps = random(B, T, T)
    assert_close(every.joined(maps), (maps[:, 1] + maps[:, 2] + maps[:, 4]) / 3)
    assert_close(single.joined(maps[:, :1]), maps[:, 0])


@pytest.mark.parametrize("weigh", [attention, gradient])
@pytest.mark.parametrize("backend", ["dense", "chunked"])
def test_rows_are_pulled_one_by_one_without_being_mixed(weigh, backend):
    one = layer(readout=mean_readout(1, 2), backend=backend, chunk_rows=2)
    maps = weigh(one)
    assert_close(paths.pull_rows(one, paths.rows_read(one).chosen, weigh), maps)
    assert_close(paths.pull_rows(one, layer().readout[:, None], weigh), maps[:, :, :1])


def test_feedback_is_the_mean_over_heads_of_the_positive_parts():
    mean = random(B, H, 2, T)
    expected = torch.zeros(B, 2, T, dtype=torch.float64)
    for h in range(H):
        expected += torch.where(mean[:, h] > 0, mean[:, h], 0.0) / H
    assert_close(paths.feedback(mean), expected)
    assert not torch.allclose(paths.feedback(mean), mean.mean(dim=1).clamp(min=0))


@pytest.mark.parametrize(
    ("given", "published", "depth", "expected"),
    [
        (None, 4, 12, 4),
        (None, 4, 3, 0),
        (None, -4, 12, 8),
        (None, -4, 3, 0),
        (None, -1, 3, 2),
        (2, 4, 3, 2),
        (-3, 4, 3, 0),
    ],
)
def test_the_published_start_gives_way_in_shallow_models(given, published, depth, expected):
    assert paths.first_layer(given, {"image": published}, kind="image", depth=depth) == expected


@every_method
@pytest.mark.parametrize("start_layer", [3, -4])
def test_a_start_layer_that_was_given_must_exist_before_the_model_runs(method, start_layer):
    model, runs = tiny("hf_vit"), []
    handle = model.register_forward_pre_hook(lambda *_: runs.append(1))
    with pytest.raises(OptionError, match=f"start_layer={start_layer}, but the model's layers are 0 to 2"):
        vitrail.explain(model, MODELS["hf_vit"].inputs(), method, start_layer=start_layer)
    handle.remove()
    assert runs == []


@every_method
@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch": 0}])
def test_there_is_at_least_one_step(method, wrong):
    with pytest.raises(OptionError, match="both must be at least 1"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), method, **wrong)


@every_method
def test_texts_need_known_blocks(method):
    anatomy = vitrail.Anatomy(prefix=1, readout="cls")
    with pytest.raises(AnatomyError, match="blocks"):
        vitrail.explain(tiny("hf_bert"), MODELS["hf_bert"].inputs(), method, anatomy=anatomy)


@pytest.mark.parametrize("method", ["bi_head", "tam"])
def test_pictures_need_no_known_blocks(method):
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    anatomy = vitrail.Anatomy(prefix=1, readout="cls")
    known, unknown = (vitrail.explain(model, inputs, method, 1, steps=3, anatomy=a) for a in (None, anatomy))
    assert_close(known.scores, unknown.scores)
    with pytest.raises(OptionError, match="start_layer=3"):
        vitrail.explain(model, inputs, method, 1, steps=3, start_layer=3, anatomy=anatomy)


@every_method
@pytest.mark.parametrize("name", ["timm_vit", "own_time_first", "hf_gpt2"])
def test_points_that_run_at_once_give_what_they_give_one_by_one(method, name):
    model, inputs = tiny(name), MODELS[name].inputs()
    alone = vitrail.explain(model, inputs, method, [0, 2], steps=4)
    assert_close(vitrail.explain(model, inputs, method, [0, 2], steps=4, batch=2).scores, alone.scores)


@every_method
def test_texts_of_different_lengths_are_read_where_they_end_in_every_copy(method):
    inputs = MODELS["hf_gpt2"].inputs()
    inputs["attention_mask"][0, 6:] = 0
    alone, several = (vitrail.explain(tiny("hf_gpt2"), inputs, method, 1, steps=3, batch=batch) for batch in (1, 2))
    assert_close(several.scores, alone.scores)


@every_method
def test_a_target_function_sees_the_batch_as_it_was_given(method):
    def second(logits):
        assert logits.shape[0] == 2
        return logits[torch.arange(2), torch.tensor([0, 2])]

    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    expected = vitrail.explain(model, inputs, method, [0, 2], steps=3)
    assert_close(vitrail.explain(model, inputs, method, second, steps=3, batch=2).scores, expected.scores)


@every_method
def test_the_end_of_the_path_is_the_pass_that_was_made_anyway(method):
    model, runs = tiny("hf_vit"), []
    handle = model.register_forward_pre_hook(lambda *_: runs.append(1))
    vitrail.explain(model, MODELS["hf_vit"].inputs(), method, steps=2)  # measures the model, and that it repeats itself
    runs.clear()
    vitrail.explain(model, MODELS["hf_vit"].inputs(), method, steps=6)
    handle.remove()
    assert len(runs) == 6


@every_method
def test_the_model_is_restored_when_a_later_pass_fails(method):
    model, runs = tiny("hf_bert"), []

    def fail(*_):
        runs.append(1)
        if len(runs) == 3:
            raise ZeroDivisionError

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), method, steps=6)
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert not any(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@every_method
def test_single_precision_agrees_with_double(method):
    import copy

    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    double = vitrail.explain(model, inputs, method, 1, steps=2).scores
    single = vitrail.explain(copy.deepcopy(model).float(), inputs.float(), method, 1, steps=2).scores
    assert single.dtype == torch.float32
    assert_close(single.double(), double, atol=1e-5, rtol=1e-4)
