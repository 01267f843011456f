"""One explainer: what it gives is what `explain` gives, in the ordinary way and by a captured graph."""

import copy
import doctest
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from applying import CHEAP, applying
from recorders import rerun, taped
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close
from type_checks import unchecked

import vitrail
from vitrail.api import cuda_replay
from vitrail.api import explainer as explaining
from vitrail.api.explainer import CALLS_BEFORE_CAPTURE
from vitrail.errors import InputError, MethodError, OptionError, TargetError, VitrailError
from vitrail.targets import difference, logit, probability

NAMES = ("hf_vit", "hf_bert")


@pytest.fixture
def captured(monkeypatch):
    """Computations that were captured on the CPU."""
    made = []

    def record(compute, device):
        made.append(compute)
        return rerun(compute, device)

    monkeypatch.delenv(explaining.SWITCH, raising=False)
    monkeypatch.setitem(cuda_replay.RECORDERS, "cpu", record)
    return made


def same(found, wanted, **tolerances):
    assert_close(found.scores, wanted.scores, **tolerances)
    assert (found.method, found.preset, found.options, found.label) == (
        wanted.method, wanted.preset, wanted.options, wanted.label,
    )  # fmt: skip
    assert (found.target, found.tokens, found.grid) == (wanted.target, wanted.tokens, wanted.grid)
    assert found.provenance.keys() - {"prepared"} == wanted.provenance.keys()


