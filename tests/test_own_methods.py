"""Methods of users, wherever a name of the library goes: objects, functions of a recording, plug-ins."""

import inspect
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch
from stream_models import ENCODER_DECODERS
from tiny_models import tiny
from typer.testing import CliRunner

import vitrail
from vitrail.apps.cli.app import app
from vitrail.errors import InputError, MethodError, OptionError
from vitrail.evaluate import bench
from vitrail.methods import METHODS, table
from vitrail.methods.gae import aggregate
from vitrail.relevance import Walk, positive, pull

PICTURES = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))


def step(rows, layer):
    """GAE's formula, written again."""
    return rows, pull(layer, rows, positive).mean(dim=1)


def last_attention(recording, *, power: float = 1.0):
    """The attention of the last layer, read at the class token.

    Args:
        power: what the weights are raised to.
    """
    return recording.layers[-1].probs.mean(dim=1)[:, 0] ** power


def signed_states(recording):
    """Values of both signs."""
    return recording.layers[-1].state("entering").sum(dim=2)


@pytest.fixture
def registered():
    """A method under a name."""
    vitrail.register_method("mine", last_attention, paper="us, 2026", presets={"paper": {}, "official": {"power": 3.0}})
    return "mine"


@pytest.fixture
def without_plugins(monkeypatch):
    monkeypatch.setenv(table.PLUGINS, "")


def test_a_walk_is_a_method():
    found, gae = (vitrail.explain("photo", PICTURES, method) for method in (Walk(step), "gae"))
    assert torch.equal(found.scores, gae.scores)
    assert found.method == found.label == "step"
    assert found.provenance["method"] == table.NO_PAPER
    assert "method" not in gae.provenance


def test_a_function_of_a_recording_is_a_method():
    found = vitrail.explain("photo", PICTURES, last_attention, power=2.0)
    layers = vitrail.record("photo", PICTURES).layers
    torch.testing.assert_close(found.scores, (layers[-1].probs.mean(dim=1)[:, 0] ** 2)[:, 1:])
    assert found.method == "last_attention"


def test_a_function_is_called_by_its_registered_name(registered):
    found = vitrail.explain("photo", PICTURES, last_attention)
    assert found.method == "last_attention"
    vitrail.register_method("last_attention", last_attention)
    assert vitrail.explain("photo", PICTURES, last_attention).label == "last_attention"


def test_a_function_that_is_called_like_a_method_of_the_library_gets_another_name():
    def gae(recording):
        return recording.layers[0].probs.sum(dim=(1, 2))

    assert vitrail.explain("photo", PICTURES, gae).method == "own_gae"


def test_scores_below_zero_make_a_result_signed():
    assert vitrail.explain("photo", PICTURES, signed_states).signed
    assert not vitrail.explain("photo", PICTURES, last_attention).signed


def test_registered_methods_stand_wherever_names_do(registered, tmp_path):
    plain = vitrail.explain("photo", PICTURES, last_attention, power=3.0).scores
    for method, preset in (("mine(power=3)", "paper"), (("mine", {"power": 3.0}), "paper"), ("mine", "official")):
        (found,) = vitrail.compare("photo", PICTURES, [method], preset=preset)
        assert torch.equal(found.scores, plain), method
    explainer = vitrail.Explainer("photo", "mine", power=3.0)
    assert torch.equal(explainer(PICTURES).scores, plain)
    place = tmp_path / "parts"
    vitrail.explain_many("photo", [PICTURES], "mine", output=place, power=3.0)
    import pyarrow.parquet

    scores = pyarrow.parquet.read_table(place)["scores"].to_pylist()
    torch.testing.assert_close(torch.tensor(scores), plain)
    assert vitrail.METHODS["mine"].options == {"power": 1.0}
    assert "mine" in list(vitrail.METHODS)


