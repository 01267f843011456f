"""What a token cannot reach gets exactly zero, for every method; what it can is untouched."""

import pytest
import torch
from applying import CHEAP, WITH_SOURCES
from reach_models import Small, causal, changes, ids, packed, strictly_causal, window
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.api.bounds import credits_unreachable, drop_unreachable
from vitrail.capture.recording.reach import reach, unattended
from vitrail.capture.seams import AttentionCall
from vitrail.errors import SeamError

METHODS = [
    name
    for name, entry in vitrail.METHODS.items()
    if "text" in entry.inputs and name not in {*WITH_SOURCES, "grad_eclip", "leave_one_out"}
]
RIGHT = (torch.arange(8) < torch.tensor([[5], [8]])).long()
LEFT = RIGHT.flip(1)
BLOCKS = packed(3, 5)[None, None].expand(2, 1, 8, 8).contiguous()


def added(mask, low=-1e9):
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask.bool(), low)


def at(place):
    return targets.logit(3, position=place), lambda logits: logits[:, place, 3]


READ = 3, lambda logits: logits[:, 3]
CASES = {
    "causal, inner": (Small(causal), None, at(4)),
    "causal, written by hand": (Small(causal, by_hand=True, additive=True), None, at(3)),
    "causal without itself": (Small(strictly_causal), None, at(4)),
    "window": (Small(window, "first", depth=3), None, READ),
    "packed, mask given": (Small(), BLOCKS, at(4)),
    "packed, mask added": (Small(by_hand=True), added(BLOCKS), at(1)),
    "packed by the model": (Small(lambda tokens: packed(3, 5), "first"), None, READ),
    "padding right, 0 and 1": (Small(read="first"), RIGHT, READ),
    "padding right, bool": (Small(read="first", by_hand=True), RIGHT[:, None, None].bool(), READ),
    "padding right, added": (Small(read="first"), added(RIGHT[:, None, None], -1e4), READ),
    "padding left, causal": (Small(causal), LEFT, at(5)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_reach_the_answer_gets_exactly_zero(case):
    model, mask, (target, scalar) = CASES[case]
    inputs = {"input_ids": ids(), **({} if mask is None else {"attention_mask": mask})}
    reached = changes(model, inputs, scalar)
    assert not bool(reached.all())
    one_answer = target == 3
    for method in METHODS:
        if method == "abs_lrp" and not one_answer:  # it contrasts the classes of one answer
            continue
        found = vitrail.explain(model, inputs, method, target, **CHEAP.get(method, {}))
        for x in (found.scores, found.own, found.layers, found.heads):
            if x is not None:
                outside = ~reached.view(2, *[1] * (x.ndim - 2), -1)
                assert not bool((x * outside).any()), method


@pytest.mark.parametrize("prompt", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_virtual_tokens_do_not_open_the_future(prompt):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=32,
    )  # fmt: skip
    base = transformers.LlamaForCausalLM(config)
    tuned = getattr(peft, prompt)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(base, tuned).double().eval()
    inputs = {"input_ids": ids(), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    reached = changes(model, inputs, lambda out: out.logits[:, 4, 3])
    explained = 0
    for method in ("gae", "gradtoken", "feature_grad_cam", "le_grad", "attn_lrp", "input_x_gradient"):
        try:
            found = vitrail.explain(model, inputs, method, targets.logit(3, position=4))
        except SeamError:  # keys that belong to no token
            assert prompt == "PrefixTuningConfig"
            continue
        assert not bool(found.scores[~reached].any()), method
        explained += 1
    assert explained >= 2


@pytest.mark.parametrize("method", ["le_grad", "gradtoken", "feature_grad_cam"])
def test_what_was_dropped_is_said(method):
    model, _, (target, _) = CASES["causal, inner"]
    found = vitrail.explain(model, {"input_ids": ids()}, method, target)
    assert any("no attention lets reach" in said for said in found.provenance["assumed"])
    whole = vitrail.explain(Small(read="first"), {"input_ids": ids()}, method, 3)
    assert not any("no attention lets reach" in said for said in whole.provenance.get("assumed", ()))


def test_what_reaches_the_answer_is_untouched(monkeypatch):
    model, _, (target, scalar) = CASES["causal, inner"]
    inputs = {"input_ids": ids()}
    reached = changes(model, inputs, scalar)
    held = vitrail.explain(model, inputs, "le_grad", target).scores
    monkeypatch.setattr("vitrail.api.attributions.hold_to_reach", lambda results, run: (results, False))
    free = vitrail.explain(model, inputs, "le_grad", target).scores
    assert bool(free[~reached].any())
    assert torch.equal(held[reached], free[reached])


def call(mask=None, *, causal=False, weights=None, keys=5):
    q = k = torch.zeros(2, 3, 5, 4)
    k = torch.zeros(2, 3, keys, 4)
    return AttentionCall(q, k, k, q, mask=mask, causal=causal, weights=weights)


def test_reach_is_a_product_of_masks():
    torch.manual_seed(0)
    masks = [torch.rand(2, 1, 5, 5) < 0.2 for _ in range(3)]
    read = torch.zeros(2, 5, dtype=torch.bool)
    read[:, 1] = True
    expected = read.double()[:, None]
    for mask in reversed(masks):
        expected = expected + expected @ mask[:, 0].double()
    assert 2 < int((expected > 0).sum()) < 10
    assert torch.equal(reach([call(mask) for mask in masks], read), expected[:, 0] > 0)
    numbers = [added(mask, torch.finfo(torch.float64).min) for mask in masks]
    numbers = [x.masked_fill(~mask.any(-1, keepdim=True), -torch.inf) for x, mask in zip(numbers, masks, strict=True)]
    assert torch.equal(reach([call(x) for x in numbers], read), expected[:, 0] > 0)


def test_a_row_of_equally_low_scores_sees_every_key():
    read = torch.ones(2, 5, dtype=torch.bool) & (torch.arange(5) == 0)
    assert reach([call(torch.full((2, 1, 1, 5), -1e9))], read) is None


@pytest.mark.parametrize("front", [True, False])
def test_keys_that_are_no_tokens_may_stand_before_or_after(front):
    seen = causal(5)
    more = torch.ones(5, 2, dtype=torch.bool)
    mask = torch.cat([more, seen] if front else [seen, more], dim=1)[None, None]
    read = torch.zeros(2, 5, dtype=torch.bool)
    read[:, 2] = True
    assert reach([call(mask, keys=7)], read)[0].tolist() == [True, True, True, False, False]


def test_the_last_token_of_strictly_causal_attention_is_no_padding():
    assert not bool(unattended(call(strictly_causal(5)[None, None]), 2).any())
    padded = causal(5) & (torch.arange(5) < 3)
    assert unattended(call(padded[None, None]), 2)[0].tolist() == [False, False, False, True, True]


def test_dropping_is_exact_and_noted():
    x, reached = torch.tensor([[1.0, torch.nan, 3.0]]), torch.tensor([[True, False, True]])
    assert_close(drop_unreachable(x, reached), torch.tensor([[1.0, 0.0, 3.0]]))
    assert credits_unreachable(torch.tensor([[1.0, 0.5, 3.0]]), reached)
    assert not credits_unreachable(torch.tensor([[1.0, 1e-9, 3.0]]), reached)
