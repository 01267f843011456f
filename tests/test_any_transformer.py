"""Unmodified models without any anatomy: what is found in them gives the maps that plain matrices give.

The table is in `any_models`, `any_more_models` and `any_new_models`. A tenth runs by default (a twentieth by every
method), the rest with `make models` (`-m table`). `docs/models.md` has one row for each model;
`python tests/any_outcomes.py` writes it again.
"""

import copy
import re

import pytest
import torch
import transformers
from any_models import ByHand, Entry, Fused, Own, Parallel, blocks
from any_new_models import TABLE
from any_outcomes import METHODS, documented, explained, outcomes, prepared
from any_own_models import ManualExp
from torch.testing import assert_close

import vitrail
from vitrail.capture.recording import forward
from vitrail.capture.structure import sequences
from vitrail.errors import VitrailError
from vitrail.tools.doctor import examine

WORKING = [name for name, entry in TABLE.items() if entry.refused is None]
REFUSED = [name for name, entry in TABLE.items() if entry.refused is not None]


HEAVY = {"timm/sequencer"}
"""Models that take ten seconds each."""


def tenth(names: list[str], *, step: int = 10) -> list:
    """Every tenth by default; the others, and those that are heavy, carry the mark `table`."""
    by_default = {name for name in names[::step] if name not in HEAVY}
    return [name if name in by_default else pytest.param(name, marks=pytest.mark.table) for name in names]


def gae_by_matrices(entry, model, inputs, choose) -> torch.Tensor:
    """Chefer et al., Eq. 5 and 6, on the maps the model returns itself; rows are read where the gradient arrives."""
    eager = entry.build(attn_implementation="eager").double().eval()
    eager.load_state_dict(model.state_dict())
    out = eager(**inputs, output_attentions=True, output_hidden_states=True)
    hidden = out.hidden_states[-1]
    *grads, arriving = torch.autograd.grad(choose(out.logits).sum(), [*out.attentions, hidden])
    tokens = out.attentions[0].shape[-1]
    total = torch.eye(tokens, dtype=torch.float64).repeat(len(hidden), 1, 1)
    for attention, gradient in zip(out.attentions, grads, strict=True):
        total = total + (attention * gradient).clamp(min=0).mean(dim=1) @ total
    arriving = arriving.movedim(0, -1).flatten(2) if arriving.ndim == 4 else arriving  # Gemma 3n keeps several states
    read = (arriving != 0).any(dim=-1).to(total)
    if entry.halves:
        read[:, 0] = read[:, 1:].sum(dim=1)
    return ((read / read.sum(dim=1, keepdim=True))[:, None] @ total)[:, 0].detach()


@pytest.mark.parametrize("name", tenth([name for name in WORKING if TABLE[name].attentions]))
def test_gae_is_what_plain_matrices_give_on_the_maps_a_model_returns(name):
    model, inputs = prepared(TABLE[name])
    for index in (1, 2):
        target, choose = TABLE[name].target(index)
        expected = gae_by_matrices(TABLE[name], model, inputs, choose)
        found = vitrail.explain(model, inputs, "gae", target).scores
        assert_close(found, expected[:, expected.shape[1] - found.shape[1] :], atol=1e-6, rtol=1e-6)


AT_LAYERS = {"decoder/gemma4", "decoder/nemotron_h_attention"}
"""Models whose hidden states are not what their attention layers read.

What Gemma 4 returns first also feeds all later layers; Nemotron-H returns what enters layers that do not attend.
"""


def entering_layers(model) -> list[torch.Tensor]:
    """What enters each layer that attends, filled in as the model runs."""
    found: list[torch.Tensor] = []

    def keep(module, args):
        found.append(args[0].clone())
        return (found[-1], *args[1:])

    for layer, kind in zip(model.model.layers, model.config.layer_types, strict=True):
        if kind.endswith("attention"):
            layer.register_forward_pre_hook(keep)
    return found


