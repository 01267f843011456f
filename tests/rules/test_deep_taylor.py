"""The published rules as plain loops, and what they conserve."""

import pytest
import torch
from tiny_models import MODELS, tiny
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail.methods import transformer_attribution as rules

torch.manual_seed(0)
B, N, WIDTH, J = 2, 3, 5, 4
X = torch.randn(B, N, WIDTH, dtype=torch.float64)
W = torch.randn(J, WIDTH, dtype=torch.float64)
R = torch.rand(B, N, J, dtype=torch.float64)


def each_share(x, w, r, *, apart):
    """Eq. 3, entry by entry: shares by positive products, those of either sign of x apart or together."""
    found = torch.zeros_like(x)
    for b in range(B):
        for n in range(N):
            for j in range(J):
                products = [float(x[b, n, i] * w[j, i]) for i in range(WIDTH)]
                signs = [(1, -1)] if not apart else [(1,), (-1,)]
                for chosen in signs:
                    kept = [p if p > 0 and x[b, n, i].sign() in chosen else 0.0 for i, p in enumerate(products)]
                    total = sum(kept)
                    for i in range(WIDTH):
                        found[b, n, i] += kept[i] / (total + 1e-9) * r[b, n, j] if total else 0.0
    return found


@pytest.mark.parametrize(("form", "apart"), [(rules.conserving_linear, False), (rules.orig_linear, True)])
def test_a_linear_layer_shares_by_positive_products(form, apart):
    assert_close(form(R, X, W, F.linear(X, W)), each_share(X, W, R, apart=apart))


def test_the_conserving_form_conserves_and_the_other_doubles():
    # Both signs of x meet a positive product in every neuron here.
    x, w = torch.tensor([[[1.0, -2.0]]]).double(), torch.tensor([[3.0, -1.0], [0.5, -4.0]]).double()
    r = torch.tensor([[[0.3, 0.7]]]).double()
    product = F.linear(x, w)
    assert_close(rules.conserving_linear(r, x, w, product).sum(), r.sum(), atol=1e-8, rtol=0)
    assert_close(rules.orig_linear(r, x, w, product).sum(), 2 * r.sum(), atol=1e-8, rtol=0)


def test_a_neuron_without_positive_products_passes_nothing_on():
    x, w = torch.tensor([[[1.0, 2.0]]]).double(), torch.tensor([[-3.0, -1.0]]).double()
    for form in (rules.conserving_linear, rules.orig_linear):
        assert_close(form(torch.ones(1, 1, 1).double(), x, w, F.linear(x, w)), torch.zeros(1, 1, 2).double())


def test_division_is_zero_at_zero_and_unaware_of_signs():
    b = torch.tensor([0.0, 2.0, -2.0]).double()
    expected = torch.tensor([0.0, 1 / (2 + 1e-9), 1 / (-2 + 1e-9)]).double()
    assert_close(rules.divide(torch.ones(3).double(), b), expected)


def test_the_rescaled_sum_conserves_within_each_sample():
    a, b = torch.randn(2, B, N, WIDTH, dtype=torch.float64)
    r = torch.randn(B, N, WIDTH, dtype=torch.float64)
    first, second = rules.normalised(r, a, b, 0)
    for sample in range(B):
        shares = [x[sample] * r[sample] / (a[sample] + b[sample] + 1e-9) for x in (a, b)]
        sums = [float(s.sum()) for s in shares]
        for found, share, own in zip((first, second), shares, sums, strict=True):
            part = abs(own) / (abs(sums[0]) + abs(sums[1]) + 1e-9) * float(r[sample].sum())
            assert_close(found[sample], share * part / (own + 1e-9))
        assert_close((first + second)[sample].sum(), r[sample].sum(), atol=1e-6, rtol=0)


def test_the_proportional_sum_gives_each_summand_its_share():
    a, b, r = torch.rand(3, 7, dtype=torch.float64)
    first, second = rules.proportional(r, a, b, 0)
    assert_close(first, a / (a + b + 1e-9) * r)
    assert_close(first + second, r, atol=1e-7, rtol=0)


