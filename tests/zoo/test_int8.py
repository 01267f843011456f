import torch
from torch.testing import assert_close

from vitrail.models.zoo.files import SCALE, dequantise, quantise, quantise_rows


def test_a_row_of_integers_times_a_scale_comes_back_exactly():
    scales = torch.tensor([0.5, 0.25, 2.0])
    whole = torch.randint(-126, 127, (3, 500))
    whole[:, 0] = 127
    integers, found = quantise_rows(whole * scales[:, None])
    assert_close(found.float(), scales)
    assert_close(integers.long(), whole)


def test_the_error_is_at_most_half_a_step_where_nothing_is_clipped():
    weight = torch.empty(7, 900).uniform_(-1, 1)  # evenly spread, so that clipping never pays
    integers, scales = quantise_rows(weight)
    error = (integers.float() * scales.float()[:, None] - weight).abs()
    assert bool((error <= scales.float()[:, None] * 0.5001 + 1e-3 * scales.float()[:, None]).all())


def test_clipping_never_makes_the_squared_error_larger():
    weight = torch.randn(5, 1000)
    weight[:, 3] = 9.0
    integers, scales = quantise_rows(weight)
    plain = (weight.abs().amax(dim=1) / 127).half().float()[:, None]
    rounded = (weight / plain).round().clamp(-127, 127) * plain
    clipped = integers.float() * scales.float()[:, None]
    assert bool(((clipped - weight).square().sum(1) <= (rounded - weight).square().sum(1) + 1e-6).all())


def test_a_row_of_zeros_stays_zero():
    weight = torch.randn(3, 2000)
    weight[1] = 0
    integers, scales = quantise_rows(weight)
    assert_close(integers[1].float() * scales[1], torch.zeros(2000))


def test_only_large_matrices_are_quantised_and_every_name_and_shape_comes_back():
    weights = {"matrix": torch.randn(64, 3, 5, 7), "vector": torch.randn(9000), "row": torch.randn(1, 80, 90)}
    small = quantise(weights)
    assert {name: weight.dtype for name, weight in small.items()} == {
        "matrix": torch.int8,
        "matrix" + SCALE: torch.float16,
        "vector": torch.float16,
        "row": torch.float16,
    }
    wide = dequantise(small)
    assert {n: w.shape for n, w in wide.items()} == {n: w.shape for n, w in weights.items()}
    # Half a step of 1/127 of the largest value, and half precision.
    assert_close(wide, weights, rtol=1e-3, atol=0.03)
