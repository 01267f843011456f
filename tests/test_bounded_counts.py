"""Every option that counts something has bounds, and says so before anything large is made."""

import pytest
import torch
from tiny_models import MODELS, tiny
from type_checks import unchecked

import vitrail
from vitrail import targets
from vitrail.errors import AnatomyError, OptionError, VitrailError
from vitrail.methods import METHODS
from vitrail.methods.options import check_count

COUNTS = [
    (name, option) for name, entry in METHODS.items() for option in entry.options if int in entry.kinds_of(option)
]
HUGE = (10**9, 2**64, 10**30, -(10**30))


def explain(method, **options):
    """One call of a model that the method explains."""
    model, target, given = "hf_bert", 1, {}
    if method == "consensus":
        model, given = "hf_vit", {"detail": "pixels"}
    elif "text" not in METHODS[method].inputs:
        model = "hf_vit"
    elif method in ("flashtrace", "context_cite"):
        model, target = "hf_gpt2", targets.continuation(6)
    elif method == "grad_eclip":
        model = "hf_clip"
    if method in ("sentence_drop", "context_cite"):
        given = {"sources": [(1, 2), (2, 4)]}
    return vitrail.explain(tiny(model), MODELS[model].inputs(1), method, target, **given, **options)


def test_the_methods_with_counts_are_found():
    assert ("integrated_gradients", "steps") in COUNTS
    assert ("le_grad", "blocks") in COUNTS
    assert len(COUNTS) > 25


@pytest.mark.parametrize(("method", "option"), [pair for pair in COUNTS if pair[1] != "seed"])
def test_a_huge_count_is_refused_at_once(method, option):
    for value in HUGE:
        with pytest.raises(OptionError, match=option):
            explain(method, **{option: value})


@pytest.mark.parametrize(("method", "option"), [pair for pair in COUNTS if pair[1] == "seed"])
def test_a_seed_is_what_a_generator_takes(method, option):
    for value in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(OptionError, match="seed="):
            explain(method, seed=value)


@pytest.mark.parametrize(("method", "option"), COUNTS)
@pytest.mark.parametrize("value", [2.5, True, [3], torch.tensor(3)])
def test_a_count_is_a_whole_number(method, option, value):
    with pytest.raises(OptionError, match=f"option {option} takes"):
        explain(method, **{option: value})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "n=0, but it must be at least 1 and at most 10000"),
        (10_001, "n=10001, but it must be at least 1"),
        (10**30, "a number of many digits, but it must be at least 1"),
        (-(10**30), "-a number of many digits"),
        (True, "n=True, but it is a whole number"),
        (2.0, "n=2.0, but it is a whole number"),
        (float("nan"), "n=nan"),
        (None, "n=None"),
        ("3", "n='3'"),
    ],
)
def test_bounds_are_said(value, words):
    with pytest.raises(OptionError, match=words):
        check_count("n", value)


def test_counts_within_bounds_pass():
    for value in (1, 50, 10_000):
        check_count("n", value)
    check_count("n", 0, least=0)


PATHS = ("blocks", "output", "value_bias", "ffn_norm", "positions", "pool", "head", "root", "name")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("value", [3, 3.5, ["a"], ("a",), torch.nn.ModuleList(), True])
def test_an_anatomy_of_another_kind_is_refused(name, value):
    with unchecked(), pytest.raises(AnatomyError, match=rf"Anatomy\({name}=.*but {name} is a str"):
        vitrail.Anatomy(**{name: value})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"blocks": None}, "blocks is a str"),
        ({"prefix": "1"}, "prefix is a int"),
        ({"prefix": True}, "prefix is a int"),
        ({"prefix": 1.5}, "prefix is a int"),
        ({"prefix": -1}, "at least 0"),
        ({"readout": 0.5}, "readout is a str or int"),
        ({"readout": ["cls"]}, "readout is a str or int"),
        ({"causal": 1}, "causal is a bool"),
        ({"span": "yes"}, "span is a bool"),
    ],
)
def test_other_fields_too(wrong, words):
    with unchecked(), pytest.raises(AnatomyError, match=words) as caught:
        vitrail.Anatomy(**{"blocks": "encoder.layers", **wrong})
    assert isinstance(caught.value, VitrailError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["prefix", "readout"])
@pytest.mark.parametrize("value", [10**10, 10**30])
def test_places_of_tokens_have_bounds(name, value):
    with pytest.raises(AnatomyError, match=rf"Anatomy\({name}=\.\.\.\) is .* at most"):
        vitrail.Anatomy(blocks="encoder.layers", **{name: value})


@pytest.mark.parametrize("readout", [9, -10, 1000])
def test_a_readout_is_the_position_of_a_token(readout):
    inputs = MODELS["hf_bert"].inputs(1)
    anatomy = vitrail.Anatomy(blocks="bert.encoder.layer", readout=readout)
    with pytest.raises(AnatomyError, match=f"readout={readout} of your own anatomy is the position of no token"):
        vitrail.explain(tiny("hf_bert"), inputs, "gae", 1, anatomy=anatomy)