def test_both_factors_of_a_product_get_half():
    probs, value = torch.rand(N, J, dtype=torch.float64), torch.randn(J, WIDTH, dtype=torch.float64)
    r = torch.rand(N, WIDTH, dtype=torch.float64)
    at_map, at_value = rules.attend_values(rules.divide(r, probs @ value), probs, value)
    for n in range(N):
        for j in range(J):
            expected = (
                sum(probs[n, j] * value[j, i] * r[n, i] / ((probs @ value)[n, i] + 1e-9) for i in range(WIDTH)) / 2
            )
            assert_close(at_map[n, j], expected)
    assert_close(at_map.sum(), r.sum() / 2, atol=1e-6, rtol=0)
    assert_close(at_value.sum(), r.sum() / 2, atol=1e-6, rtol=0)


def test_queries_and_keys_share_a_score():
    query, key = torch.randn(N, WIDTH, dtype=torch.float64), torch.randn(J, WIDTH, dtype=torch.float64)
    r = torch.rand(N, J, dtype=torch.float64)
    at_query, at_key = rules.attend_keys(r, query, key)
    expected = torch.zeros_like(query)
    for n in range(N):
        for j in range(J):
            for i in range(WIDTH):
                expected[n, i] += query[n, i] * key[j, i] * r[n, j] / (query[n] @ key[j] + 1e-9) / 2
    assert_close(at_query, expected)
    assert_close(at_key.sum(), r.sum() / 2, atol=1e-6, rtol=0)


def test_pixels_lie_in_the_box_of_their_own_picture():
    x = torch.randn(B, 3, 4, 4, dtype=torch.float64)
    w = torch.randn(J, 3, 2, 2, dtype=torch.float64)
    r = torch.rand(B, J, 2, 2, dtype=torch.float64)
    found = rules.box(r, x, w, {"stride": 2})
    expected = torch.zeros_like(x)
    for b in range(B):
        low, high = x[b].min(), x[b].max()
        for y in range(2):
            for z in range(2):
                patch = x[b, :, 2 * y : 2 * y + 2, 2 * z : 2 * z + 2]
                for j in range(J):
                    terms = patch * w[j] - low * w[j].clamp(min=0) - high * w[j].clamp(max=0)
                    expected[b, :, 2 * y : 2 * y + 2, 2 * z : 2 * z + 2] += terms / (terms.sum() + 1e-9) * r[b, j, y, z]
    assert_close(found, expected)
    assert_close(found.sum(), r.sum(), atol=1e-6, rtol=0)


def test_a_fork_is_a_sum_but_for_entries_near_zero():
    x = torch.tensor([2.0, 0.0, 1e-9], dtype=torch.float64, requires_grad=True)
    y = rules.fork(x)
    (found,) = torch.autograd.grad((3 * y + 4 * y).sum(), x)
    assert_close(found, torch.tensor([7.0, 0.0, 3.5]).double(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_gpt2"])
def test_maps_in_blocks_of_rows_give_what_whole_maps_give(name, monkeypatch):
    model, inputs = tiny(name), dict(MODELS[name].inputs()) if name != "hf_vit" else MODELS[name].inputs()
    specs = [("lrp", {"level": "embedding_output", "rules": "conserving"}), "partial_lrp", "transformer_attribution"]
    if name == "hf_bert":
        inputs["attention_mask"] = inputs["attention_mask"].clone()
        inputs["attention_mask"][1, -2:] = 0
    whole = vitrail.compare(model, inputs, specs, 1)
    blocks = []
    monkeypatch.setattr(rules, "ROW_BUDGET", 100)
    monkeypatch.setattr(rules._Rows, "cuts", seen(rules._Rows.cuts, blocks))
    for a, b in zip(whole, vitrail.compare(model, inputs, specs, 1), strict=True):
        assert_close(b.scores, a.scores, rtol=1e-6, atol=1e-9 * float(a.scores.abs().max()))
    assert max(map(len, blocks)) > 1


def seen(function, found):
    def cuts(self):
        found.append(function(self))
        return found[-1]

    return cuts
