"""The context: values untouched, nothing left behind, no silent gradient."""

import copy
import threading

import pytest
import torch
from applying import applying
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import ComputeSettings, PassOptions, Wanted
from vitrail.capture.shadow import shadow
from vitrail.errors import RuleError, TargetError
from vitrail.methods.attn_lrp import ATTN
from vitrail.methods.conservative_lrp import CONSERVATIVE
from vitrail.methods.transformer_attribution import CONSERVING, ORIG
from vitrail.models.inputs import read_inputs
from vitrail.relevance.lrp import propagating

ENCODERS = [
    n for n in MODELS if n.startswith(("hf_vit", "hf_bert", "hf_roberta", "hf_deit", "timm_vit", "torchvision"))
]


def logits_under(table, model, inputs, dtype=None):
    def within(model, capture):
        return propagating(table, model, capture)

    pass_options = PassOptions(level="embedding_output", within=within, dtype=dtype)
    read = read_inputs(inputs)
    with (
        shadow(model) as own,
        forward(own, read, find_body(own, None, read), Wanted(), ComputeSettings(), pass_options) as run,
    ):
        return run.output.logits.detach()


def plain(model, inputs):
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return getattr(out, "logits", out).detach()


@pytest.mark.parametrize("name", [*ENCODERS, "hf_gpt2", "hf_llama", "hf_qwen3"])
@pytest.mark.parametrize("table", [CONSERVING, ATTN], ids=lambda table: table.name)
def test_logits_are_bit_for_bit_the_models_own(name, table):
    model, inputs = tiny(name), MODELS[name].inputs()
    assert torch.equal(logits_under(table, model, inputs), plain(model, inputs))


@pytest.mark.parametrize("table", [CONSERVING, ORIG, ATTN, CONSERVATIVE], ids=lambda table: table.name)
def test_nothing_survives_the_context(table):
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    before = [(name, dict(vars(module))) for name, module in model.named_modules()]
    weights = {name: (x, x.requires_grad, x.grad) for name, x in model.named_parameters()}
    logits_under(table, model, inputs)
    for name, module in model.named_modules():
        old = dict(before)[name]
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert set(vars(module)) == set(old)
    for name, x in model.named_parameters():
        assert (x is weights[name][0], x.requires_grad, x.grad) == (True, *weights[name][1:])


def test_the_model_is_restored_after_an_error():
    class Broken(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    model = tiny("hf_llama")
    head, model.lm_head = model.lm_head, Broken()
    try:
        with pytest.raises(ZeroDivisionError):
            vitrail.explain(model, MODELS["hf_llama"].inputs(), "attn_lrp")
    finally:
        model.lm_head = head
    assert all("forward" not in vars(m) and not m._forward_pre_hooks for m in model.modules())


class Odd(nn.Module):
    """A block with an operation no rule covers."""

    def __init__(self, change):
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)])
        self.change = change
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(self.change(x))
        return self.head(x[:, 0])


def odd(change):
    model, x = Odd(change).double().eval(), torch.randn(2, 5, 8, dtype=torch.float64)
    return model, x, vitrail.Anatomy(blocks="layers", readout="cls")


class Wave(nn.Module):
    def forward(self, x):
        return x.sin()


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "attn_lrp"])
def test_an_operation_without_a_rule_is_named_with_its_module(method):
    model, x, anatomy = odd(Wave())
    with pytest.raises(RuleError, match=r"sin .*in the module 'change'.*vitrail.relevance.lrp.kinds.KINDS"):
        vitrail.explain(model, x, method, anatomy=anatomy)


def test_errors_of_the_backward_pass_name_their_module_too():
    """A skip connection that is halved: the absolute rules notice it when relevance comes back."""
    model = copy.deepcopy(tiny("timm_vit"))

    class HalfSkip(type(model.blocks[1])):
        def forward(self, x):
            x = 0.5 * x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    model.blocks[1].__class__ = HalfSkip
    with pytest.raises(RuleError, match=r"the sum in the module 'blocks.1' adds two tensors"):
        vitrail.explain(model, MODELS["timm_vit"].inputs(), "abs_lrp", 1)


