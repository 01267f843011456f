"""soft_ablation: derivatives of an answer's log-probability with respect to the presence of each token."""

import copy
import math

import pytest
import torch
import transformers
from golden2_sets import golden2
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.api import requests
from vitrail.capture.seams.intercept import InterceptAttention, Override
from vitrail.errors import MethodError
from vitrail.methods.soft_ablation import Passages

IDS = torch.tensor([[5, 9, 3, 30, 17, 22, 8, 41, 12, 33], [7, 7, 11, 4, 28, 19, 35, 2, 14, 6]])
SOURCES = [(1, 3), (3, 6)]
START = 7


def explained(model, mask=None, share=0.0, **options):
    options = {"share": share, **options}
    given = {"input_ids": IDS} if mask is None else {"input_ids": IDS, "attention_mask": mask}
    return vitrail.explain(model, given, "soft_ablation", targets.continuation(START), **options).scores


def answer_of(model, presence, sources):
    """The sum of all answers' log-probabilities, with attention from outside of each source times its presence."""
    source = torch.full((IDS.shape[1],), -1)
    for index, (a, b) in enumerate(sources):
        source[a:b] = index
    outside = (source[:, None] != source) & (source >= 0)
    bias = torch.where(outside, presence.log()[:, None], torch.zeros((), dtype=presence.dtype))
    causal = torch.ones_like(outside).tril()
    mask = bias.masked_fill(~causal, torch.finfo(bias.dtype).min)[:, None]
    logs = model(input_ids=IDS, attention_mask=mask).logits[:, START - 1 : -1].log_softmax(dim=-1)
    return logs.gather(2, IDS[:, START:, None]).sum()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("presence", [0.1, 1.0])