def attcat_by_matrices(name, eager, inputs, choose) -> torch.Tensor:
    """Qiang et al., Eq. 10 to 12, on the maps a model returns and the states that enter its blocks."""
    eager = copy.deepcopy(eager)
    entering = entering_layers(eager) if name in AT_LAYERS else None
    out = eager(**inputs, output_attentions=True, output_hidden_states=True)
    states = out.hidden_states[: len(out.attentions)] if entering is None else entering
    gradients = torch.autograd.grad(choose(out.logits).sum(), states)
    found = zip(out.attentions, states, gradients, strict=True)
    return sum(a.mean(dim=(1, 2)) * (h * gradient).sum(dim=-1) for a, h, gradient in found).detach()


def gradients_integrated_by_hand(model, inputs, choose, steps: int) -> torch.Tensor:
    """Sundararajan et al., Eq. 3 at the middles of equal parts, on word vectors as they are looked up or on pixels.

    Vectors are not handed over as `inputs_embeds`: models count positions, and look up more, by the ids.
    """
    text = "input_ids" in inputs
    met: dict[str, torch.Tensor] = {}

    def scaled(x: torch.Tensor) -> torch.Tensor:
        met["whole"] = x.detach()
        met["leaf"] = (share * met["whole"]).requires_grad_()
        return met["leaf"].clone()

    def look_up(module, args, out):
        return scaled(out)

    def give(module, args, kwargs):
        ((name, x),) = kwargs.items()
        return args, {name: scaled(x)}

    if text:  # T5 asks another module that holds the same table
        table = model.get_input_embeddings().weight
        places = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.weight is table]
        handles = [place.register_forward_hook(look_up) for place in places]
    else:
        handles = [model.register_forward_pre_hook(give, with_kwargs=True)]
    total = torch.zeros(())
    for i in range(steps):
        share = (i + 0.5) / steps
        answer = choose(model(**inputs).logits)
        total = total + torch.autograd.grad(answer.sum(), met["leaf"])[0]
    for handle in handles:
        handle.remove()
    return (met["whole"] * total / steps).sum(dim=-1 if text else 1).detach()


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal by the largest score."""
    scale = expected.abs().max()
    assert_close(found / scale, expected / scale, atol=1e-6, rtol=0)


NO_TABLE = {"encoder/ibert"}
"""Models that look their words up in no `nn.Embedding`."""


@pytest.mark.parametrize("name", tenth([n for n in documented() if TABLE[n].attentions and TABLE[n].refused is None]))
def test_attcat_and_integrated_gradients_are_what_plain_torch_gives(name):
    entry = TABLE[name]
    model, inputs = prepared(entry)
    target, choose = entry.target(1)
    if documented()[name]["attcat"] == "ok":
        # The same kernels as the reference: norms of Hugging Face compute in float32, whatever the weights are, so that
        # other kernels change the answer by more than is allowed here.
        eager = entry.build(attn_implementation="eager").double().eval()
        eager.load_state_dict(model.state_dict())
        expected = attcat_by_matrices(name, eager, inputs, choose)
        found = vitrail.explain(eager, inputs, "attcat", target, states="input").scores
        assert_alike(found, expected[:, expected.shape[1] - found.shape[1] :])
    if entry.shown in ("text", "image"):
        level = {"text": "inputs_embeds", "image": "pixels"}[entry.shown]
        if name in NO_TABLE:
            with pytest.raises(VitrailError, match=r"no table of word embeddings .*level='embedding_output'"):
                vitrail.explain(model, inputs, "integrated_gradients", target, steps=3, level=level)
            return
        one = vitrail.explain(model, inputs, "integrated_gradients", target, steps=3, level=level)
        found = one.scores if one.pixels is None else one.pixels
        assert_alike(found, gradients_integrated_by_hand(model, inputs, choose, steps=3))


@pytest.mark.parametrize("name", tenth(list(documented()), step=20))
def test_every_method_does_what_the_page_says(name):
    assert outcomes(TABLE[name]) == documented()[name]


def applying(name: str, request: pytest.FixtureRequest) -> list[str]:
    """The methods that explain a model: all of them where the whole table is run, else gae and one by turn."""
    found = [method for method in METHODS if documented()[name][method] == "ok"]
    if request.node.get_closest_marker("table") is not None:
        return found
    return list(dict.fromkeys(["gae", found[list(documented()).index(name) % len(found)]]))


@pytest.mark.parametrize("name", tenth([name for name in documented() if TABLE[name].refused is None]))
def test_a_batch_gives_what_its_samples_give_and_classes_differ(name, request):
    entry = TABLE[name]
    model, inputs = prepared(entry)
    for method in applying(name, request):
        whole = explained(entry, model, inputs, method)
        allowed = SINGLE if name in ANSWERS_IN_FLOAT32 else close(model)
        # Norms of Hugging Face compute in float32: near zero they round by much of what they are given.
        share = 1e-5 if name in ROUNDS_TO_FLOAT32 else 1e-6 if method == "integrated_gradients" else 0
        allowed = {**allowed, "atol": max(allowed["atol"], share * float(whole.abs().max()))}
        for i in range(2):
            assert_close(explained(entry, model, taken(inputs, i), method), whole[i : i + 1], **allowed)
        if not entry.single and (name, method) not in TOO_SMALL:
            other = explained(entry, model, inputs, method, index=2)
            assert float((whole - other).abs().max()) > 1e-13, method  # layer scale begins at 1e-5


PADDED_LEFT = {"encoder/xlnet"}
"""Models that answer at the last column."""
READS_PADDING = {"vision/imagegpt"}
"""Models that answer by the mean of all columns, whatever the mask says."""
CHOOSES_PADDING = {("decoder/deepseek_v32", "integrated_gradients")}
"""Where a model attends to the best few keys and counts padding among them: near zero, on the path to a text."""


def is_padded(name: str) -> bool:
    entry = TABLE[name]
    return entry.refused is None and entry.shown == "text" and "adapted" not in name and name not in READS_PADDING


@pytest.mark.parametrize("name", tenth([name for name in documented() if is_padded(name)]))
def test_padding_changes_nothing(name, request):
    entry = TABLE[name]
    model, inputs = prepared(entry)
    ends = (3, 0) if name in PADDED_LEFT else (0, 3)
    padded = {key: torch.nn.functional.pad(x, ends) for key, x in inputs.items()}
    real = padded["attention_mask"][0].bool()
    for method in applying(name, request):
        if (name, method) in CHOOSES_PADDING:
            continue
        whole, found = explained(entry, model, inputs, method), explained(entry, model, padded, method)
        assert_close(found[:, real], whole, atol=1e-6, rtol=1e-6)
        assert_close(found[:, ~real], torch.zeros_like(found[:, ~real]))


def test_a_text_that_is_masked_between_layers_is_shown_where_it_enters():
    model, inputs = prepared(TABLE["encoder/xlm"])
    padded = {key: torch.nn.functional.pad(x, (0, 3)) for key, x in inputs.items()}
    whole, found = (vitrail.explain(model, x, "tokentm", 1).scores for x in (inputs, padded))
    assert_close(found[:, :9], whole, atol=1e-12, rtol=1e-9)
    assert float(whole[:, 1:].min()) > 0


@pytest.mark.parametrize("name", tenth(REFUSED))
def test_what_cannot_be_attributed_is_refused_with_what_was_found(name):
    entry = TABLE[name]
    model, inputs = prepared(entry)
    with pytest.raises(VitrailError) as error:
        explained(entry, model, inputs, "gae")
    assert re.search(str(entry.refused), str(error.value))


@pytest.mark.parametrize("name", tenth([name for name, cells in documented().items() if cells["gae"] == "ok"]))
def test_what_is_recorded_is_what_a_model_computed(name):
    model, inputs = prepared(TABLE[name])
    if name in MERGING or name in WITHOUT_LOGITS:
        words = "compares the layers of one stream" if name in MERGING else "an explanation needs logits"
        with pytest.raises(VitrailError, match=words):
            examine(model, inputs)
    else:
        assert examine(model, inputs).passed


MERGING = {
    "decoder/gemma3n", "decoder/hy_v4", "encoder/perceiver", "series/patchtst", "series/patchtst_channels",
    "series/patchtst_cls",
    "series/patchtst_prediction", "series/patchtst_regression", "timm/fastvit", "timm/hiera", "timm/swin",
    "timm/swinv2_cr", "timm/visformer", "vision/eomt", "vision/hiera", "vision/pvt", "vision/swin",
}  # fmt: skip
"""Models of several streams, or that merge tokens on the way: the self-test reads the layers of one stream."""
WITHOUT_LOGITS = {"vision/aimv2", "vision/dinov3", "vision/mlcd", "vision/pixio"}
"""Encoders, whose scalar is a similarity."""


def taken(inputs, i: int):
    if isinstance(inputs, dict):
        return {key: x[i : i + 1] for key, x in inputs.items()}
    return inputs[i : i + 1]


TOO_SMALL = {("adapted/data_parallel", "tokentm")}
"""Where what differs between classes is less than float32 keeps of the score."""
SINGLE = {"atol": 1e-4, "rtol": 1e-3}
ANSWERS_IN_FLOAT32 = {"decoder/beam"}
"""Models whose logits are float32 where their weights are float64."""
ROUNDS_TO_FLOAT32 = {"decoder/openai_privacy"}
"""Models whose experts compute in float32."""


def close(model) -> dict[str, float]:
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return {torch.float64: {"atol": 1e-9, "rtol": 1e-7}, torch.float32: SINGLE}.get(dtype, {"atol": 5e-2, "rtol": 5e-2})


class ParallelInPlace(Parallel):
    """Attention is added to what the feed-forward part gave, in its place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.first(x)
        attended, added = self.out(self.attend(normed)), self.feed(normed)
        added += attended
        return x + added


