"""Lean passes listen only where a block's structure says that it attends, and hear the same."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from tiny_models import MODELS, tiny
from torch.overrides import TorchFunctionMode

import vitrail
from vitrail.api.requests import read_request, wanted_by
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import ComputeSettings
from vitrail.capture.seams.intercept import InterceptAttention
from vitrail.capture.structure import blocks
from vitrail.models import anatomy
from vitrail.models.inputs import read_inputs
from vitrail.targets import as_target


def attending(name: str) -> list[str]:
    model = tiny(name)
    names = {id(module): path for path, module in model.named_modules()}
    blocks = find_body(model, None, read_inputs(MODELS[name].inputs())).blocks
    return [names.get(id(block.attending), "everywhere") for block in blocks]


def test_the_attending_part_is_the_child_with_the_output_projection_or_what_was_seen_to_attend() -> None:
    assert attending("timm_vit")[1] == "blocks.1.attn"
    assert attending("hf_bert")[0] == "bert.encoder.layer.0.attention.self"  # of no known family


def test_a_block_of_ones_own_is_listened_to_everywhere() -> None:
    class Mine(torch.nn.TransformerEncoderLayer):
        pass

    block = Mine(8, 2, 16, batch_first=True)
    assert anatomy._attending(block, "self_attn.out_proj") is None


def test_a_block_with_a_second_attention_is_listened_to_everywhere() -> None:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(hidden_size=8, num_attention_heads=2, intermediate_size=16, is_decoder=True)
    assert anatomy._attending(BertLayer(config), "attention.output.dense") is not None
    config.add_cross_attention = True
    assert anatomy._attending(BertLayer(config), "attention.output.dense") is None


def captured(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[vitrail.Attribution, int]:
    """An explanation, and how many functions were looked at for it."""
    count = 0
    listen = InterceptAttention.__torch_function__

    def counting(self: InterceptAttention, *args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        return listen(self, *args, **kwargs)

    model = deepcopy(tiny(name))
    vitrail.explain(model, MODELS[name].inputs(), "gae", target=1)  # the first call measures the model's structure
    with monkeypatch.context() as patch:
        patch.setattr(InterceptAttention, "__torch_function__", counting)
        found = vitrail.explain(model, MODELS[name].inputs(), "gae", target=1)
    return found, count


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "hf_gpt2", "timm_vit"])
def test_the_scores_are_those_of_listening_everywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lean, few = captured(monkeypatch, name)
    own = blocks._block
    monkeypatch.setattr(anatomy, "_attending", lambda block, output: None)
    monkeypatch.setattr(blocks, "_block", lambda module, site: replace(own(module, site), attending=None))
    everywhere, many = captured(monkeypatch, name)
    assert torch.equal(lean.scores, everywhere.scores)
    assert few < 0.8 * many


def test_attention_that_is_somewhere_else_is_found_by_a_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = captured(monkeypatch, "timm_vit")
    monkeypatch.setattr(anatomy, "_attending", lambda block, output: block.mlp)
    assert torch.equal(captured(monkeypatch, "timm_vit")[0].scores, expected.scores)


def test_an_error_inside_attention_leaves_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("timm_vit")
    monkeypatch.setattr(model.blocks[1].attn, "forward", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(model, MODELS["timm_vit"].inputs(), "gae")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    class Outer(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None) -> object:
            Outer.seen += 1
            return func(*args, **(kwargs or {}))

    with Outer():
        torch.ones(1) + 1
    assert Outer.seen
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert", "timm_vit", "timm_siglip"])
def test_what_is_read_early_is_not_kept(name: str) -> None:
    model, inputs = tiny(name), read_inputs(MODELS[name].inputs())
    request = read_request("tokentm", "recommended", inputs, as_target(1))
    body = find_body(model, None, inputs)
    with forward(model, inputs, body, request.wanted, ComputeSettings(), lean=True) as run:
        kept = [set(captured.states) for captured in run.capture.blocks]
        noted = [len(captured.early) for captured in run.capture.blocks]
    assert all(not states for states in kept[:-1])
    assert kept[-1] <= {"entering", "leaving"}
    assert noted == [1] * len(body.blocks)


def test_a_state_that_another_method_reads_stays() -> None:
    inputs = read_inputs(MODELS["hf_vit"].inputs())
    both = [read_request(name, "recommended", inputs, as_target(1)) for name in ("tokentm", "attcat")]
    wanted = wanted_by([one.plan for one in both])
    assert "leaving" not in wanted.passing
    assert wanted.passing == {"entering", "ffn_entering", "ffn_added", "output_weight"}
    third = read_request(("attcat", {"states": "input"}), "recommended", inputs, as_target(1))
    assert "entering" not in wanted_by([both[0].plan, third.plan]).passing
    only = replace(third.plan, needs=frozenset({"entering_grad"}))
    assert "entering" not in wanted_by([both[0].plan, only]).passing
    assert len(wanted.early) == 1


class Quiet(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None) -> object:
        return func(*args, **(kwargs or {}))


def test_an_interruption_inside_attention_leaves_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("timm_vit")

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.blocks[1].attn, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vitrail.explain(model, MODELS["timm_vit"].inputs(), "gae")
    assert torch.overrides._get_current_function_mode() is None


def test_an_error_before_attention_leaves_the_callers_mode_alone() -> None:
    model = tiny("timm_vit")

    def refuse(module: torch.nn.Module, args: tuple) -> None:
        if type(module) is type(model.blocks[1].attn):
            raise ValueError("not here")

    hook = torch.nn.modules.module.register_module_forward_pre_hook(refuse)
    try:
        with Quiet() as own:
            with pytest.raises(ValueError, match="not here"):
                vitrail.explain(model, MODELS["timm_vit"].inputs(), "gae")
            assert torch.overrides._get_current_function_mode() is own
    finally:
        hook.remove()


def test_a_callers_autocast_does_not_reach_what_is_read_early(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = deepcopy(tiny("timm_vit")).float(), MODELS["timm_vit"].inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        early = vitrail.explain(model, inputs, "tokentm", 1).scores
        monkeypatch.setattr(anatomy, "_attending", lambda block, output: block.mlp)  # a second pass reads nothing early
        late = vitrail.explain(model, inputs, "tokentm", 1).scores
    torch.testing.assert_close(early, late, rtol=1e-5, atol=0)
