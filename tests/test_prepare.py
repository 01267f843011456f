"""Prepared explanations: captured once, replayed on other inputs of the same shape; see `recorders`."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import wrapped_models
from recorders import rerun, strict, taped
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.api import cuda_replay
from vitrail.api import explainer as explaining
from vitrail.api.explainer import CALLS_BEFORE_CAPTURE
from vitrail.capture.graphs import GraphError, HostAnswers, _unnoticed
from vitrail.capture.shadow import shadow
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.targets import difference

NAMES = ("hf_vit", "timm_vit_avg", "hf_bert")
METHODS = ("gae", "tokentm", "attn_lrp", "consensus")


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.delenv(explaining.SWITCH, raising=False)
    monkeypatch.setitem(cuda_replay.RECORDERS, "cpu", strict)


def inputs_of(name, seed, batch=None):
    generator = torch.Generator().manual_seed(seed)

    def other(x):
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator, dtype=x.dtype)[:batch]
        return torch.randint(5, 30, x.shape, generator=generator)[:batch]

    given = MODELS[name].inputs()
    if isinstance(given, torch.Tensor):
        return other(given)
    return {n: x[:batch] if "mask" in n else other(x) for n, x in given.items()}


def close(found, expected):
    numbers = isinstance(expected, list) and expected and isinstance(expected[0], float)
    assert found == (pytest.approx(expected) if numbers else expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_a_replay_on_new_inputs_gives_what_explain_gives(name, method, recorded, monkeypatch):
    model = tiny(name)
    prepared = vitrail.prepare(model, MODELS[name].inputs(), method)
    assert prepared.reason is None
    new, fewer = inputs_of(name, 3), inputs_of(name, 4, batch=1)
    expected = [vitrail.explain(model, x, method) for x in (new, fewer)]
    monkeypatch.setattr(explaining, "explain", lambda *args, **kwargs: pytest.fail("the ordinary way was taken"))
    for inputs, ordinary in zip((new, fewer), expected, strict=True):
        found = prepared(inputs)
        assert_close(found.scores, ordinary.scores, rtol=1e-6, atol=1e-9)
        assert found.target == ordinary.target
        assert found.tokens == ordinary.tokens
        assert found.label == ordinary.label
        assert found.provenance["prepared"] is True
        assert found.provenance.keys() - {"prepared"} == ordinary.provenance.keys()
        for name in ("probability", "samples", "disagreement", "parts", "classes"):
            close(found.provenance.get(name), ordinary.provenance.get(name))
        assert found.provenance["model_hash"] == ordinary.provenance["model_hash"]


def test_weights_may_change_where_they_are(recorded):
    model = copy.deepcopy(tiny("timm_vit_avg"))
    inputs = inputs_of("timm_vit_avg", 3)
    prepared = vitrail.prepare(model, inputs, "gae")
    before = prepared(inputs)
    next(p for n, p in model.named_parameters() if n.endswith("qkv.weight")).data.mul_(1.5)
    after, expected = prepared(inputs), vitrail.explain(model, inputs, "gae")
    assert after.provenance["model_hash"] == expected.provenance["model_hash"] != before.provenance["model_hash"]
    assert after.provenance["probability"] == pytest.approx(expected.provenance["probability"])
    assert_close(after.scores, expected.scores)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(InputError, match="prepare it again"):
        prepared(inputs)


def test_classes_are_given_with_each_call(recorded):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    prepared = vitrail.prepare(model, inputs, "gae", target="given")
    assert prepared.reason is None
    assert_close(prepared(inputs, [2, 1]).scores, vitrail.explain(model, inputs, "gae", [2, 1]).scores)
    assert_close(prepared(inputs, -1).scores, vitrail.explain(model, inputs, "gae", -1).scores)
    for wrong, words in (
        (99, "out of range"),
        (True, "whole number|class"),
        ([1], "1 targets"),
        (difference(1, 2), "one class"),
    ):
        with pytest.raises(TargetError, match=words):
            prepared(inputs, wrong)
    with pytest.raises(TargetError, match="needs one"):
        prepared(inputs)
    with pytest.raises(TargetError, match="already"):
        vitrail.prepare(model, inputs, "gae")(inputs, 1)


def test_inputs_on_which_python_decides_otherwise_are_explained_in_the_ordinary_way(recorded):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    mask = torch.ones_like(inputs["attention_mask"])
    prepared = vitrail.prepare(model, {**inputs, "attention_mask": mask}, "gae")
    padded = {**inputs, "attention_mask": mask.index_fill(1, torch.tensor([mask.shape[1] - 1]), 0)}
    found = prepared(padded)  # recorded without a mask
    assert "prepared" not in found.provenance
    assert_close(found.scores, vitrail.explain(model, padded, "gae").scores)


def test_not_a_number_is_told_as_ever(recorded):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    prepared = vitrail.prepare(model, inputs, "gae")
    broken = (
        {n: x.clone().fill_(torch.nan) for n, x in inputs.items()} if isinstance(inputs, dict) else inputs * torch.nan
    )
    with pytest.raises(InputError, match="NaN"):
        prepared(broken)


def test_other_shapes_and_words_are_refused():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    prepared = vitrail.prepare(model, inputs, "gae")
    shown = inputs if isinstance(inputs, torch.Tensor) else inputs["pixel_values"]
    larger = torch.cat([shown, shown])
    with pytest.raises(InputError, match="1 to 2"):
        prepared(larger if isinstance(inputs, torch.Tensor) else {"pixel_values": larger})
    with pytest.raises(OptionError, match="predicted"):
        vitrail.prepare(model, inputs, "gae", target="best")


def test_without_a_graph_the_reason_is_said_and_results_are_the_same():
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    prepared = vitrail.prepare(model, inputs, "gae")
    assert "cuda" in prepared.reason
    assert_close(prepared(inputs).scores, vitrail.explain(model, inputs, "gae").scores)


def test_a_different_decision_is_seen_on_the_device_and_a_different_question_is_an_error():
    x = torch.tensor([1.0, 2.0])

    def compute():
        return x * 2 if bool((x > 0).all()) else x * 3

    recorded = rerun(compute, "cpu")
    x.copy_(torch.tensor([5.0, 6.0]))
    found, agrees = recorded.run()
    assert bool(agrees)
    assert_close(found, torch.tensor([10.0, 12.0]))
    x.copy_(torch.tensor([-5.0, 6.0]))
    assert not bool(recorded.run()[1])
    answers = HostAnswers("cpu")
    with answers:
        bool(x.any())
    with pytest.raises(GraphError, match="asked for item"), answers.again():
        x.sum().item()


RECORDED = (*METHODS, "conservative_lrp", "partial_lrp", "le_grad")
EXACT = {"partial_lrp": 1e-4}
"""In float32, as a share of the largest score, where 1e-6 is too little: a change of the weights by 1e-7, one rounding,
moves the scores of `partial_lrp` by 2e-5."""
CLASSES = {"partial_lrp": 0}
"""The class, where the map of the predicted one has no positive entry on one of NAMES, so that it is zero."""


def check_recording(name, dtype, device, method):
    model = copy.deepcopy(tiny(name)).to(device, dtype)

    def there(inputs):
        if isinstance(inputs, dict):
            return {n: x.to(device, dtype if x.is_floating_point() else x.dtype) for n, x in inputs.items()}
        return inputs.to(device, dtype)

    target = CLASSES.get(method)
    prepared = vitrail.prepare(model, there(MODELS[name].inputs()), method, "predicted" if target is None else target)
    assert prepared.reason is None, method
    new = there(inputs_of(name, 3))
    found, *ordinary = prepared(new), *(vitrail.explain(model, new, method, target) for _ in range(3))
    assert found.provenance["prepared"]
    scale = float(ordinary[0].scores.abs().max())
    assert scale > 0, f"the map of {method} on {name} is zero, which compares nothing"
    # Backward passes of attention in half precision add in any order: two ordinary runs differ as well.
    noise = max(float((x.scores - ordinary[0].scores).abs().max()) / scale for x in ordinary)
    allowed = EXACT.get(method, 1e-6) if dtype is torch.float32 else max(1e-3, 2 * noise)
    assert float((found.scores - ordinary[0].scores).abs().max()) / scale <= allowed, (method, noise)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("method", RECORDED)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cuda_graph_gives_what_explain_gives(name, dtype, method):
    check_recording(name, dtype, "cuda", method)


@pytest.mark.parametrize("method", ["conservative_lrp", "partial_lrp", "le_grad"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_tested_on_cuda_holds_for_recordings_without_a_graph(name, method, recorded):
    check_recording(name, torch.float32, "cpu", method)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_libraries_that_ask_whether_a_graph_is_recorded_go_on_as_ever():
    """They would build masks of ones, and attention would run by another kernel."""
    asked, model = [], copy.deepcopy(tiny("hf_bert")).float().cuda()
    model.register_forward_pre_hook(lambda *_: asked.append(torch.cuda.is_current_stream_capturing()))
    prepared = vitrail.prepare(model, {"input_ids": torch.randint(5, 30, (2, 9), device="cuda")}, "gae")
    assert prepared.reason is None
    assert len(asked) > 3
    assert not any(asked)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
        assert torch.cuda.is_current_stream_capturing()


def test_a_model_whose_settings_changed_is_explained_as_it_is_now(recorded):
    model, inputs = MODELS["hf_vit"].build().eval(), MODELS["hf_vit"].inputs()
    prepared = vitrail.prepare(model, inputs, "gae")
    assert prepared(inputs).provenance.get("prepared") is True
    model.classifier.register_forward_hook(lambda module, args, out: out.flip(1))
    found = prepared(inputs)
    assert found.provenance.get("prepared") is None
    assert_close(found.scores, vitrail.explain(model, inputs, "gae").scores)


@pytest.mark.parametrize("method", ["gae", "grad_cam"])
def test_texts_that_pictures_are_compared_with_are_not_samples(recorded, method):
    """They were once repeated to fill up the batch: more classes than there are, or a plain RuntimeError."""
    texts = wrapped_models.inputs_of("clip")
    model, some = wrapped_models.build("clip"), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    prepared = vitrail.prepare(model, {**texts, "pixel_values": some}, method)
    assert prepared.reason is None
    for batch in (3, 2, 1):
        inputs = {**texts, "pixel_values": torch.randn(batch, 3, 32, 32, dtype=torch.float64)}
        found, wanted = prepared(inputs), vitrail.explain(model, inputs, method)
        assert found.provenance["prepared"]
        assert found.target == wanted.target
        assert_close(found.scores, wanted.scores)
    fewer = {name: x[:2] for name, x in texts.items() if name != "pixel_values"}
    with pytest.raises(InputError, match="prepared for"):
        prepared({**fewer, "pixel_values": some})


def test_threads_that_record_at_once_leave_torch_as_it_was():
    """Each once put back what it had found: the second for good what the first had put there."""
    own, gate = torch.cuda.is_current_stream_capturing, threading.Barrier(2, timeout=300)

    def first():
        with _unnoticed:
            gate.wait()
            gate.wait()  # the second has entered
        gate.wait()

    thread = threading.Thread(target=first)
    thread.start()
    gate.wait()
    with _unnoticed:
        gate.wait()
        gate.wait()  # the first has left
        assert torch.cuda.is_current_stream_capturing is not own
    thread.join()
    assert torch.cuda.is_current_stream_capturing is own


def test_the_copy_that_a_recording_reads_is_used_by_no_other_call():
    model = nn.BatchNorm1d(2).eval()
    seen = []

    def compute():
        with shadow(model) as own:
            seen.append(own.running_mean)  # held, so that its memory is not given out twice
            return own(torch.ones(3, 2))

    replay = rerun(compute, "cpu")
    replay.run()
    with shadow(model) as own:
        seen.append(own.running_mean)
    first, *recorded, last = [x.data_ptr() for x in seen]
    assert len(recorded) == 2
    assert not set(recorded) & {first, last}


def test_inputs_that_come_again_are_explained_by_a_recording(recorded, monkeypatch):
    model, name = tiny("hf_vit"), "hf_vit"
    explainer = vitrail.Explainer(model)
    specs = [("gae", {}), ("attn_lrp", {}), ("rollout", {}), ("grad_cam", {"layer": "none"})]
    for step in range(CALLS_BEFORE_CAPTURE + 2):
        inputs, target = inputs_of(name, step), (step % 3, 1)
        found = explainer.compare(inputs, specs, vitrail.targets.logit(target))
        expected = vitrail.compare(model, inputs, specs, target, on_error="keep")
        assert {place: str(one) for place, one in found.failed.items()} == {
            place: str(one) for place, one in expected.failed.items()
        }
        for a, b in zip(found, expected, strict=True):
            assert (a.method, a.target.first) == (b.method, b.target.first)
            assert_close(a.scores, b.scores)
        replayed = {one.method for one in found if one.provenance.get("prepared")}
        assert replayed == ({"attn_lrp"} if step >= CALLS_BEFORE_CAPTURE else set())


def test_without_a_recorder_and_without_a_class_nothing_is_recorded(recorded, monkeypatch):
    monkeypatch.setattr(explaining, "ExplanationGraph", lambda *args, **options: pytest.fail("a recording was made"))
    inputs = MODELS["hf_vit"].inputs()
    explainer = vitrail.Explainer(tiny("hf_vit"), "gae")
    for _ in range(CALLS_BEFORE_CAPTURE + 2):
        assert_close(
            explainer(inputs, difference(0, 1)).scores,
            vitrail.explain(tiny("hf_vit"), inputs, "gae", difference(0, 1)).scores,
        )
    monkeypatch.delitem(cuda_replay.RECORDERS, "cpu")
    for _ in range(CALLS_BEFORE_CAPTURE + 2):
        assert "prepared" not in explainer(inputs, 1).provenance


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.delenv(explaining.SWITCH, raising=False)
    monkeypatch.setitem(cuda_replay.RECORDERS, "cpu", taped)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["gae", "attn_lrp", "consensus", "partial_lrp"])
def test_a_replay_without_any_python_sees_inputs_classes_and_weights_of_now(name, method, graph):
    model = copy.deepcopy(tiny(name))
    explainer = vitrail.Explainer(model, method)
    for step in range(CALLS_BEFORE_CAPTURE + 3):
        inputs, target = inputs_of(name, step), (step % 2, 0)
        if step == CALLS_BEFORE_CAPTURE + 1:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.1)
        found = explainer(inputs, target)
        wanted = vitrail.explain(model, inputs, method, target)
        assert found.provenance.get("prepared", False) is (step >= CALLS_BEFORE_CAPTURE)
        assert found.target.first == wanted.target.first
        assert_close(found.scores, wanted.scores)
        assert found.provenance["model_hash"] == wanted.provenance["model_hash"]


def test_a_recording_whose_weights_have_moved_is_made_again(recorded):
    model, inputs = copy.deepcopy(tiny("hf_vit")), MODELS["hf_vit"].inputs()
    explainer = vitrail.Explainer(model, "gae")
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        explainer(inputs, 1)
    model.classifier.weight = nn.Parameter(model.classifier.weight.detach() * 2)
    found = explainer(inputs, 1)
    assert found.provenance["prepared"]
    assert_close(found.scores, vitrail.explain(model, inputs, "gae", 1).scores)


def test_masks_that_change_are_read_or_explained_in_the_ordinary_way(graph):
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    explainer = vitrail.Explainer(model, "gae")
    ones = torch.ones_like(inputs["attention_mask"])
    shorter, shortest = (ones.clone() for _ in range(2))
    shorter[:, -1:], shortest[:, -3:] = 0, 0
    masks = [shorter] * (CALLS_BEFORE_CAPTURE + 1) + [shortest, ones, shorter.double(), shortest.bool()]
    replayed = []
    for mask in masks:
        given = {**inputs, "attention_mask": mask}
        found = explainer(given, 1)
        assert_close(found.scores, vitrail.explain(model, given, "gae", 1).scores)
        replayed.append(bool(found.provenance.get("prepared")))
    assert replayed[CALLS_BEFORE_CAPTURE]
    assert replayed[-2:] == [False, False]


def test_under_autocast_nothing_is_recorded_or_replayed(graph):
    model, inputs = copy.deepcopy(tiny("hf_vit")).float(), converted(MODELS["hf_vit"].inputs(), torch.float32)
    before = vitrail.prepare(model, inputs, "gae")
    with torch.autocast("cpu", torch.bfloat16):
        inside, found = vitrail.prepare(model, inputs, "gae"), before(inputs)
        assert_close(found.scores, vitrail.explain(model, inputs, "gae").scores)
    assert "autocast" in inside.reason
    assert "prepared" not in found.provenance
    assert before(inputs).provenance["prepared"]


def test_options_and_inputs_that_repr_does_not_tell_are_not_recorded(graph):
    explainer = vitrail.Explainer(tiny("hf_vit"))
    inputs = MODELS["hf_vit"].inputs()
    long = torch.zeros(3, 2000)
    other = long.index_fill(1, torch.tensor([1000]), 1.0)
    assert repr(long) == repr(other)
    for unknown in (long, [long], {"a": other}, object(), long.numpy(), lambda x: x):
        assert explainer._signature(inputs, "gae", {"baseline": unknown}, 1) is None
        with pytest.raises(GraphError, match="would not see"):
            cuda_replay.check_plain({"pixel_values": torch.zeros(1), "extra": (unknown,)})
    known = [{}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": (1, "b")}, {"a": None}]
    assert len({explainer._signature(inputs, "gae", one, 1) for one in known}) == len(known)
    forms = [explainer._signature(change(inputs), "gae", {}, 1) for change in (as_is, converted, doubled)]
    assert len(set(forms)) == 3


def as_is(inputs):
    return inputs


def converted(inputs, dtype=torch.float16):
    return cuda_replay.map_tensors(inputs, lambda x: x.to(dtype))


def doubled(inputs):
    return cuda_replay.map_tensors(inputs, lambda x: torch.cat([x, x]))


@pytest.mark.parametrize(("setting", "recorded_last"), [(None, True), ("1", True), ("0", False)])
def test_the_environment_switches_recording_off(setting, recorded_last, recorded, monkeypatch):
    monkeypatch.delenv(explaining.SWITCH, raising=False)
    if setting is not None:
        monkeypatch.setenv(explaining.SWITCH, setting)
    explainer, inputs = vitrail.Explainer(tiny("hf_vit"), "gae"), MODELS["hf_vit"].inputs()
    found = [explainer(inputs, 1) for _ in range(CALLS_BEFORE_CAPTURE + 1)]
    assert found[-1].provenance.get("prepared", False) is recorded_last


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_other_threads_go_on_while_a_graph_is_recorded():
    model = copy.deepcopy(tiny("hf_vit")).float().cuda()
    inputs = converted(MODELS["hf_vit"].inputs(), torch.float32)
    inputs = cuda_replay.map_tensors(inputs, lambda x: x.cuda())
    expected, over, sums = vitrail.explain(model, inputs, "gae", 1), threading.Event(), []

    def work():
        other = copy.deepcopy(model)
        while not over.is_set():
            size = 1 + len(sums) % 97
            sums.append(torch.ones(size, 4099, device="cuda").sum().item() - 4099 * size)  # new memory every time
            assert_close(vitrail.explain(other, inputs, "gae", 1).scores, expected.scores)

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(work)
        try:
            for _ in range(3):
                prepared = vitrail.prepare(model, inputs, "gae", target="given")
                assert prepared.reason is None
                assert_close(prepared(inputs, 1).scores, expected.scores)
        finally:
            over.set()
        busy.result()
    assert len(sums) > 3
    assert set(sums) == {0.0}