def test_a_sublayer_that_is_written_into_is_known_as_it_was():
    torch.manual_seed(0)
    plain = Own(torch.nn.Embedding(64, 24), blocks(Parallel, Parallel)).double()
    changed = Own(torch.nn.Embedding(64, 24), blocks(ParallelInPlace, ParallelInPlace)).double()
    changed.load_state_dict(plain.state_dict())
    ids = TABLE["own/parallel"].inputs()
    found, expected = (vitrail.explain(model, ids, "tokentm", 1).scores for model in (changed, plain))
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["vision/siglip", "timm/vit_map_gap"])
def test_frozen_weights_change_nothing(name):
    entry = TABLE[name]
    model, inputs = prepared(entry)
    frozen = copy.deepcopy(model).requires_grad_(requires_grad=False)  # no query of a pooling attention has a graph
    assert_close(explained(entry, frozen, inputs, "gae"), explained(entry, model, inputs, "gae"))


@pytest.mark.parametrize(
    "name", ["decoder/qwen2", "decoder/gpt2", "encoder/bert", "timm/vit_tiny_patch16_224", "own/torch_fast_path"]
)
def test_what_is_found_of_a_known_family_gives_what_its_table_gives(name, monkeypatch):
    entry = TABLE[name]
    known, inputs = prepared(entry)
    with torch.no_grad():  # biases begin at zero
        for parameter in known.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    found = copy.deepcopy(known)
    options = [("gae", {}), ("tokentm", {}), ("tokentm", {"value_bias": False}), ("attcat", {}), ("attn_lrp", {})]
    expected = [vitrail.explain(known, inputs, method, 1, **more).scores for method, more in options]
    for module in (forward, sequences):
        monkeypatch.setattr(module, "known_anatomy", lambda model: None)
    with torch.no_grad():  # as callers often do
        for (method, more), one in zip(options, expected, strict=True):
            assert_close(vitrail.explain(found, inputs, method, 1, **more).scores, one, atol=1e-12, rtol=1e-12)
    assert float((expected[1] - expected[2]).abs().max()) > 1e-9


