"""A map of exact zeros is an error, or says why in its provenance."""

import pytest
import torch
import torch.nn.functional as F
from applying import CHEAP, WITH_SOURCES
from reach_models import Small, ids

import vitrail
from vitrail.errors import InputError, TargetError, VitrailError

METHODS = [
    name
    for name, entry in vitrail.METHODS.items()
    if "text" in entry.inputs and name not in {*WITH_SOURCES, "grad_eclip"}
]


class Dead(Small):
    """A head whose units never fire."""

    def forward(self, input_ids):
        return F.relu(super().forward(input_ids) - 1e3)


def zeroed():
    model = Small(read="first")
    for one in model.parameters():
        one.data.zero_()
    return model


HIDDEN = torch.zeros(1, 1, 1, 8, dtype=torch.bool)
INVERTED = (torch.arange(8) >= 5).long()[None]
CASES = {
    "inverted mask": (lambda: Small(read="first"), {"attention_mask": INVERTED}),
    "inverted mask of a mean": (lambda: Small(read="mean"), {"attention_mask": INVERTED}),
    "all hidden": (lambda: Small(read="first"), {"attention_mask": HIDDEN}),
    "all hidden by numbers": (lambda: Small(read="first"), {"attention_mask": HIDDEN.double() - 1e9}),
    "all hidden by hand": (lambda: Small(read="first", by_hand=True), {"attention_mask": HIDDEN}),
    "zeroed weights": (zeroed, {}),
    "a dead head": (lambda: Dead(read="first"), {}),
    "one token": (lambda: Small(read="first"), {"input_ids": ids(1)[:, :1]}),
}


@pytest.mark.parametrize("case", CASES)
def test_zeros_are_an_error_or_say_why(case):
    build, given = CASES[case]
    model, inputs = build(), {"input_ids": ids(1), **given}
    for method in ("auto", *METHODS):
        try:
            found = vitrail.explain(model, inputs, method, 3, **CHEAP.get(method, {}))
        except VitrailError:
            continue
        zero = not bool(found.scores.any())
        assert zero == ("zero" in found.provenance), method


@pytest.mark.parametrize("method", ["auto", "gae", "attn_lrp", "integrated_gradients", "attcat", "le_grad"])
def test_an_inverted_mask_is_refused(method):
    model = Small(read="first")
    with pytest.raises((TargetError, InputError), match="mask"):
        vitrail.explain(model, {"input_ids": ids(1), "attention_mask": INVERTED}, method, 3, **CHEAP.get(method, {}))


@pytest.mark.parametrize("method", ["gae", "attn_lrp", "integrated_gradients", "complete_gradient"])
def test_a_target_that_nothing_moves_is_refused(method):
    for model in (zeroed(), Dead(read="first")):
        with pytest.raises(TargetError, match=r"gradient of the target is zero|exactly zero"):
            vitrail.explain(model, {"input_ids": ids(1)}, method, 3, **CHEAP.get(method, {}))


def test_every_sample_is_looked_at():
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1] = INVERTED[0]
    for method in ("integrated_gradients", "attn_lrp", "auto"):
        with pytest.raises((TargetError, InputError), match=r"samples \[1\]"):
            vitrail.explain(Small(read="first"), {"input_ids": ids(), "attention_mask": mask}, method, 3)


def test_a_hidden_text_is_explained_by_the_token_that_is_read():
    found = vitrail.explain(
        Small(read="first"), {"input_ids": ids(1), "attention_mask": HIDDEN}, "integrated_gradients", 3
    )
    assert found.scores[0].nonzero()[:, 0].tolist() == [0]


def test_a_mask_equally_low_everywhere_hides_nothing():
    inputs = {"input_ids": ids(1)}
    plain = vitrail.explain(Small(read="first"), inputs, "gae", 3)
    low = vitrail.explain(Small(read="first"), {**inputs, "attention_mask": HIDDEN.double() - 1e9}, "gae", 3)
    torch.testing.assert_close(low.scores, plain.scores, atol=1e-5, rtol=0)  # -1e9 rounds the scores it is added to
    assert bool(low.scores.all())


class ReadsTheMaskTheOtherWayRound(Small):
    """A model that hides what its mask calls one."""

    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, 1 - attention_mask)


@pytest.mark.parametrize("method", ["auto", "gae", "rollout", "attn_lrp", "tokentm", "integrated_gradients"])
def test_what_rests_on_padding_is_said(method):
    mask = (torch.arange(8) < 5).long()[None]
    given = {"input_ids": ids(1), "attention_mask": mask}
    try:
        found = vitrail.explain(ReadsTheMaskTheOtherWayRound(read="first"), given, method, 3)
    except VitrailError as error:
        assert "mask" in str(error)  # noqa: PT017  (either is right)
    else:
        assert any("calls padding" in said for said in found.provenance["assumed"])
    right = vitrail.explain(Small(read="first"), given, method, 3)
    assert not any("calls padding" in said for said in right.provenance.get("assumed", ()))