def test_a_registered_method_is_measured_by_the_bench(registered, tmp_path):
    plan = bench.Plan(
        models=(bench.ModelSpec("lookup"),),
        data=(bench.DataSpec("lookup", "", {"count": 2, "sentences": 4}),),
        trials=(bench.Trial("mine", {"power": 2.0}), bench.Trial("gae")),
        protocols=bench.protocols_of(("answers(ablations=4)",)),
    )
    bench.run(plan, tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db", resamples=20)
    assert {"mine(power=2.0)", "gae"} <= {label for label, _ in table.rows}


def test_options_and_objects_mix_in_one_comparison(registered):
    found = vitrail.compare("photo", PICTURES, ["gae", last_attention, ("mine", {"power": 2.0}), Walk(step), "rollout"])
    assert [one.label for one in found] == ["gae", "last_attention(power=1.0)", "mine(power=2.0)", "step", "rollout"]
    assert torch.equal(found[0].scores, found[3].scores)


@pytest.mark.parametrize("method", [Walk(step), last_attention])
def test_padding_and_batches_of_own_methods(method):
    texts = ["A dull and lifeless film.", "Fine."]
    both = vitrail.explain("sentiment", texts, method)
    for sample, text in enumerate(texts):
        (alone,) = vitrail.explain("sentiment", text, method).scores
        torch.testing.assert_close(both.scores[sample, : len(alone)], alone, atol=1e-6, rtol=1e-5)
        assert not both.scores[sample, len(alone) :].any()


def test_tokens_that_cannot_reach_the_answer_get_nothing():
    def everywhere(recording):
        return torch.ones(recording.layers[0].valid.shape)

    model = tiny("hf_gpt2")
    ids = torch.randint(5, 40, (1, 7), generator=torch.Generator().manual_seed(1))
    found = vitrail.explain(model, {"input_ids": ids}, everywhere, vitrail.targets.logit(3, position=2))
    assert found.scores[0, :3].tolist() == [1.0, 1.0, 1.0]
    assert not found.scores[0, 3:].any()


def test_a_walk_of_your_own_walks_over_several_streams_and_a_function_is_refused():
    case = ENCODER_DECODERS["t5"]
    model, inputs = case.build().eval(), case.inputs(2)
    found = vitrail.explain(model, inputs, aggregate(positive), case.target)
    torch.testing.assert_close(found.scores, vitrail.explain(model, inputs, "gae", case.target).scores)
    with pytest.raises(MethodError, match="last_attention is defined on one stream"):
        vitrail.explain(model, inputs, last_attention, case.target)


def build_nothing():
    return 3


def positional(recording, power):
    return recording.layers[0].probs


REFUSED = {
    "a class": (int, MethodError, "unknown method"),
    "a function without a recording": (build_nothing, MethodError, "register_method"),
    "an option without a default": (positional, OptionError, "power of positional must be given by keyword"),
    "scores of another shape": (lambda recording: torch.ones(3), MethodError, r"shape \[3\].*\[2, 257\]"),
    "no scores": (lambda recording: "much", MethodError, "str, which is no tensor"),
    "scores that are not finite": (lambda r: r.layers[0].probs[:, 0, 0] / 0, InputError, "not finite"),
    "an unknown option": ("gae(start_layr=1)", OptionError, "Did you mean start_layer"),
    "an unknown name": ("gaee", MethodError, "Did you mean gae"),
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_no_method_is_refused_in_words(given):
    method, kind, words = REFUSED[given]
    with pytest.raises(kind, match=words):
        vitrail.explain("photo", PICTURES, method)


def test_an_error_of_the_users_own_function_comes_as_it_is():
    with pytest.raises(ZeroDivisionError):
        vitrail.explain("photo", PICTURES, lambda recording: 1 / 0)


def test_one_option_is_not_given_twice():
    with pytest.raises(OptionError, match="start_layer is given twice"):
        vitrail.explain("photo", PICTURES, "gae(start_layer=1)", start_layer=2)


def test_the_table_is_changed_by_registering_alone():
    with pytest.raises(MethodError, match=r"read-only: vitrail.register_method\(name, build\)"):
        METHODS["x"] = METHODS["gae"]
    with pytest.raises(MethodError, match="read-only"):
        del METHODS["gae"]
    assert "x" not in METHODS


@pytest.mark.parametrize(
    ("name", "build", "more", "words"),
    [
        ("gae", last_attention, {}, "'gae' is a method of the library"),
        ("my method", last_attention, {}, "is no name"),
        ("auto", last_attention, {}, "'auto' is a word of the library"),
        ("random", last_attention, {}, "'random' is a word of the library"),
        ("mine", dict, {}, "must be given by keyword|does not say which arguments"),
        ("mine", positional, {}, "must be given by keyword"),
        ("mine", last_attention, {"inputs": ("sound",)}, "explains 'image', 'text', or both"),
        ("mine", last_attention, {"presets": {"paper": {"pwer": 2.0}}}, "Did you mean power"),
    ],
)
def test_what_cannot_be_registered_is_refused(registered, name, build, more, words):
    with pytest.raises((MethodError, OptionError), match=words):
        vitrail.register_method(name, build, **more)


def test_what_a_registered_function_makes_is_checked(registered):
    vitrail.register_method("nothing", build_nothing)
    with pytest.raises(MethodError, match="nothing made int, which is no method"):
        vitrail.explain("photo", PICTURES, "nothing")


def test_types_of_options_are_read_off_their_defaults_where_they_have_no_annotation(registered):
    def build(*, layers=2, share=0.5, name="all"):
        return Walk(step)

    vitrail.register_method("plain", build)
    assert vitrail.explain("photo", PICTURES, "plain(layers=3, name=some)").options["layers"] == 3
    with pytest.raises(OptionError, match="layers takes int"):
        vitrail.explain("photo", PICTURES, "plain", layers="x")


def test_packages_name_methods_by_entry_points(monkeypatch, without_plugins):
    monkeypatch.setattr(METHODS, "_found", False)
    good = SimpleNamespace(name="packaged", value="package:build", load=lambda: last_attention)
    bad = EntryPoint("broken", "no_such_package:build", table.GROUP)
    monkeypatch.setattr(table, "package_methods", lambda: [bad, good])
    assert vitrail.explain("photo", PICTURES, "packaged").method == "packaged"
    assert "broken" not in METHODS


def test_names_of_the_library_are_found_without_looking_for_packages(monkeypatch, without_plugins):
    monkeypatch.setattr(METHODS, "_found", False)
    monkeypatch.setattr(table, "package_methods", lambda: pytest.fail("looked"))
    assert "gae" in METHODS
    assert METHODS["gae"].name == "gae"


def test_the_command_line_imports_plug_ins(tmp_path, without_plugins):
    lines = ["import vitrail", inspect.getsource(last_attention), "vitrail.register_method('plugged', last_attention)"]
    file = tmp_path / "own_plugin_for_tests.py"
    file.write_text("\n".join(lines))
    run = CliRunner().invoke
    given = ["explain", "A fine film.", "-m", "sentiment", "--method", "plugged(power=2)"]
    found = run(app, [*given, "--plugin", str(file)])
    assert found.exit_code == 0, found.output
    assert "plugged(power=2.0)" in found.output
    assert "what the weights are raised to" in run(app, ["methods", "plugged", "--plugin", str(file)]).output


def test_plug_ins_that_cannot_be_imported_are_named(tmp_path, without_plugins):
    broken = tmp_path / "broken_plugin_for_tests.py"
    broken.write_text("1 / 0")
    for name, words in ((str(broken), "ZeroDivisionError"), ("no_such_plugin", "No module"), ("no.py", "no plug-in")):
        with pytest.raises(InputError, match=words):
            table.import_plugins([name])


def test_files_of_plug_ins_are_told_apart_by_their_place(tmp_path, without_plugins):
    for folder in ("one", "two", "json"):
        (tmp_path / folder).mkdir()
        lines = ["import vitrail", inspect.getsource(last_attention)]
        name = "json.py" if folder == "json" else "methods_of_tests.py"
        lines += [f"vitrail.register_method('of_{folder}', last_attention)"]
        (tmp_path / folder / name).write_text("\n".join(lines))
        own = str(tmp_path / folder / name)
        table.import_plugins([own, own])
    assert {"of_one", "of_two", "of_json"} <= set(METHODS)


def test_a_named_plug_in_that_cannot_be_imported_is_said_and_hides_nothing(monkeypatch, caplog, without_plugins):
    monkeypatch.setenv(table.PLUGINS, "no_such_plugin_of_tests")
    monkeypatch.setattr(METHODS, "_found", False)
    for _ in range(2):
        with pytest.raises(MethodError, match="unknown method"):
            vitrail.explain("photo", PICTURES, "of_no_plugin")
    assert "no_such_plugin_of_tests cannot be imported" in caplog.text
    assert vitrail.explain("photo", PICTURES, "gae").method == "gae"


def test_results_of_another_version_of_a_method_are_told_apart(tmp_path, without_plugins):
    found = []
    for version, body in enumerate(
        ("return recording.layers[-1].probs[:, 0, 0]", "return -recording.layers[-1].probs[:, 0, 0]")
    ):
        file = tmp_path / f"version_{version}.py"
        lines = ["import vitrail", "def versioned(recording):", f"    {body}"]
        file.write_text("\n".join([*lines, "vitrail.register_method('versioned', versioned)"]))
        table.import_plugins([str(file)])
        found.append(bench.Trial("versioned").about("recommended", "image"))
    first, second = found
    assert first["code"] != second["code"]
    assert {**first, "code": ""} == {**second, "code": ""}
    assert "code" not in bench.Trial("gae").about("recommended", "image")


def test_a_pair_inside_of_a_pair_is_read():
    found = vitrail.explain("photo", PICTURES, ("gae", {"start_layer": 1}))
    assert found.options["start_layer"] == 1


def test_packages_are_asked_by_the_group_of_entry_points(monkeypatch):
    import importlib.metadata

    asked = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: asked.append(group) or [])
    assert table.package_methods() == []
    assert asked == ["vitrail.methods"]
