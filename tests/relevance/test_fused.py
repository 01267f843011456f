"""Kernels against whole maps in float64: shapes, masks, dtypes. Without a GPU, Triton's interpreter runs them."""

import copy
import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny_models import MODELS, tiny
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import vitrail
from vitrail.capture.recording.layer import Layer
from vitrail.capture.seams.call import read_sdpa
from vitrail.relevance import attention, chunked, dense, fused, gradient, positive
from vitrail.relevance.backends import choose_backend, fused_refusal
from vitrail.relevance.dense import backends_used

pytest.importorskip("triton", reason="Triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies bfloat16 wrongly; a GPU does not.
HALVES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
POISON = float("nan")


def layer(  # all sizes differ, and none is a multiple of a block
    *,
    b=2,
    h=2,
    g=2,
    q=37,
    k=37,
    d=16,
    e=16,
    dtype=torch.float32,
    mask=None,
    causal=False,
    time_first=False,
    sparse=False,
):
    def random(heads, tokens, width):
        shape = (b, tokens, heads, width) if time_first else (b, heads, tokens, width)
        x = torch.randn(*shape, device=DEVICE).to(dtype)
        return x.transpose(1, 2) if time_first else x

    readout = torch.zeros(b, q, device=DEVICE)
    readout[:, q // 2] = 1
    return Layer(
        index=1 if sparse else 0, depth=2, valid=torch.ones(b, k, dtype=torch.bool, device=DEVICE), readout=readout,
        query=random(h, q, d), key=random(g, k, d), value=random(g, k, e), output=random(h, q, e),
        output_grad=random(h, q, e), mask=None if mask is None else mask.to(DEVICE), causal=causal, scale=0.3,
        backend="fused",
    )  # fmt: skip


def exactly(one: Layer) -> Layer:
    """The same layer in float64, with the output its maps give."""
    names = ("query", "key", "value", "output_grad", "readout")
    wide = replace(one, logsumexp=None, **{name: getattr(one, name).double() for name in names})
    mask = wide.mask
    if mask is not None and mask.is_floating_point():
        mask = mask.double().masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
    return replace(wide, mask=mask)


def with_output(one: Layer) -> Layer:
    wide = exactly(one)
    return replace(one, output=(wide.probs @ wide.values).to(one.query.dtype))


def check(one: Layer, rows=None, weights=tuple(fused.KERNELS), tolerance=None):
    one = with_output(one)
    wide = exactly(one)
    one = replace(one, logsumexp=fused.Operands(one, gradient=False).logsumexp)  # by its kernel, once for all others
    rows = torch.randn(*one.readout.shape, device=DEVICE) if rows is None else rows
    for weigh in weights:
        found, expected = fused.pull(one, rows, weigh), dense.pull(wide, rows.double(), weigh)
        assert found.dtype is torch.float32
        size = expected.abs().max().clamp(min=1)  # where all cancels, rounding is all that is left
        limit = tolerance or TOLERANCE[one.query.dtype]
        assert_close(
            found.double() / size, expected / size, atol=limit, rtol=0, msg=lambda m, w=weigh: f"{w.__name__}: {m}"
        )
    columns = torch.randn(one.valid.shape[0], one.valid.shape[1], 5, device=DEVICE)
    found, expected = fused.push(one, columns), dense.push(wide, columns.double())
    assert_close(found.double(), expected, atol=tolerance or TOLERANCE[one.query.dtype], rtol=0)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Every output starts as NaN, so that an entry no program writes is seen."""
    empty = torch.empty

    def poisoned(*shape, **how):
        made = empty(*shape, **how)
        return made.fill_(POISON) if made.is_floating_point() else made

    monkeypatch.setattr(fused.torch, "empty", poisoned)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_kernel_gives_the_sum_over_whole_maps(dtype):
    check(layer(dtype=dtype))


@pytest.mark.parametrize(("d", "e"), [(16, 24), (40, 16), (72, 80), (128, 128), (256, 256)])
def test_heads_of_any_width(d, e):
    check(layer(b=1, h=1, g=1, q=19, k=19, d=d, e=e), weights=(positive, attention), tolerance=1e-5)


@pytest.mark.parametrize("length", [1, 31, 64, 65, 131])
def test_any_length(length):
    check(layer(b=1, q=length, k=length, h=1, g=1))


def test_a_pooling_query_has_fewer_rows_than_keys():
    check(layer(q=1, k=45))


def test_shared_key_heads_are_read_by_all_their_queries():
    check(layer(b=1, h=4, g=2))


def test_no_query_sees_a_later_key():
    one = layer(q=70, k=70, causal=True)
    check(one)
    rows = torch.zeros(2, 70, device=DEVICE)
    rows[:, 4] = 1
    assert not bool(fused.pull(one, rows, gradient)[..., 5:].any())


MASKS = {
    "padding": lambda b, h, q, k: (torch.arange(k) < k - 9).expand(b, 1, 1, k),
    "holes": lambda b, h, q, k: torch.rand(b, h, q, k) > 0.4,
    "a row that sees nothing": lambda b, h, q, k: (torch.arange(q) != 3)[None, None, :, None].expand(b, 1, q, k),
    "bias": lambda b, h, q, k: torch.randn(1, h, q, k),
    "lowest number": lambda b, h, q, k: torch.zeros(b, 1, q, k).masked_fill(torch.rand(b, 1, q, k) > 0.6, -3e38),
    "one key for all": lambda b, h, q, k: torch.rand(b, 1, q, 1) > 0.3,
    "one number for all keys": lambda b, h, q, k: torch.randn(b, h, q, 1),
    "minus infinity": lambda b, h, q, k: torch.zeros(b, 1, 1, k).masked_fill(torch.arange(k) > 30, -torch.inf),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_every_kind(name):
    check(layer(mask=MASKS[name](2, 2, 37, 37)))


def test_operands_need_not_lie_in_order():
    one = layer(time_first=True)
    assert not one.query.is_contiguous()
    check(one)
    backwards = layer()
    check(replace(backwards, query=torch.randn(2, 2, 16, 37, device=DEVICE).transpose(2, 3)))


def test_rows_of_zero_may_be_skipped_but_nothing_else():
    one, rows = layer(h=1, g=1, q=140, k=140, sparse=True), torch.zeros(2, 140, device=DEVICE)
    rows[0, 17], rows[1, 3], rows[1, 139] = 1.0, -2.0, 0.5
    check(one, rows)
    check(one, torch.zeros(2, 140, device=DEVICE) + 1e-30, weights=(positive,))
    assert not bool(fused.pull(one, torch.zeros(2, 140, device=DEVICE), positive).any())


def test_the_denominator_the_model_kept_is_used():
    one = with_output(layer())
    kept = exactly(one)._scores().logsumexp(dim=-1).float()
    rows = torch.randn(2, 37, device=DEVICE)
    assert_close(fused.pull(replace(one, logsumexp=kept), rows, positive), fused.pull(one, rows, positive))
    doubled = fused.pull(replace(one, logsumexp=kept - torch.log(torch.tensor(2.0))), rows, positive)
    assert_close(doubled, 2 * fused.pull(one, rows, positive))


SDPA = [SDPBackend.FLASH_ATTENTION]
if DEVICE == "cuda":
    SDPA += [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


@pytest.mark.parametrize("kernel", SDPA, ids=lambda kernel: kernel.name)
def test_what_a_models_kernel_keeps_is_the_logarithm_of_the_denominator(kernel):
    q, k, v = (torch.randn(2, 3, 45, 32, device=DEVICE, requires_grad=True) for _ in range(3))
    if DEVICE == "cuda":
        q, k, v = q.half(), k.half(), v.half()
    with sdpa_kernel(kernel):
        call = read_sdpa(F.scaled_dot_product_attention(q, k, v, scale=0.3), q, k, v, scale=0.3)
    assert call.logsumexp is not None
    expected = ((q.double() * 0.3) @ k.double().transpose(2, 3)).logsumexp(dim=3)
    assert_close(call.logsumexp.double(), expected.detach(), atol=1e-5, rtol=0)


def test_nothing_is_taken_for_a_denominator_that_is_none():
    q = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        assert read_sdpa(F.scaled_dot_product_attention(q, q, q), q, q, q).logsumexp is None


def test_gradients_that_were_scaled_are_scaled_back():
    one, scale = layer(), torch.tensor([0.5, 4.0], device=DEVICE)
    rows = torch.randn(2, 37, device=DEVICE)
    plain, scaled = (fused.pull(x, rows, positive) for x in (one, replace(one, grad_scale=scale)))
    assert_close(scaled, plain * scale[:, None, None])
    assert_close(fused.pull(replace(one, grad_scale=scale), rows, attention), fused.pull(one, rows, attention))


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_llama"])
def test_maps_of_a_model_are_the_same_by_kernel_and_by_blocks(name):
    model, inputs = copy.deepcopy(tiny(name)).float().to(DEVICE), MODELS[name].inputs()
    inputs = {n: x[:1].to(DEVICE) for n, x in inputs.items()} if isinstance(inputs, dict) else inputs.float().to(DEVICE)
    methods = ["gae", "tokentm", "absolute_gradient", "complete_gradient", "rollout", "attcat", "gradtoken"]
    for method in methods if name == "hf_vit" or DEVICE == "cuda" else methods[:2]:  # the interpreter takes seconds
        here = vitrail.explain(model, inputs, method, 1, backend="fused")
        there = vitrail.explain(model, inputs, method, 1, backend="dense")
        assert here.provenance["backend"].startswith("fused")
        # Both are float32, and the gradient at the scores is a difference of nearly equal numbers.
        assert_close(here.scores, there.scores, rtol=0, atol=1e-3 * float(there.scores.abs().max()))


def test_what_ran_is_said_of_each_method():
    model = copy.deepcopy(tiny("hf_vit")).float().to(DEVICE)
    inputs = {n: x.float().to(DEVICE) for n, x in MODELS["hf_vit"].inputs().items()}
    made = vitrail.compare(model, inputs, ["gae", "cat", "agcam"], 1, backend="fused")
    assert [one.provenance["backend"] for one in made] == ["fused", "none", "chunked"]


def test_operands_of_two_dtypes_are_left_to_blocks():
    call = read_sdpa(None, *(torch.zeros(1, 1, 3, 16, dtype=d) for d in (torch.float32, torch.float16, torch.float16)))
    assert "different dtypes" in fused_refusal(call, DEVICE)


def test_a_denominator_of_other_numbers_is_not_used():
    q = torch.randn(2, 3, 5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        z = F.scaled_dot_product_attention(q, q, q)
    assert z.dtype is torch.bfloat16
    assert read_sdpa(z, q, q, q).logsumexp is None


def test_what_no_kernel_can_do_is_done_in_blocks_and_said_once(caplog):
    one, rows = layer(), torch.randn(2, 37, device=DEVICE)

    def squares(layer):
        return layer.probs**2

    fused.say_once.cache_clear()
    with caplog.at_level(logging.WARNING), backends_used() as used:
        found = [fused.pull(one, rows, squares) for _ in range(2)]
    assert_close(found[0], chunked.pull(one, rows, squares))
    assert [record.message for record in caplog.records] == [
        "computing in blocks instead of by a fused kernel: no kernel for squares"
    ]
    assert used == {"chunked"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"dtype": torch.float64}, "float64"), ({"widths": (16, 300)}, "300 wide"), ({"device": "mps"}, "mps")],
)
def test_refusals_name_their_reason(changes, words, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    given = {"device": "cuda", "dtype": torch.float16, "widths": (64, 64), **changes}
    assert words in fused.refusal(**given)


def test_auto_takes_kernels_on_a_gpu_unless_methods_share_small_maps():
    choose = {"device": "cuda", "refusal": None}
    assert choose_backend("auto", entries=100, shared=False, **choose) == "fused"
    assert choose_backend("auto", entries=100, shared=True, **choose) == "dense"
    assert choose_backend("auto", entries=2**40, shared=True, **choose) == "fused"
    assert choose_backend("auto", entries=2**40, shared=False, device="cuda", refusal="no") == "chunked"
    assert choose_backend("fused", entries=1, shared=False, device="cpu", refusal="no") == "chunked"
    assert choose_backend("auto", entries=1, shared=False, device="cpu", refusal="no", bounded=True) == "chunked"


def test_auto_says_why_a_gpu_goes_without_kernels(caplog):
    fused.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for device in ("cpu", "cuda", "cuda"):
            choose_backend("auto", entries=2**40, shared=False, device=device, refusal="there is no kernel for float64")
    assert [record.message for record in caplog.records] == [
        "computing in blocks instead of by a fused kernel: there is no kernel for float64"
    ]


def test_tiles_shrink_until_the_device_holds_them():
    tried = []

    def run(tiling):
        tried.append(tiling)
        if tiling.stages * tiling.keys > 64:
            raise fused.triton_kernels().OutOfResources(233472, 232448, "shared memory")

    for _ in range(2):
        fused.launch(("a kernel of this test",), fused.Tiling(32, 128, 4, 2), run)
    assert [(t.queries, t.keys, t.stages) for t in tried] == [(32, 128, 2), (32, 128, 1), (32, 64, 1), (32, 64, 1)]


def test_a_device_that_holds_no_tiles_says_so():
    def run(tiling):
        raise fused.triton_kernels().OutOfResources(233472, 232448, "shared memory")

    with pytest.raises(fused.triton_kernels().OutOfResources, match="shared memory"):
        fused.launch(("a kernel that fits nowhere",), fused.Tiling(32, 32, 4, 2), run)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="the interpreter has no shared memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("form", ["none", "bool", "float", "causal"])
def test_wide_heads_with_masks_fit_into_shared_memory(form, width, dtype):
    hidden = torch.rand(2, 1, 300, 300) < 0.3
    hidden[..., 0] = False
    masks = {"bool": ~hidden, "float": torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)}
    one = layer(q=300, k=300, d=width, e=width, dtype=dtype, mask=masks.get(form), causal=form == "causal")
    # Scores reach 20 here, and single precision rounds them to 1e-6.
    check(one, tolerance=max(1e-5, TOLERANCE[dtype]))