def is_replayed(found):
    return found.provenance.get("prepared", False)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_gives_what_explain_gives(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    for method in ("auto", *applying(model, inputs)):
        options = CHEAP.get(method, {})
        explainer = vitrail.Explainer(model, method, **options)
        same(explainer(inputs), vitrail.explain(model, inputs, method, **options), rtol=0, atol=0)


def test_every_method_is_replayed_right_or_explained_in_the_ordinary_way_with_a_reason(captured, monkeypatch):
    monkeypatch.setattr(explaining, "CALLS_BEFORE_CAPTURE", 0)
    model, inputs, replayed = tiny("hf_vit"), MODELS["hf_vit"].inputs(), set()
    for method in applying(model, inputs):
        options = CHEAP.get(method, {})
        explainer = vitrail.Explainer(model, method, **options)
        found, wanted = explainer(inputs), vitrail.explain(model, inputs, method, **options)
        same(found, wanted, rtol=1e-6, atol=1e-9 * float(wanted.scores.abs().max()))
        assert is_replayed(found) is (explainer.reason is None), (method, explainer.reason)
        replayed |= {method} if is_replayed(found) else set()
    assert {"gae", "tokentm", "rollout", "attn_lrp", "attcat", "consensus"} <= replayed


TARGETS = {
    "predicted": (None, True),
    "a class": (2, True),
    "the last class": (-1, True),
    "one each": ([2, 0], True),
    "a tensor": (torch.tensor([0, 1]), True),
    "logit": (logit((1, 2)), True),
    "probability": (probability(1), False),
    "difference": (difference(0, 1), False),
    "a function": (lambda logits: logits[:, 1] - logits[:, 0], False),
}


@pytest.mark.parametrize("name", NAMES)
def test_any_target_may_be_given_with_each_call(name, captured):
    model, inputs = tiny(name), MODELS[name].inputs()
    explainer = vitrail.Explainer(model, "gae")
    for step in range(CALLS_BEFORE_CAPTURE + 1):
        for target, replays in TARGETS.values():
            found = explainer(inputs, target)
            # Calls that give their classes share a graph: only the first of them, and the predicted class, are counted.
            assert is_replayed(found) <= replays
            if step == CALLS_BEFORE_CAPTURE:
                same(found, vitrail.explain(model, inputs, "gae", target))
                assert is_replayed(found) is replays
    assert len(captured) == 2


def test_each_shape_has_a_graph_and_only_the_latest_are_kept(captured, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_GRAPHS", 2)
    model, whole = tiny("hf_bert"), MODELS["hf_bert"].inputs(batch=3)
    explainer = vitrail.Explainer(model, "gae")

    def check(batch, length, *, replayed):
        inputs = {name: x[:batch, :length] for name, x in whole.items()}
        found = explainer(inputs, 1)
        same(found, vitrail.explain(model, inputs, "gae", 1))
        assert is_replayed(found) is replayed

    for step in range(CALLS_BEFORE_CAPTURE + 2):
        check(3, 9, replayed=step >= CALLS_BEFORE_CAPTURE)
        check(2, 7, replayed=step >= CALLS_BEFORE_CAPTURE)
    assert len(captured) == 2
    for step in range(CALLS_BEFORE_CAPTURE + 1):
        check(1, 8, replayed=step == CALLS_BEFORE_CAPTURE)
    assert len(captured) == 3
    check(2, 7, replayed=True)
    check(3, 9, replayed=True)  # the oldest was dropped, and is captured again
    assert len(captured) == 4


def test_a_graph_sees_weights_that_change_and_the_class_they_predict(captured, monkeypatch):
    monkeypatch.setitem(cuda_replay.RECORDERS, "cpu", taped)  # without any Python in a replay
    model, inputs = copy.deepcopy(tiny("hf_vit")), MODELS["hf_vit"].inputs()
    explainer = vitrail.Explainer(model, "gae")
    before = [explainer(inputs) for _ in range(CALLS_BEFORE_CAPTURE + 1)][-1]
    with torch.no_grad():
        model.classifier.weight.mul_(-1)
        model.classifier.bias.mul_(-1)
    found, wanted = explainer(inputs), vitrail.explain(model, inputs, "gae")
    assert is_replayed(before)
    assert is_replayed(found)
    same(found, wanted)
    assert found.target != before.target
    assert found.provenance["model_hash"] == wanted.provenance["model_hash"] != before.provenance["model_hash"]


def test_options_preset_and_settings_are_those_of_explain(captured):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    for arguments in (
        {"method": "gradtoken", "preset": "paper", "depth": 2},
        {"method": "rollout", "start_layer": 1},
        {"method": "tokentm", "backend": "chunked", "chunk_rows": 2},
        {"method": "gae", "backend": "dense", "memory": "full"},
    ):
        explainer, wanted = vitrail.Explainer(model, **arguments), vitrail.explain(model, inputs, **arguments)
        found = [explainer(inputs) for _ in range(CALLS_BEFORE_CAPTURE + 1)]
        assert [is_replayed(one) for one in found] == [False] * CALLS_BEFORE_CAPTURE + [True]
        for one in (found[0], found[-1]):
            same(one, wanted)
            assert one.provenance["backend"] == wanted.provenance["backend"]
    low = vitrail.Explainer(model, "gae", memory="low")
    found = [low(inputs) for _ in range(CALLS_BEFORE_CAPTURE + 1)][-1]
    assert found.provenance["recomputed_blocks"] == 3
    assert "memory='low'" in low.reason


def test_a_model_is_read_as_its_anatomy_says(captured):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    blocks = next(name for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    own = vitrail.Anatomy(blocks=blocks, prefix=1, readout="cls")
    explainer, wanted = vitrail.Explainer(model, "gae", anatomy=own), vitrail.explain(model, inputs, "gae", anatomy=own)
    found = [explainer(inputs) for _ in range(CALLS_BEFORE_CAPTURE + 1)]
    assert is_replayed(found[-1])
    for one in (found[0], found[-1]):
        same(one, wanted)
        assert one.provenance.get("assumed") == wanted.provenance.get("assumed")
    for wrong in (vitrail.Anatomy(prefix=4, readout="cls"), vitrail.Anatomy(blocks="blocks")):
        refused = vitrail.Explainer(model, "gae", anatomy=wrong)
        words = refusal(lambda wrong=wrong: vitrail.explain(model, inputs, "gae", anatomy=wrong))
        for _ in range(CALLS_BEFORE_CAPTURE + 1):
            assert refusal(lambda refused=refused: refused(inputs)) == words


WRONG = {
    "method": (lambda x: {"method": "gea"}, MethodError),
    "option": (lambda x: {"method": "tokentm", "lenght": False}, OptionError),
    "preset": (lambda x: {"preset": "offical"}, OptionError),
    "backend": (lambda x: {"backend": "fast"}, OptionError),
    "memory": (lambda x: {"memory": "less"}, OptionError),
    "no model": (lambda x: {"model": None}, InputError),
    "no inputs": (lambda x: {"inputs": None}, InputError),
    "empty inputs": (lambda x: {"inputs": {}}, InputError),
    "a list of tensors": (lambda x: {"inputs": [x]}, InputError),
    "not a number": (lambda x: {"inputs": x * torch.nan}, InputError),
    "too large a class": (lambda x: {"target": 99}, TargetError),
    "too few classes": (lambda x: {"target": [1]}, TargetError),
    "no class": (lambda x: {"target": True}, TargetError),
    "a name of a class": (lambda x: {"target": "cat"}, TargetError),
}


def refusal(call):
    with unchecked(), pytest.raises(VitrailError) as found:
        call()
    return type(found.value), str(found.value)


@pytest.mark.parametrize("case", WRONG)
def test_errors_have_the_words_of_explain_before_and_after_a_capture(case, captured):
    change, kind = WRONG[case]
    given = {"model": tiny("timm_vit_avg"), "inputs": MODELS["timm_vit_avg"].inputs(), "method": "gae", "target": None}
    given |= change(given["inputs"])
    model, inputs, method, target = (given.pop(name) for name in ("model", "inputs", "method", "target"))
    wanted = refusal(lambda: vitrail.explain(model, inputs, method, target, **given))
    assert wanted[0] is kind
    explainer = vitrail.Explainer(model, method, **given)
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        assert refusal(lambda: explainer(inputs, target)) == wanted
    if not given and method == "gae" and model is not None:
        good = MODELS["timm_vit_avg"].inputs()
        for own in (None, 1):  # a graph of predicted and one of given classes
            for _ in range(CALLS_BEFORE_CAPTURE + 1):
                last = explainer(good, own)
            assert is_replayed(last)
        assert refusal(lambda: explainer(inputs, target)) == wanted


def test_inside_of_a_transform_a_graph_refuses_as_explain_does(captured):
    model, inputs = tiny("timm_vit_avg"), MODELS["timm_vit_avg"].inputs()
    explainer = vitrail.Explainer(model, "gae")
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        assert explainer(inputs).scores.shape[0] == 2
    several = torch.stack([inputs, inputs])
    with pytest.raises(InputError, match=r"torch\.vmap"):
        torch.vmap(lambda x: explainer(x).scores)(several)


def test_threads_share_an_explainer(captured):
    model, whole = tiny("hf_vit"), MODELS["hf_vit"].inputs(batch=6)["pixel_values"]
    explainer = vitrail.Explainer(model, "gae")
    jobs = [({"pixel_values": whole[place : place + 2]}, step % 3) for step in range(3) for place in range(5)]
    wanted = [vitrail.explain(model, inputs, "gae", target) for inputs, target in jobs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: explainer(*job), jobs))
    assert len(captured) == 1
    assert sum(map(is_replayed, found)) > 4
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def test_pictures_and_names_of_models_are_taken_as_by_explain(captured, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(explaining, "CALLS_BEFORE_CAPTURE", 1)
    picture = Image.effect_noise((200, 170), 60).convert("RGB")
    explainer, prepared = vitrail.Explainer("photo", "gae"), vitrail.prepare("photo", picture, "gae")
    wanted = vitrail.explain("photo", picture, "gae")
    found = [explainer(picture), explainer(picture), prepared(picture)]
    assert [is_replayed(one) for one in found] == [False, True, True]
    for one in found:
        same(one, wanted, rtol=1e-4, atol=1e-7)
        assert one.provenance["classes"] == wanted.provenance["classes"]
        assert one.seen.pictures == wanted.seen.pictures


def test_a_comparison_uses_the_preset_and_the_settings_of_the_explainer(captured):
    model, inputs = tiny("hf_vit"), MODELS["hf_vit"].inputs()
    methods = ["gradtoken", ("gae", {"preset": "recommended"}), "gea", "attn_lrp"]
    arguments = {"preset": "paper", "backend": "chunked", "chunk_rows": 3}
    wanted = vitrail.compare(model, inputs, methods, 1, on_error="keep", **arguments)
    for explainer in (
        vitrail.Explainer(model, "rollout", start_layer=1, **arguments),
        vitrail.prepare(model, inputs, "rollout", start_layer=1, **arguments),
    ):
        for step in range(CALLS_BEFORE_CAPTURE + 1):
            found = explainer.compare(inputs, methods, 1)
            assert {place: str(error) for place, error in found.failed.items()} == {2: str(wanted.failed[2])}
            for one, other in zip(found, wanted, strict=True):
                same(one, other)
            replayed = [one.method for one in found if is_replayed(one)]
            assert replayed == ["attn_lrp"] * (step == CALLS_BEFORE_CAPTURE)
    assert [one.method for one in vitrail.Explainer(model).compare(inputs, "gae")] == ["gae"]
    with pytest.raises(MethodError, match="no method was named"):
        vitrail.Explainer(model).compare(inputs, [])


def test_a_prepared_explainer_of_another_scalar_or_of_the_predicted_class_says_so(captured):
    model, inputs = copy.deepcopy(tiny("hf_vit")), MODELS["hf_vit"].inputs()
    with torch.no_grad():
        model.classifier.bias -= model(**inputs).logits.mean(dim=0)  # or all inputs would be of one class
    contrast = vitrail.prepare(model, inputs, "gae", difference(0, 1))
    assert "another scalar" in contrast.reason
    same(contrast(inputs), vitrail.explain(model, inputs, "gae", difference(0, 1)))
    other = {"pixel_values": inputs["pixel_values"].flip(0)}
    wanted = vitrail.explain(model, other, "gae")
    assert wanted.target != vitrail.explain(model, inputs, "gae").target
    for target in (None, "predicted", logit()):
        prepared = vitrail.prepare(model, inputs, "gae", target)
        assert prepared.reason is None
        same(prepared(other), wanted)  # the class of these inputs, not that of the example


def test_a_data_set_is_explained_by_a_graph_from_the_fourth_batch_of_a_shape_on(captured, tmp_path):
    model, whole = tiny("hf_vit"), MODELS["hf_vit"].inputs(batch=11)["pixel_values"]
    batches = [{"pixel_values": part} for part in whole.split(2)]  # the last one is smaller
    made = vitrail.explain_many(model, batches, "gae", output=tmp_path / "maps", progress=False)
    assert len(captured) == 1
    wanted = vitrail.explain(model, {"pixel_values": whole}, "gae")
    scores = torch.tensor(made.table()["scores"].to_pylist())
    assert_close(scores, wanted.scores.float(), rtol=1e-4, atol=1e-7)
    assert tuple(made.table()["target"].to_pylist()) == wanted.target.first


def test_the_old_name_is_the_explainer_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"vitrail.PreparedExplainer is now called vitrail.Explainer"):
        found = vitrail.PreparedExplainer
    assert found is vitrail.Explainer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from vitrail import PreparedExplainer
    assert PreparedExplainer is found
    inputs = MODELS["hf_vit"].inputs()
    assert isinstance(vitrail.prepare(tiny("hf_vit"), inputs, "gae"), PreparedExplainer)


def test_the_examples_in_the_docstrings_run():
    finder, runner = doctest.DocTestFinder(recurse=True), doctest.DocTestRunner()
    for example in (one for one in finder.find(explaining) if one.examples):
        assert runner.run(example).failed == 0, example.name
    assert runner.summarize(verbose=False).attempted >= 9