class Pair(torch.nn.Module):
    """A block of attention and a feed-forward part, each added to the stream."""

    def __init__(self, attend: torch.nn.Module, feed: torch.nn.Module) -> None:
        super().__init__()
        self.attend, self.feed = attend, feed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x) + x
        return self.feed(x) + x


class InLoop(torch.nn.Module):
    """The same sums in the loop of the model's own forward, so that no module is a block."""

    def __init__(self, pairs: torch.nn.ModuleList) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ModuleList([pair.attend, pair.feed]) for pair in pairs])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attend, feed in self.layers:
            x = attend(x) + x
            x = feed(x) + x
        return x


class Attend(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(24), torch.nn.Linear(24, 72), torch.nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (y.unflatten(-1, (3, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=-1))
        return self.out(torch.nn.functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))


def test_sums_in_the_loop_of_a_model_give_what_sums_in_blocks_give():
    torch.manual_seed(0)
    feeds = [torch.nn.Sequential(torch.nn.LayerNorm(24), torch.nn.Linear(24, 24), torch.nn.GELU()) for _ in range(2)]
    pairs = torch.nn.ModuleList([Pair(Attend(), feed) for feed in feeds])
    inside = Own(torch.nn.Embedding(64, 24), torch.nn.Sequential(*pairs)).double()
    outside = Own(inside.embed, InLoop(pairs)).double()
    outside.head = inside.head
    ids = TABLE["own/parallel"].inputs()
    assert_close(outside(ids), inside(ids), atol=0, rtol=0)
    for method in ("gae", "tokentm", "gradtoken"):
        found, expected = (vitrail.explain(model, ids, method, 1) for model in (outside, inside))
        assert_close(found.scores, expected.scores, atol=1e-12, rtol=1e-12)
    found = vitrail.compare(outside, ids, ["gae", "tokentm", "attn_lrp", "integrated_gradients"], 1)
    assert all("no module is a block" in one.provenance["assumed"][0] for one in found[2:])
    with pytest.raises(VitrailError, match=r"no module is a block.*InLoop adds what they give"):
        vitrail.explain(outside, ids, "attcat", 1)
    with pytest.raises(VitrailError, match=r"embedding_output"):
        vitrail.explain(outside, ids, "attn_lrp", 1, level="embedding_output")


class PooledTokens(torch.nn.Module):
    """Four tokens become one by their maximum, between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = torch.nn.Linear(3, 24), Pair(Attend(), torch.nn.Linear(24, 24)), Attend()
        self.head = torch.nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.embed(x)).unflatten(1, (-1, 4)).max(dim=2).values
        return self.head((x + self.second(x)).mean(dim=1))


def test_a_maximum_over_tokens_reads_all_of_them_whatever_was_measured_first():
    torch.manual_seed(0)
    model, series = PooledTokens().double(), torch.randn(2, 16, 3, dtype=torch.float64)
    vitrail.explain(model, series[:1], "gae", 1)
    later = vitrail.explain(model, series[1:], "gae", 1).scores
    assert_close(later, vitrail.explain(copy.deepcopy(model), series[1:], "gae", 1).scores)
    assert float(later.min()) > 0


class SideBySide(torch.nn.Module):
    """Two attentions that read the same tokens, and a merge that makes the model one of several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one, self.two, self.last = torch.nn.Linear(3, 24), Attend(), Attend(), Attend()
        self.head = torch.nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = (x + self.one(x) + self.two(x)).unflatten(1, (-1, 2)).mean(dim=2)
        return self.head((x + self.last(x)).mean(dim=1))


def test_attention_side_by_side_is_refused_in_stages_too():
    torch.manual_seed(0)
    model, series = SideBySide().double(), torch.randn(2, 8, 3, dtype=torch.float64)
    with pytest.raises(VitrailError, match="side by side"):
        vitrail.explain(model, series, "gae", 1)


def test_a_dense_answer_is_explained_by_the_scalar_that_is_named():
    entry = TABLE["vision/dpt_segments"]
    model, inputs = prepared(entry)
    with pytest.raises(VitrailError, match=r"logits of shape \(2, 5, 64, 64\).*lambda logits: logits\[:, 0, 0, 0\]"):
        vitrail.explain(model, inputs, "gae", 1)
    leaf = inputs["pixel_values"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).logits[:, 2, 5, 7].sum(), leaf)
    found = vitrail.explain(model, inputs, "input_x_gradient", lambda logits: logits[:, 2, 5, 7], level="pixels").pixels
    assert_alike(found, (leaf * gradient).sum(dim=1).detach())