@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp", "input_x_gradient"])
def test_a_target_that_reads_nothing_is_refused(method):
    model, x, anatomy = odd(nn.Identity())
    with pytest.raises(TargetError, match=r"zero at every token of samples \[0, 1\]"):
        vitrail.explain(model, x, method, lambda logits: 0 * logits[:, 0], anatomy=anatomy)


def test_partial_lrp_needs_no_rule_below_the_last_block():
    model, x, anatomy = odd(Wave())
    assert torch.isfinite(vitrail.explain(model, x, "partial_lrp", anatomy=anatomy).scores).all()
    model.head = nn.Sequential(Wave(), model.head)
    with pytest.raises(RuleError, match=r"sin .*in the module 'head.0'"):
        vitrail.explain(model, x, "partial_lrp", anatomy=anatomy)


def test_conservative_lrp_leaves_the_rest_to_the_gradient():
    model, x, anatomy = odd(torch.sin)
    assert torch.isfinite(vitrail.explain(model, x, "conservative_lrp", anatomy=anatomy).scores).all()


def test_x_plus_equals_y_is_a_sum_like_any_other():
    class Sum(nn.Module):
        def forward(self, x):
            y = x * 1.0
            y += 0.5 * x
            return y

    class Plain(nn.Module):
        def forward(self, x):
            return x * 1.0 + 0.5 * x

    torch.manual_seed(0)
    model, x, anatomy = odd(Sum())
    found = vitrail.explain(model, x, "lrp", anatomy=anatomy, target=1).scores
    model.change = Plain()
    assert_close(found, vitrail.explain(model, x, "lrp", anatomy=anatomy, target=1).scores)


def test_a_tensor_changed_behind_its_name_is_refused():
    class Hidden(nn.Module):
        def forward(self, x):
            y = x * 1.0
            y.add_(x)
            return y

    model, x, anatomy = odd(Hidden())
    with pytest.raises(RuleError, match="changed in place"):
        vitrail.explain(model, x, "lrp", anatomy=anatomy)


def test_other_threads_run_the_model_as_it_is():
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    expected = plain(model, inputs)
    seen = []

    def ask(module, args):
        if threading.current_thread() is threading.main_thread() and not seen:
            seen.append(None)
            thread = threading.Thread(target=lambda: seen.append(plain(model, inputs)))
            thread.start()
            thread.join()

    handle = model.model.norm.register_forward_pre_hook(ask)
    try:
        logits_under(ATTN, model, inputs)
    finally:
        handle.remove()
    assert torch.equal(seen[1], expected)


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert"])
def test_eager_attention_gives_what_fused_attention_gives(name):
    fused, eager = tiny(name), tiny(f"{name}_eager")
    eager.load_state_dict(fused.state_dict())
    inputs = MODELS[name].inputs()
    for method in ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attn_lrp", "abs_lrp"):
        a, b = (vitrail.explain(m, inputs, method, target=1).scores for m in (fused, eager))
        scale = a.abs().max()
        # Eager attention takes its softmax in single precision.
        assert_close(a / scale, b / scale, atol=1e-4, rtol=0, msg=lambda m, method=method: f"{method}: {m}")


def test_every_image_encoder_can_be_propagated():
    for name in ENCODERS:
        methods = applying(tiny(name), MODELS[name].inputs())
        assert {"lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attn_lrp"} <= set(methods)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Own(nn.Module):
    def forward(self, x):
        return Twice.apply(x)


class TwiceAndMore(Twice):
    @staticmethod
    def forward(ctx, x):
        return 2 * x + 0.0  # two functions: the second reads what has no graph yet


class OwnOfSeveral(nn.Module):
    def forward(self, x):
        return TwiceAndMore.apply(x)


