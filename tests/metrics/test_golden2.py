"""Metrics against the values of tests/golden2/metrics: other libraries and the papers' formulas."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from vitrail import metrics
from vitrail.errors import InputError

FOLDER = Path(__file__).parents[1] / "golden2" / "metrics"
PERCENT = np.arange(10, 100, 10)


@cache
def given():
    return dict(np.load(FOLDER / "inputs.npz"))


def expected(key):
    return np.load(FOLDER / "expected.npz")[key]


def images():
    return torch.from_numpy(given()["images"])


def maps():
    return torch.from_numpy(given()["attributions"])


def labels():
    return torch.from_numpy(given()["labels"])


def logits(pictures):
    weight, bias = (torch.from_numpy(given()[f"image_model/{name}"]) for name in ("weight", "bias"))
    return pictures.flatten(1) @ weight.T + bias


def probabilities(pictures):
    return logits(pictures).softmax(dim=1)


@pytest.mark.parametrize("size", [2, 3])
def test_grid_pointing_game(size):
    found = metrics.grid_pointing_game(
        given()["grid_pointing_game/maps"], given()[f"grid_pointing_game/cell_{size}x{size}"], size
    )
    assert_allclose(found, expected(f"grid_pointing_game/{size}x{size}"), atol=1e-12)


def test_energy_pointing_game():
    found = metrics.energy_pointing_game(given()["energy_pointing_game/maps"], given()["energy_pointing_game/masks"])
    assert_allclose(found, expected("energy_pointing_game/share"), atol=1e-12)


@pytest.mark.parametrize(("image", "percent"), [(0, 30), (0, 80), (1, 30), (1, 80)])
def test_road_imputes_all_removed_pixels_together(image, percent):
    order = maps()[image].flatten().argsort(descending=True)[: 256 * percent // 100]
    removed = torch.zeros(256, dtype=torch.bool).index_fill(0, order, value=True).view(16, 16)
    found = metrics.road_impute(images()[image], removed)
    assert_allclose(found, expected(f"road/imputed_{percent}/{image}"), atol=1e-10)


def test_road_adds_noise_to_the_removed_pixels_alone():
    removed = ~given()["road/keep_noise/2"]
    noise = 0.01 * given()["road/noise/2"]
    found = metrics.road_impute(images()[2:3], removed[None], noise)
    assert_allclose(found[0], expected("road/imputed_noise_seed0/2"), atol=1e-6)  # made in float32
    assert_allclose(found[0][:, ~removed], images()[2][:, ~removed], atol=0)


@pytest.mark.parametrize(("order", "name"), [("positive", "morf"), ("negative", "lerf")])
@pytest.mark.parametrize("score", [logits, probabilities])
def test_road_watches_the_label_from_logits_and_from_probabilities(order, name, score):
    found = metrics.road(score, images(), maps(), labels(), order=order, levels=PERCENT / 100, noise=0)
    assert_allclose(found.curve, expected(f"road/{name}_probability"), atol=1e-9)
    assert_allclose(found.hits.mean(axis=1), expected(f"road/{name}_accuracy"), atol=1e-12)


@pytest.mark.parametrize("name", ["deletion", "insertion"])
@pytest.mark.parametrize("baseline", ["zero", "baseline"])
@pytest.mark.parametrize("score", [logits, probabilities])
def test_insertion_and_deletion_as_in_rise(name, baseline, score):
    other = baseline if baseline == "zero" else given()["baseline_image"]
    found = getattr(metrics, name)(score, images(), maps(), labels(), baseline=other, step=16)
    assert_allclose(found.curve, expected(f"{name}/{baseline}/curve"), atol=1e-10)
    assert_allclose(found.auc, expected(f"{name}/{baseline}/auc"), atol=1e-10)


def vector_output(x, *, softmax):
    weight, bias = given()["vector_model/weight"], given()["vector_model/bias"]
    found = torch.from_numpy(np.asarray(x) @ weight.T + bias)
    found = found.softmax(dim=-1) if softmax else found
    target = torch.from_numpy(given()["vector/target"])
    return found.gather(-1, target.expand(found.shape[:-1])[..., None])[..., 0].numpy()


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_infidelity_equals_captum(softmax, normalize):
    x, removed = given()["vector/x"], given()["infidelity/perturbations"]
    changes = vector_output(x, softmax=softmax) - vector_output(x - removed, softmax=softmax)
    found = metrics.infidelity(given()["infidelity/attributions"], removed, changes, normalize=normalize)
    key = f"infidelity/{'softmax' if softmax else 'linear'}{'_normalized' if normalize else ''}"
    assert_allclose(found, expected(key), atol=1e-10)


@pytest.mark.parametrize("method", ["gradient", "input_x_gradient"])
def test_max_sensitivity_equals_captum(method):
    weight, bias = (torch.from_numpy(given()[f"vector_model/{name}"]) for name in ("weight", "bias"))
    target = torch.from_numpy(given()["vector/target"])

    def explain(x):
        x = x.detach().requires_grad_()
        likely = (x @ weight.T + bias).softmax(dim=1).gather(1, target[:, None]).sum()
        (gradient,) = torch.autograd.grad(likely, x)
        return gradient * x if method == "input_x_gradient" else gradient

    found = metrics.max_sensitivity(explain, torch.from_numpy(given()["vector/x"]), given()["max_sensitivity/delta"])
    assert_allclose(found, expected(f"max_sensitivity/{method}"), atol=1e-10)


def test_lds_counts_equal_sums_as_ties():
    found = metrics.lds(given()["lds/scores"], given()["lds/kept"], given()["lds/log_probability"])
    assert_allclose(found, expected("lds/spearman"), atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_topk_drop(k):
    weight = torch.from_numpy(given()["topk_drop/weight"])

    def score(kept):
        return torch.einsum("nos,ns->no", weight, kept).log_softmax(dim=1)[:, 0]

    found = metrics.topk_drop(score, torch.from_numpy(given()["topk_drop/scores"]), k)
    assert_allclose(found, expected(f"topk_drop/k{k}"), atol=1e-10)


@pytest.mark.parametrize("percent", [5, 10, 20])
def test_recall_at(percent):
    found = metrics.recall_at(given()["recall_at/scores"], given()["recall_at/gold"], percent)
    assert_allclose(found, expected(f"recall_at/{percent}"), atol=1e-12)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(InputError, match="every pixel"):
        metrics.road_impute(images(), np.ones((4, 16, 16), dtype=bool))
    with pytest.raises(InputError, match="do not divide into 5 x 5"):
        metrics.grid_pointing_game(given()["grid_pointing_game/maps"], np.zeros(12), 5)
    with pytest.raises(InputError, match="no gold token"):
        metrics.recall_at(np.ones((1, 4)), np.zeros((1, 4), dtype=bool), 10)
    with pytest.raises(InputError, match="from 1 to that number"):
        metrics.topk_drop(lambda kept: kept.sum(axis=1), np.ones((2, 3)), 4)
    with pytest.raises(InputError, match="a baseline is a number"):
        metrics.deletion(logits, images(), maps(), labels(), baseline=np.zeros((2, 2)))