def test_the_table_has_a_hundred_and_ten_classes_and_the_groups_that_were_promised():
    least = {"decoders": 25, "encoders": 20, "timm": 30, "audio": 5, "video": 3, "tabular and own": 8,
             "adapted and quantised": 8}  # fmt: skip
    for group, count in least.items():
        assert sum(entry.group == group for entry in TABLE.values()) >= count, group
    assert len(TABLE) >= 110
    assert all(isinstance(entry, Entry) for entry in TABLE.values())


def test_a_state_that_is_narrower_than_the_stream_is_refused():
    entry = TABLE["encoder/mobilebert"]
    model, inputs = prepared(entry)
    with pytest.raises(VitrailError, match=r"ffn_entering.*it has the shape \(2, 9, 16\) in a block that \(2, 9, 32\)"):
        vitrail.explain(model, inputs, "tokentm", 1)


@pytest.mark.parametrize("level", ["inputs_embeds", "embedding_output"])
def test_a_model_may_write_into_the_vectors_it_looks_up(level):
    model, inputs = prepared(TABLE["decoder/ctrl"])
    found = vitrail.explain(model, inputs, "input_x_gradient", 1, level=level).scores
    assert bool(found.isfinite().all())


class Switching(Attend):
    """Attention to near tokens, until a short text makes it attend to all of them, also later if it stays."""

    def __init__(self, *, causal: bool, stays: bool) -> None:
        super().__init__()
        self.causal, self.stays, self.local = causal, stays, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if n < 300 and self.stays:
            self.local = False
        before = torch.arange(n)[:, None] - torch.arange(n)
        near = (before.abs() < 5) if self.local and n >= 300 else torch.ones(n, n, dtype=torch.bool)
        split = (y.unflatten(-1, (3, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mask = near & (before >= 0) if self.causal else near
        attended = torch.nn.functional.scaled_dot_product_attention(*split, attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("causal", "length"), [(False, 310), (True, 310), (True, 600)])
def test_what_a_model_changes_of_itself_on_a_part_of_a_text_is_undone(causal, length):
    found = []
    for stays in (True, False):
        torch.manual_seed(0)
        pairs = [Pair(Switching(causal=causal, stays=stays), torch.nn.Linear(24, 24)) for _ in range(2)]
        model = Own(torch.nn.Embedding(64, 24), torch.nn.Sequential(*pairs)).double()
        ids = torch.randint(0, 64, (1, length))
        found.append(vitrail.explain(model, ids, "gae", 1).scores)
        vitrail.explain(model, ids[:, :100], "gae", 1)
        found.append(vitrail.explain(model, ids, "gae", 1).scores)
        assert all(pair.attend.local for pair in pairs)
    for one in found[:-1]:
        assert_close(one, found[-1], atol=1e-14, rtol=1e-12)


class InChunks(Attend):
    """Attention that takes its queries four at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (3, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=-1))
        parts = [torch.nn.functional.scaled_dot_product_attention(one, k, v) for one in q.split(4, dim=2)]
        return self.out(torch.cat(parts, dim=2).transpose(1, 2).flatten(2))


def test_a_text_whose_queries_are_taken_in_parts_is_refused():
    torch.manual_seed(0)
    pairs = [Pair(InChunks(), torch.nn.Linear(24, 24)) for _ in range(3)]
    model = Own(torch.nn.Embedding(64, 24), torch.nn.Sequential(*pairs)).double()
    ids = TABLE["own/parallel"].inputs()
    with pytest.raises(VitrailError, match=r"takes its queries some at a time"):
        vitrail.explain(model, ids, "gae", 1)
    assert vitrail.explain(model, ids, "attn_lrp", 1).scores.shape == ids.shape


class AddedKey(Fused):
    """Attention over the tokens and over one more key and value of zeros, which are no token."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        more = (torch.nn.functional.pad(y, (0, 0, 0, 1)) for y in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, *more).transpose(1, 2).flatten(2)


class Sink(Fused):
    """The same, as a column of zeros in the softmax."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.nn.functional.pad((q @ k.mT) * q.shape[-1] ** -0.5, (0, 1))
        return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2).flatten(2)


def own_model(kind: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return Own(torch.nn.Embedding(64, 24), blocks(kind, kind)).double()


def test_keys_that_are_no_tokens_stop_maps_and_not_the_default():
    ids = torch.arange(12).view(2, 6)
    found, expected = (vitrail.explain(own_model(kind), ids, target=1) for kind in (AddedKey, Sink))
    assert_close(found.scores, expected.scores)
    with pytest.raises(VitrailError, match=r"7 keys for 6 queries: 1 keys belong to no token"):
        vitrail.explain(own_model(AddedKey), ids, "gae", 1)


class Mapped(ByHand):
    """A block that takes its samples one by one, under `torch.vmap`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda one: super(Mapped, self).forward(one[None])[0])(x)


def test_attention_inside_of_a_transform_is_refused_and_gradients_at_the_inputs_are_not():
    ids = torch.arange(12).view(2, 6)
    with pytest.raises(VitrailError, match=r"attends inside of a transform of torch\.func"):
        vitrail.explain(own_model(Mapped), ids, "gae", 1)
    found, expected = (
        vitrail.explain(own_model(kind), ids, "integrated_gradients", 1, steps=2, level="inputs_embeds")
        for kind in (Mapped, Fused)
    )
    assert_close(found.scores, expected.scores)


def test_a_softmax_in_parts_is_walked_and_has_no_rule():
    ids, (parts, whole) = torch.arange(12).view(2, 6), (own_model(kind) for kind in (ManualExp, Fused))
    found, expected = (vitrail.compare(model, ids, ["gae", "tokentm", "agcam"], 1) for model in (parts, whole))
    for one, other in zip(found, expected, strict=True):
        assert_close(one.scores, other.scores)
    with pytest.raises(VitrailError, match=r"softmax of its attention in parts"):
        vitrail.explain(parts, ids, "attn_lrp", 1)
    assert vitrail.explain(parts, ids, target=1).method == "gae"


class OneChoice(torch.nn.Module):
    """A model of multiple choice, asked about one choice: the module that the refusal of all choices names."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids[:, None]).logits


def test_choices_are_explained_one_by_one():
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    torch.manual_seed(0)
    model = (
        transformers.BertForMultipleChoice(transformers.BertConfig(vocab_size=64, attn_implementation="eager", **sizes))
        .double()
        .eval()
    )
    ids = torch.arange(4, 40).view(2, 3, 6)
    with pytest.raises(VitrailError, match=r"several choices each.*ids\[:, None\]"):
        vitrail.explain(model, {"input_ids": ids}, "gae")
    found = vitrail.explain(OneChoice(model), {"input_ids": ids[:, 1]}, "gae", 0)
    out = model(input_ids=ids, output_attentions=True)
    total = torch.eye(6, dtype=torch.float64)
    for attention in out.attentions:
        (gradient,) = torch.autograd.grad(out.logits[:, 1].sum(), attention, retain_graph=True)
        total = total + (attention * gradient).clamp(min=0).mean(dim=1) @ total
    assert_close(found.scores, total.unflatten(0, (2, 3))[:, 1, 0].detach(), atol=1e-12, rtol=1e-9)