class Written(nn.Module):
    def forward(self, x):
        out = torch.zeros_like(x)
        out[:, :] = x
        return out


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("lrp", Own(), "made where no rule can see it"),
        ("attn_lrp", Own(), "made where no rule can see it"),
        ("attn_lrp", OwnOfSeveral(), "made where no rule can see it"),
        ("lrp", Written(), "__setitem__"),
    ],
)
def test_what_no_rule_can_follow_never_falls_back_to_the_gradient(method, change, message):
    model, x, anatomy = odd(change)
    with pytest.raises(RuleError, match=message):
        vitrail.explain(model, x, method, anatomy=anatomy)


class HandNorm(nn.Module):
    """A norm without a mean, its root written in several ways."""

    def __init__(self, root):
        super().__init__()
        self.root = root

    def forward(self, x):
        return self.root(x, x.pow(2).mean(-1, keepdim=True) + 1e-6)


class MyRMSNorm(HandNorm):
    pass


ROOTS = [
    lambda x, var: x * torch.rsqrt(var),
    lambda x, var: x / torch.sqrt(var),
    lambda x, var: x * torch.pow(var, -0.5),
]


def test_a_norm_written_by_hand_has_a_constant_scale_however_it_is_written():
    torch.manual_seed(0)
    model, x, anatomy = odd(MyRMSNorm(ROOTS[0]))
    for method in ("conservative_lrp", "attn_lrp"):
        model.change = MyRMSNorm(ROOTS[0])
        expected = vitrail.explain(model, x, method, 1, anatomy=anatomy).scores
        for root in ROOTS[1:]:
            model.change = MyRMSNorm(root)
            assert_close(vitrail.explain(model, x, method, 1, anatomy=anatomy).scores, expected)


def test_a_norm_outside_a_class_of_that_name_is_constant_too_in_conservative_lrp():
    torch.manual_seed(0)
    model, x, anatomy = odd(MyRMSNorm(ROOTS[0]))
    expected = vitrail.explain(model, x, "conservative_lrp", 1, anatomy=anatomy).scores
    model.change = HandNorm(ROOTS[0])
    assert_close(vitrail.explain(model, x, "conservative_lrp", 1, anatomy=anatomy).scores, expected)


def test_a_bias_added_by_hand_takes_no_relevance():
    class Head(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight, self.bias = linear.weight, linear.bias

        def forward(self, x):
            return x @ self.weight.T + self.bias

    torch.manual_seed(0)
    model, x, anatomy = odd(nn.Identity())
    model.head.bias.data += 3
    expected = vitrail.explain(model, x, "lrp", 1, anatomy=anatomy).scores
    model.head = Head(model.head)
    assert_close(vitrail.explain(model, x, "lrp", 1, anatomy=anatomy).scores, expected)


def test_activations_in_place_are_activations():
    model, inputs = MODELS["timm_vit"].build().double().eval(), MODELS["timm_vit"].inputs()
    found = []
    for inplace in (False, True):
        for block in model.blocks:
            block.mlp.act = nn.ReLU(inplace=inplace)
        found.append(vitrail.explain(model, inputs, "lrp", 1, rules="conserving").scores)
    assert_close(found[0], found[1])


def test_checkpointing_is_switched_off_and_on_again():
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs().float()
    expected = vitrail.explain(model, inputs, "lrp", 1).scores
    model.set_grad_checkpointing(enable=True)
    assert_close(vitrail.explain(model, inputs, "lrp", 1).scores, expected)
    assert model.grad_checkpointing


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "abs_lrp"])
def test_a_callers_autocast_does_not_touch_the_precision_asked_for(method):
    model, inputs = MODELS["timm_vit"].build().eval(), MODELS["timm_vit"].inputs().float()
    expected = vitrail.explain(model, inputs, method, 1, precision="float32").scores
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(vitrail.explain(model, inputs, method, 1, precision="float32").scores, expected)


def test_a_softmax_over_classes_is_no_attention():
    class Probable(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x).softmax(-1)

    inputs = MODELS["timm_vit"].inputs()
    found = vitrail.explain(Probable(tiny("timm_vit")), inputs, "transformer_attribution", 1)
    assert torch.isfinite(found.scores).all()