def test_scores_are_the_derivatives_with_respect_to_presence(kernel, presence):
    model = golden2("llm_llama", kernel).model
    given = torch.full(IDS.shape, presence, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(answer_of(model, given, SOURCES), given)
    found = explained(model, presence=presence, sources=SOURCES)
    close = {"sdpa": (1e-9, 1e-6), "eager": (1e-5, 1e-4)}[kernel]  # eager attention has a softmax in float32
    assert_close(found, expected, atol=close[0], rtol=close[1])
    assert bool((found[:, [0, 6, 7, 8, 9]] == 0).all())  # no token of a source
    assert_close(explained(model, presence=presence, sources=SOURCES, backend="chunked", chunk_rows=3), found)
    if kernel == "sdpa":
        assert_close(explained(model, presence=presence, sources=SOURCES, memory="low"), found)


def test_a_sink_keeps_its_attention():
    """GPT-OSS has a column in its softmax that is no token, and cuts it off."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0,
        layer_types=["full_attention"] * 2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval()
    given = torch.full(IDS.shape, 0.25, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(answer_of(model, given, SOURCES), given)
    assert_close(explained(model, presence=0.25, sources=SOURCES), expected, atol=1e-6, rtol=1e-4)
    assert float(expected.abs().amax()) > 1e-3


@pytest.mark.parametrize(("keys", "wide", "expected"), [((1, 4), 4, [0, -1, -1, 0]), ((1, 4), 3, [-1, -1, 0])])
def test_presence_is_reduced_at_the_keys_that_are_tokens(keys, wide, expected):
    passages = Passages(torch.tensor([[0, 0, -1]]), torch.tensor([[True, True, False]]), keys)
    bias = passages.bias(math.exp(-1), torch.Size((1, 2, 3, wide)), torch.float64)
    assert_close(bias[0, 0, 2], torch.tensor(expected).double())


def test_keys_that_are_not_known_to_be_sinks_are_refused():
    passages = Passages(torch.tensor([[0, 0, -1]]), torch.tensor([[True, True, False]]), None)
    with pytest.raises(MethodError, match="3 queries and 4 keys for 3 tokens"):
        passages.bias(0.5, torch.Size((1, 2, 3, 4)), torch.float64)


def masks_of(model, presence, passage):
    """The masks of all layers, with attention from outside to one passage turned down by an explicit number."""
    places = torch.arange(IDS.shape[1])
    inside = (places >= passage[0]) & (places < passage[1])
    down = torch.zeros(len(places), len(places), dtype=torch.float64)
    down[~inside[:, None] & inside] = presence.log()
    least, causal = torch.finfo(torch.float64).min, places <= places[:, None]
    whole = down.masked_fill(~causal, least)[None, None]
    window = getattr(model.config, "sliding_window", None)
    if model.config.model_type != "gemma2":
        return whole
    near = places > places[:, None] - window
    return {"full_attention": whole, "sliding_attention": down.masked_fill(~(causal & near), least)[None, None]}


@pytest.mark.parametrize("name", ["llm_llama", "llm_qwen3", "llm_gemma2", "llm_gpt2"])
def test_a_passage_turned_down_a_little_changes_the_answer_as_its_score_says(name):
    model, step, at = golden2(name, "eager").model, 1e-3, 0.5
    found = explained(model, presence=at, sources=[SOURCES[1]])

    def answers(presence):
        with torch.no_grad():
            mask = masks_of(model, torch.tensor(presence, dtype=torch.float64), SOURCES[1])
            logs = model(input_ids=IDS, attention_mask=mask).logits[:, START - 1 : -1].log_softmax(dim=-1)
        return logs.gather(2, IDS[:, START:, None]).sum(dim=(1, 2))

    expected = (answers(at + step) - answers(at - step)) / (2 * step)
    size = float(expected.abs().max())
    assert size > 1e-2
    # Eager attention has a softmax in float32, whose rounding is divided by the step.
    assert_close(found.sum(dim=1), expected, atol=1e-3 * size, rtol=2e-3)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_blocks_that_are_run_again_are_counted(share):
    model, target = golden2("llm_llama", "sdpa").model, targets.continuation(START)
    run = lambda memory: vitrail.explain(  # noqa: E731
        model, {"input_ids": IDS}, "soft_ablation", target, share=share, memory=memory
    )
    assert run("low").provenance["recomputed_blocks"] == len(model.model.layers)
    assert "recomputed_blocks" not in run("full").provenance


def test_kernels_sum_what_whole_maps_do():
    model = copy.deepcopy(golden2("llm_llama", "sdpa").model).float()
    dense, fused = (explained(model, sources=SOURCES, share=0.5, backend=backend) for backend in ("dense", "fused"))
    assert_close(fused, dense, atol=1e-5, rtol=1e-4)


def test_shared_heads_are_repeated_since_no_fused_kernel_takes_them_with_a_mask():
    query, (key, value) = torch.rand(1, 4, 5, 8), torch.rand(2, 1, 2, 5, 8)
    bias = torch.rand(1, 1, 5, 5)
    calls = []
    mode = InterceptAttention(calls.append, Override(bias=lambda shape, dtype: bias), lambda: 0)
    with mode:
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    (call,) = calls
    assert call.key.shape == query.shape
    keys, values = (x.repeat_interleave(2, dim=1) for x in (key, value))
    scores = query @ keys.transpose(-1, -2) / 8**0.5 + bias
    hidden = ~torch.ones(5, 5, dtype=torch.bool).tril()
    assert_close(out, scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ values)


def test_without_text_every_token_is_a_source_and_the_first_keeps_its_attention():
    model = golden2("llm_llama", "sdpa").model
    given = torch.full(IDS.shape, 0.1, dtype=torch.float64)
    given[:, 0] = 1.0
    given.requires_grad_()
    tokens = [(i, i + 1) for i in range(START)]
    (expected,) = torch.autograd.grad(answer_of(model, given, tokens), given)
    assert_close(explained(model, presence=0.1), expected, atol=1e-9, rtol=1e-6)


def test_padding_on_either_side_changes_nothing():
    model = golden2("llm_llama", "sdpa").model
    alone = vitrail.explain(model, {"input_ids": IDS[:1]}, "soft_ablation", targets.continuation(START)).scores
    for where in ((3, 0), (0, 3)):
        padded = {
            "input_ids": torch.nn.functional.pad(IDS[:1], where),
            "attention_mask": torch.nn.functional.pad(torch.ones_like(IDS[:1]), where),
        }
        found = vitrail.explain(model, padded, "soft_ablation", targets.continuation(-3)).scores
        assert_close(found, torch.nn.functional.pad(alone, where), atol=1e-6, rtol=1e-5)


def test_passages_have_their_derivative_and_a_share_of_a_walk_which_divides_them():
    model = golden2("llm_llama", "sdpa").model
    plain, found = (explained(model, presence=0.25, sources=SOURCES, share=share) for share in (0.0, 0.5))
    each = lambda x: torch.stack([x[:, a:b].sum(dim=1) for a, b in SOURCES], dim=1)  # noqa: E731
    walked = (each(found) - each(plain)) / each(plain).abs().sum(dim=1, keepdim=True)
    assert_close(walked.sum(dim=1), torch.full((2,), 0.5, dtype=walked.dtype))
    assert bool((walked >= 0).all())
    signs = torch.stack([found[:, a:b].sign().unique(dim=1).squeeze(1) for a, b in SOURCES], dim=1)
    assert bool((signs == each(found).sign()).all())  # the tokens of a passage agree
    assert bool((found[:, [0, 6, 7, 8, 9]] == 0).all())


def test_it_is_the_default_for_answers_and_gae_stands_in(monkeypatch):
    model = golden2("llm_llama", "sdpa").model
    found = vitrail.explain(model, {"input_ids": IDS}, target=targets.continuation(START))
    assert found.method == "soft_ablation"
    assert_close(found.scores, explained(model, share=0.5))
    walked = vitrail.explain(model, {"input_ids": IDS}, target=targets.continuation(START), readout="gradient")
    assert walked.method == "gae"
    monkeypatch.setattr(requests, "LONGEST_ANSWER", IDS.shape[1] - 1)
    long = vitrail.explain(model, {"input_ids": IDS}, target=targets.continuation(START), sources=SOURCES)
    assert long.method == "gae"
    assert "of at most 9 tokens; this one has 10" in long.provenance["default"]


def test_on_two_streams_the_reason_names_the_default_of_answers():
    model = golden2("encdec_t5", "eager").model
    given = {"input_ids": IDS % 30 + 3, "decoder_input_ids": IDS[:, :5] % 30 + 3}
    found = vitrail.explain(model, given, target=targets.continuation(3))
    assert found.method == "attn_lrp"
    assert found.provenance["default"].startswith("soft_ablation is defined on one stream")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"presence": 0.0}, "above 0 and at most 1"),
        ({"presence": 1.5}, "above 0 and at most 1"),
        ({"share": -1.0}, "at least 0"),
        ({"sources": [3]}, "pairs of columns"),
        ({"sources": [(0, 3), [2, 5]]}, "overlap"),
        ({"sources": [(8, 9)]}, "at least one is needed"),
        ({"target": None}, "targets.continuation"),
    ],
)
def test_what_cannot_be_turned_down_is_one_clear_error(given, words):
    target = given.pop("target", targets.continuation(START))
    with pytest.raises(vitrail.VitrailError, match=words):
        vitrail.explain(golden2("llm_llama", "sdpa").model, {"input_ids": IDS}, "soft_ablation", target, **given)
