"""Words become values in one place."""

import ast
import inspect
from pathlib import Path

import pytest

from vitrail.errors import MethodError, OptionError
from vitrail.evaluate import bench
from vitrail.evaluate.bench.protocols import PROTOCOLS, find_protocol
from vitrail.methods import METHODS, ByKind, option_text, parse_spec
from vitrail.methods.option_text import parse_call, plain_types, read_value

NUMBERS = [
    ("2", (str, int), 2),
    ("all", (str, int), "all"),
    ("-3", (int,), -3),
    ("2", (float,), 2.0),
    ("1e-3", (int, float), 1e-3),
    ("true", (bool, str), True),
    ("No", (bool,), False),
    ("maybe", (bool, str), "maybe"),
    ("none", (int, type(None)), None),
    ("none", (str,), "none"),
    ("'2'", (str,), "2"),
    ('"a, b"', (str,), "a, b"),
    ("[1, 2.5, x]", (list,), [1, 2.5, "x"]),
    ("1+2", (tuple,), (1, 2)),
    ("0.5", (float, list), 0.5),
    ("[0.5]", (float, list), [0.5]),
    ("a+b", (str,), "a+b"),
    ("x.png", (str, Path), "x.png"),
]


@pytest.mark.parametrize(("text", "kinds", "value"), NUMBERS)
def test_a_word_is_read_as_the_most_special_type_that_takes_it(text, kinds, value):
    found = read_value(text, kinds, "it")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kinds", "words"),
    [
        ("one", (int,), "not a whole number"),
        ("1.5", (int,), "not a whole number"),
        ("nan", (float,), "not a number"),
        ("inf", (float,), "not a number"),
        ("maybe", (bool,), "not true or false"),
        ("x", (int, float), "not a whole number or a number"),
        ("3", (list,), "not a list"),
        ("x", (Exception,), "cannot be written as text"),
    ],
)
def test_a_word_that_is_no_such_value_is_refused(text, kinds, words):
    with pytest.raises(OptionError, match=words):
        read_value(text, kinds, "it")


def test_commas_inside_brackets_and_quotes_separate_nothing():
    assert parse_call("m(a=[1, 2], b='x, y', c=(1, 2))", "it") == ("m", {"a": "[1, 2]", "b": "'x, y'", "c": "(1, 2)"})
    with pytest.raises(OptionError, match="not closed"):
        parse_call("m(a=[1, 2)", "it")


def options():
    """Every option of every method, with each value that a preset gives it."""
    for name, entry in METHODS.items():
        for option, usual in entry.options.items():
            given = [preset[option] for preset in entry.presets.values() if option in preset]
            values = [x for one in given for x in ([one.image, one.text] if isinstance(one, ByKind) else [one])]
            yield from ((name, option, value) for value in [usual, *values])


@pytest.mark.parametrize(("name", "option", "value"), sorted(set(options()), key=repr))
def test_every_option_of_every_method_can_be_written(name, option, value):
    assert parse_spec(f"{name}({option}={str(value).lower()})") == (name, {option: value})


def test_a_number_of_blocks_is_a_number():
    assert parse_spec("le_grad(blocks=2)") == ("le_grad", {"blocks": 2})
    assert parse_spec("tis(ratio=[0.3, 0.5], seed=1)") == ("tis", {"ratio": [0.3, 0.5], "seed": 1})


def test_auto_is_a_method_where_the_best_one_is_looked_for():
    assert parse_spec("auto", auto=True) == ("auto", {})
    assert parse_spec("auto(power=1, preset=fine)", auto=True) == ("auto", {"power": 1.0, "preset": "fine"})
    with pytest.raises(MethodError, match="name a method here"):
        parse_spec("auto")
    with pytest.raises(OptionError, match="auto has no option 'blocks'"):
        parse_spec("auto(blocks=2)", auto=True)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_with_changed_lists_is_found_by_its_own_name(name):
    changed = find_protocol(f"{name}(levels=[0, 0.25, 1], ks=[3, 4], drops=true, k=7)")
    assert (changed.levels, changed.ks, changed.k) == ((0.0, 0.25, 1.0), (3, 4), 7)
    assert find_protocol(changed.name) == changed
    assert find_protocol(f"{name}(levels=0.0+0.25+1.0, ks=3+4, drops=yes, k=7)").table() == changed.table()


def test_options_of_data_sets_have_their_declared_types():
    """A year is a word, a fold a number."""
    assert bench.parse_data("voc(year=2012)=VOC").options == {"year": "2012"}
    assert bench.parse_data("imagenet(fold=0)=val").options == {"fold": 0}
    assert bench.parse_data("squad2(answerable=true)=dev.json").options == {"answerable": True}
    with pytest.raises(OptionError, match=r"imagenet has no option 'fould'\. Did you mean fold"):
        bench.parse_data("imagenet(fould=0)=val")


@pytest.mark.parametrize("name", METHODS)
def test_types_read_from_the_source_are_those_of_the_function(name):
    place = f"vitrail.methods.{METHODS[name].built_by}"
    given = inspect.signature(option_text.load(place)).parameters
    assert option_text.types_of(place) == {option: plain_types(given[option].annotation) for option in given}


def test_an_annotation_that_is_not_in_the_table_is_looked_up_and_never_run():
    for text in ("__import__('os').getcwd()", "Literal['a']", "Tensor", "1", "int & str"):
        with pytest.raises(LookupError):
            option_text._types(ast.parse(text, mode="eval").body)
