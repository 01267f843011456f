"""The sums every walk is made of, and the two ways to compute them."""

from dataclasses import replace

import pytest
import torch
from layers import B, H, T, layer, random, run, stack
from torch.testing import assert_close

from vitrail.errors import OutOfMemoryError
from vitrail.methods import gae
from vitrail.relevance import attention, chunked, complete, dense, gradient, magnitude, positive, pull, score_gradient

WEIGHTS = [attention, gradient, positive, complete, magnitude, score_gradient]


def masked(**options):
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[1, 3:] = False
    return layer(valid=valid, **options)


@pytest.mark.parametrize("rows", [1, 2, 3, T, 100])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_any_size_give_the_whole_sum(rows, causal):
    one = replace(masked(causal=causal), chunk_rows=rows)
    if not causal:
        one = replace(one, mask=random(B, 1, T, T).masked_fill(~one.mask, -torch.inf))
    weights, columns = random(B, T), random(B, T, 6)
    for weigh in WEIGHTS:
        assert_close(chunked.pull(one, weights, weigh), dense.pull(one, weights, weigh))
    assert_close(chunked.push(one, columns), dense.push(one, columns))


@pytest.mark.parametrize("budget", [H * T * T, 2 * H * T * T, H * T * T - 1])
@pytest.mark.parametrize("causal", [True, False])
def test_samples_taken_one_after_the_other_give_the_whole_sum(monkeypatch, budget, causal):
    monkeypatch.setitem(chunked.BUDGET, "cpu", budget)
    one, weights = replace(masked(causal=causal), grad_scale=random(B).abs()), random(B, T)
    assert chunked.samples_per_tile(one) == budget // (H * T * T)
    for weigh in WEIGHTS:
        assert_close(chunked.pull(one, weights, weigh), dense.pull(one, weights, weigh))


def test_a_block_holds_no_more_rows_than_asked_for():
    one = replace(masked(), chunk_rows=2)
    sizes = [tile.probs.shape for _, tile in chunked.tiles(one)]
    assert sizes == [(B, H, 2, T), (B, H, 2, T), (B, H, 1, T)]
    assert "probs" not in vars(one)


def test_blocks_of_a_shared_layer_are_computed_once():
    one = replace(masked(), shared=True)
    first = [tile.probs for _, tile in chunked.tiles(one)]
    again = [tile.probs for _, tile in chunked.tiles(one)]
    assert all(a is b for a, b in zip(first, again, strict=True))
    bounded = replace(one, chunk_rows=2)  # whoever bounds memory means it
    assert all(a is not b for (_, a), (_, b) in zip(chunked.tiles(bounded), chunked.tiles(bounded), strict=True))


def test_a_pull_is_the_sum_over_rows_written_as_loops():
    one, weights = masked(), random(B, T)
    found = dense.pull(one, weights, complete)
    for b in range(B):
        for h in range(H):
            for k in range(T):
                terms = (weights[b, q] * one.probs[b, h, q, k] * one.probs_grad[b, h, q, k] for q in range(T))
                assert_close(found[b, h, k], sum(terms))


def test_the_gradient_at_the_scores_sums_to_zero_in_every_row():
    assert_close(score_gradient(masked()).sum(dim=3), torch.zeros(B, H, T, dtype=torch.float64))


def test_the_gradient_at_attention_is_a_central_difference():
    """s = <z, c> with z = A v: moving one entry of A moves s by G times the step."""
    one, step = layer(), 1e-5

    def scalar(probs):
        return (probs @ one.values * one.output_grad).sum()

    for b, h, q, k in [(0, 0, 0, 0), (1, 2, 4, 3), (0, 1, 2, 4)]:
        move = torch.zeros_like(one.probs)
        move[b, h, q, k] = step
        difference = (scalar(one.probs + move) - scalar(one.probs - move)) / (2 * step)
        assert_close(one.probs_grad[b, h, q, k], difference, atol=1e-8, rtol=0)


def test_a_row_that_may_see_nothing_is_zero_and_not_nan():
    allowed = torch.ones(1, 1, T, T, dtype=torch.bool)
    allowed[..., 2, :] = False
    one = replace(layer(), mask=allowed)
    assert_close(one.probs[:, :, 2], torch.zeros(B, H, T, dtype=torch.float64))
    assert bool(torch.isfinite(run(gae.build(), [one]).scores).all())


def test_a_walk_never_forms_a_product_of_two_maps(monkeypatch):
    """A row of a thousand tokens through many layers needs no n x n matrix product."""
    seen = []
    original = torch.Tensor.__matmul__

    def watched(a, b):
        seen.append((a.shape, b.shape))
        return original(a, b)

    layers = stack(depth=3)
    for one in layers:
        assert one.probs.shape == one.probs_grad.shape
    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    run(gae.build(), layers)
    assert seen
    assert all(left[-2] == 1 for left, _ in seen)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("[enforce fail] can't allocate memory")]
)
def test_where_memory_runs_out_a_size_that_fits_is_named(monkeypatch, error):
    def fail(*given):
        raise error

    one = replace(layer(), backend="dense")
    monkeypatch.setattr(dense, "pull", fail)
    with pytest.raises(OutOfMemoryError, match=f"layer 0 .*backend 'dense'.* chunk_rows={T} would fit"):
        pull(one, random(B, T), positive)
    assert isinstance(OutOfMemoryError("x"), MemoryError)


def test_other_errors_stay_what_they_are(monkeypatch):
    def fail(*given):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(dense, "pull", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        pull(layer(), random(B, T), positive)
