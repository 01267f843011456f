"""Every action of the page without a browser: the library's numbers, words escaped, nothing computed twice."""

import json
import re
import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from saved_models import save_gpt2
from torch.testing import assert_close

import vitrail
from vitrail.apps.web import actions, explaining, removing, views
from vitrail.apps.web.actions import Asked, House
from vitrail.apps.web.downloads import FORMS
from vitrail.apps.web.drawing import PALETTES, Look
from vitrail.apps.web.jobs import SLOWING, Stopped, running, steps_of
from vitrail.apps.web.limits import Limits
from vitrail.apps.web.rooms import Given, Rooms
from vitrail.apps.web.shelf import Shelf
from vitrail.capture import measure
from vitrail.errors import InputError, OptionError
from vitrail.evaluate import metrics

SCRIPT = "<script>alert(1)</script> a small miracle"


def last(steps):
    return list(steps)[-1]


def passes(house, model, run):
    """How often the model is called while something runs, but for the passes that measure its structure."""
    calls, own = [], measure._measured

    def uncounted(*args, **kwargs):
        before = len(calls)
        found = own(*args, **kwargs)
        del calls[before:]
        return found

    opened = house.shelf.open(model, "text" if model == "sentiment" else "image")
    hooks = [
        m.register_forward_pre_hook(lambda *_: calls.append(1)) for m in (opened.loaded.model, opened.twin.loaded.model)
    ]
    try:
        with patch.object(measure, "_measured", uncounted):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return len(calls)


def test_the_first_page_shows_an_explained_example(house, room, photo):
    shown = last(actions.explained(house, room, photo))
    assert "golf ball" in shown.answer
    assert shown.maps.count("<img alt=") == 4
    assert shown.choices[0][0].startswith("golf ball · 98")
    assert [label.split(" · ")[0] for label, _ in shown.choices][1:] != []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_the_maps_are_those_of_the_library(house, room, image, text, kind):
    asked = {"image": image, "text": text}[kind]
    case, target, found = actions.known_maps(house, room, asked)
    for one, method in zip(found, asked.methods, strict=True):
        expected = vitrail.explain(case.opened.loaded.model, case.sample.inputs, method, target)
        assert_close(one.scores, expected.scores, atol=1e-5, rtol=1e-4)  # float32, and other methods share the pass


def test_one_recording_serves_every_quick_method(house, room, image):
    fresh = replace(image, target=int(last(actions.explained(house, room, image)).choices[1][1]))
    assert passes(house, image.model, lambda: last(actions.explained(house, room, fresh))) == 1
    image = fresh
    quick = [name for name in explaining.offered("image") if explaining.is_quick(name)]
    some = [replace(image, methods=quick[start : start + 8]) for start in range(0, len(quick), 8)]
    assert passes(house, image.model, lambda: [last(actions.explained(house, room, asked)) for asked in some]) == 0
    assert passes(house, image.model, lambda: actions.redrawn(house, room, replace(image, look=Look(0.2, "Sea")))) == 0


def test_another_class_gives_another_map(house, room, image):
    first = last(actions.explained(house, room, image))
    other = last(actions.explained(house, room, replace(image, target=int(first.choices[1][1]))))
    assert other.maps != first.maps
    assert "would speak for" in other.answer
    assert other.target == first.choices[1][1]


def test_a_class_that_is_not_offered_becomes_the_likeliest(house, room, photo):
    assert last(actions.explained(house, room, replace(photo, target=99))).target == "8"


def test_opacity_goes_from_the_picture_to_the_map(house, room, image):
    case, _, (gae, _) = actions.known_maps(house, room, image)
    from vitrail.apps.web.drawing import painted
    from vitrail.plots.overlay import sample_map

    picture = views.picture_of(case)
    values = sample_map(gae, 0, picture)
    np.testing.assert_allclose(painted(values, picture, Look(0.0), signed=False), picture)
    assert np.abs(painted(values, picture, Look(1.0), signed=False) - picture).max() > 0.3


@pytest.mark.parametrize("palette", PALETTES)
def test_signed_maps_diverge_from_a_pale_middle(palette):
    from matplotlib import colormaps

    low, middle, high = colormaps[Look(palette=palette).colours(signed=True)]([0.0, 0.5, 1.0])[:, :3]
    assert middle.min() > 0.7
    assert np.abs(low - high).max() > 0.3


def test_unknown_colours_methods_presets_and_forms_are_said_so(house, room, image):
    wrong = [
        lambda: actions.redrawn(house, room, replace(image, look=Look(palette="plaid"))),
        lambda: last(actions.explained(house, room, replace(image, methods=["gea"]))),
        lambda: last(actions.explained(house, room, replace(image, methods=[]))),
        lambda: last(actions.explained(house, room, replace(image, methods=explaining.offered("image")))),
        lambda: last(actions.explained(house, room, replace(image, preset="best"))),
        lambda: actions.download(house, room, image, "exe"),
        lambda: actions.remove(house, room, image, "gae", "plaid", 10.0),
    ]
    for act in wrong:
        with pytest.raises(OptionError):
            act()


def test_a_preset_that_a_method_lacks_is_its_recommended_one(house, room, image):
    asked = replace(image, preset="official", methods=["agcam", "tokentm"])
    _, _, (agcam, tokentm) = actions.known_maps(house, room, asked)
    assert (agcam.preset, tokentm.preset) == ("official", "recommended")
    assert "agcam, official" in actions.redrawn(house, room, asked)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_the_tables_name_all_methods_with_layers_and_heads(house, room, image, text, kind):
    asked = {"image": image, "text": text}[kind]
    case, target = actions.situation(house, room, asked)
    quick = [name for name in explaining.offered(kind) if explaining.is_quick(name)]
    found = {name: explaining.map_of(room, case, target, name, "recommended") for name in quick}
    assert {n for n, one in found.items() if one.layers is not None} == set(views.LAYERED[kind])
    assert {n for n, one in found.items() if one.heads is not None} == set(views.HEADED)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_layers_and_heads_are_shown(house, room, image, text, kind):
    asked = {"image": image, "text": text}[kind]
    second, depth = actions.layer(house, room, asked, "attcat", 2)
    assert second != actions.layer(house, room, asked, "attcat", 1)[0]
    assert actions.layer(house, room, asked, "attcat", 99)[0] == actions.layer(house, room, asked, "attcat", depth)[0]
    heads = actions.heads(house, room, asked, "gradtoken")
    assert len(re.findall(r"head \d+<", heads)) == {"image": 3, "text": 12}[kind]
    with pytest.raises(OptionError, match="no map for each layer"):
        actions.layer(house, room, asked, "gae", 1)
    with pytest.raises(OptionError, match="no map for each head"):
        actions.heads(house, room, asked, "gae")


def test_text_has_a_heat_map_of_layers_over_tokens(house, room, text):
    table, depth = actions.layer(house, room, text, "attcat", 1)
    assert table.count('scope="row"') == depth + 1
    assert table.count('scope="col"') == 12
    assert table.count("class=marked") == 1


def test_removal_follows_the_curve_of_the_library(house, room, image):
    case, target, (gae, _) = actions.known_maps(house, room, image)
    found = removing.removal(room, case, target, gae, "black")
    pixels, grid = removing.pixels_of(case), gae.grid
    expected = metrics.perturbation_curve(
        case.opened.logits, pixels, gae.shown.reshape(1, *grid), [target],
        levels=removing.LEVELS["image"], units="patches",
    )  # fmt: skip
    np.testing.assert_allclose(found.by_map, expected.probability[:, 0], atol=1e-5)
    assert found.by_map[0] == pytest.approx(case.classes[0][1], abs=1e-5)
    assert found.by_map[0] == pytest.approx(found.by_chance[0], abs=1e-6)
    assert found.by_map[-1] == pytest.approx(found.by_chance[-1], abs=1e-6)  # nothing is left of either
    left = removing.picture_at(case, found, 10)
    assert (left == 0).all(axis=2).mean() >= 0.5


def test_the_slider_only_looks_up(house, room, image):
    first = actions.remove(house, room, image, "gae", "blur", 0.0)
    seen = []

    def move():
        seen.extend(actions.remove(house, room, image, "gae", "blur", float(share)) for share in range(0, 101, 5))

    assert passes(house, image.model, move) == 0
    assert seen[0] == first
    assert len(set(seen)) == 21
    case, target = actions.situation(house, room, image)
    assert f'aria-label="Probability of {case.name(target)}' in first


def test_words_are_removed_most_important_first(house, room, text):
    case, target, found = actions.known_maps(house, room, text)
    curve = removing.removal(room, case, target, found[0])
    assert [int(gone.sum()) for gone in curve.removed] == [round(10 * tenth / 10) for tenth in range(11)]
    order = found[0].shown[0].argsort(descending=True).tolist()
    words = [i for i in order if found[0].tokens[0][i] not in ("[CLS]", "[SEP]")]
    assert curve.removed[3].nonzero()[0].tolist() == sorted(words[:3])
    assert actions.remove(house, room, text, "attcat", "black", 30.0).count("<del ") == 3


def test_two_classes_are_told_apart(house, room, image):
    case, _ = actions.situation(house, room, image)
    (first, _), (second, _) = case.classes[:2]
    shown = actions.between(house, room, image, first, second)
    expected = vitrail.detail(case.opened.loaded.model, case.sample.inputs, first, second)
    assert_close(room.curves.get((case.key, first, second)).scores, expected.scores, atol=1e-6, rtol=1e-4)
    assert f"for {case.name(first)}" in shown
    assert passes(house, image.model, lambda: actions.between(house, room, image, first, second)) == 0
    assert actions.between(house, room, image, first, first) == shown  # the next best stands in


def test_agreement_is_the_rank_correlation(house, room, image):
    _, _, (a, b) = actions.known_maps(house, room, image)
    expected = metrics.rank_correlation(a.shown, b.shown)[0]
    assert f"{expected:+.2f}" in actions.agreement(house, room, image)
    with pytest.raises(OptionError, match="two methods"):
        actions.agreement(house, room, replace(image, methods=["gae"]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["image", "text"])
def test_everything_can_be_downloaded(house, room, image, text, kind, form, tmp_path):
    import urllib.request

    asked = replace({"image": image, "text": text}[kind], methods=["gae"])
    file = actions.download(house, room, asked, form)
    data = urllib.request.urlopen(file["url"]).read()
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype", "json": b"{"}
    assert file["name"] == f"vitrail.{form}"
    assert data.startswith(begins[form])
    if form == "json":
        (tmp_path / "one.json").write_bytes(data)
        assert vitrail.Attribution.load(tmp_path / "one.json").equals(actions.known_maps(house, room, asked)[2][0])


def test_several_maps_become_a_list_of_numbers(house, room, image):
    import urllib.request

    data = urllib.request.urlopen(actions.download(house, room, image, "json")["url"]).read()
    assert [one["method"] for one in json.loads(data)] == list(image.methods)


def test_a_script_is_shown_and_not_run(house, room, text):
    import urllib.request

    actions.take_text(house, room, SCRIPT)
    asked = replace(text, methods=["attcat"])
    shown = last(actions.explained(house, room, asked))
    table, _ = actions.layer(house, room, asked, "attcat", 1)
    removed = actions.remove(house, room, asked, "attcat", "black", 50.0)
    page = urllib.request.urlopen(actions.download(house, room, asked, "html")["url"]).read().decode()
    for html in (shown.answer, shown.maps, table, removed, page):
        assert "<script" not in html
    assert "&lt;" in shown.maps


def test_class_names_are_escaped(house, room, image):
    case, target, found = actions.known_maps(house, room, image)
    loaded = replace(case.opened.loaded, class_names=("<b onmouseover='x'>",) * 4)
    named = replace(case, opened=replace(case.opened, loaded=loaded))
    curve = removing.removal(room, case, target, found[0], "black")
    for html in (
        views.answer(named, 1),
        views.maps(named, target, found, Look()),
        views.removal(named, target, found[0], curve, 10.0),
        views.detail(named, [found[1]] * 3, (1, 2), Look()),
    ):
        assert "<b " not in html


def test_an_upload_is_checked_whatever_its_name(house, room, tmp_path):
    good, bad = tmp_path / "anything.txt", tmp_path / "fine.png"
    good.write_bytes(house.rooms.start.given["image"].data)
    bad.write_bytes(b"no picture at all")
    before = room.given["image"]
    with pytest.raises(InputError, match="no picture"):
        actions.take_picture(house, room, bad)
    assert room.given["image"] is before
    actions.take_picture(house, room, good)
    assert room.given["image"] == before
    assert good.exists()  # another visitor may have handed in the same picture, and Gradio keeps one file for both


def test_a_job_stops_at_the_next_pass(house, room, image):
    asked = replace(image, methods=["gae", "dix"])
    told = []

    def tell(fraction, words):
        told.append(words)
        if "dix, pass 3" in words:
            left.append(actions.stop(house, room, asked))

    left, shown = [], []
    with pytest.raises(Stopped):
        shown.extend(actions.explained(house, room, asked, tell))
    assert told[-1] == "computing dix, pass 3"
    assert left[0].count("<img") == 2
    assert "<strong>dix</strong><span>stopped<" in left[0]
    assert len(last(actions.explained(house, room, image)).maps) > 1000  # the model is as it was


def test_a_stop_is_heard_inside_a_long_pass_and_leaves_later_jobs_alone(house, room, image):
    case, _ = actions.situation(house, room, image)
    told = []
    with running(case.opened, room, lambda *args: told.append(args), "long") as watch:
        room.halt("image")
        with pytest.raises(Stopped):
            watch.step(case.opened.loaded.model, ())
    with running(case.opened, room, lambda *args: told.append(args), "later"):
        case.opened.loaded.model(case.sample.inputs["pixel_values"])
    assert told[-1] == (pytest.approx(1 - SLOWING), "later")
    assert len(steps_of(case.opened.loaded.model)) == 2
    assert len(case.opened.loaded.model._forward_pre_hooks) == 1  # one for all jobs


def test_the_bar_knows_how_far_it_is_once_a_method_has_run(house, room, image):
    told = {}

    def tell(fraction, words):
        told.setdefault(target, []).append((fraction, words))

    target = None
    choices = last(actions.explained(house, room, image)).choices
    for _, value in choices[:3]:
        target = int(value)
        list(actions.explained(house, room, replace(image, methods=["dix"], target=target), tell))
    _, first, second = told.values()  # the first of all measures the model's structure too
    passes = len({words for _, words in first}) - 1
    assert second[-1][1] == f"computing dix, pass {passes} of {passes}"
    assert [fraction for fraction, _ in second] == sorted(fraction for fraction, _ in second)
    assert second[-1][0] >= 1 - 1 / passes


def test_long_jobs_share_the_weights(house, room, image):
    case, _ = actions.situation(house, room, image)
    own, twin = case.opened.loaded.model, case.opened.twin.loaded.model
    assert all(a is b for a, b in zip(own.parameters(), twin.parameters(), strict=True))
    assert not set(map(id, own.modules())) & set(map(id, twin.modules()))


def test_quick_maps_are_shown_before_slow_ones(house, room, image):
    first, second = list(actions.explained(house, room, replace(image, methods=["attn_lrp", "gae"])))
    assert (first.maps.count("<img"), second.maps.count("<img")) == (2, 3)
    assert "<strong>attn_<wbr>lrp</strong><span>still computing<" in first.maps
    assert "still computing" not in second.maps
    assert list(re.findall(r"<strong>(\w+)", first.maps)) == list(re.findall(r"<strong>(\w+)", second.maps))


def test_a_long_job_keeps_nobody_else_waiting(house, image):
    anna, ben = house.rooms.of("anna"), house.rooms.of("ben")
    last(actions.explained(house, ben, image))
    begun, go_on, stopped = threading.Event(), threading.Event(), []

    def tell(fraction, words):
        if "pass 2" in words:
            begun.set()
            go_on.wait(60)

    def long():
        try:
            list(actions.explained(house, anna, replace(image, methods=["dix"]), tell))
        except Stopped:
            stopped.append("anna")

    thread = threading.Thread(target=long)
    thread.start()
    assert begun.wait(60)
    target = int(last(actions.explained(house, ben, image)).choices[1][1])
    last(actions.explained(house, ben, replace(image, target=target)))  # would wait for ever otherwise
    anna.halt("image")
    go_on.set()
    thread.join(60)
    assert stopped == ["anna"]


def test_a_method_that_fails_is_left_out_with_its_reason(house, room, image, monkeypatch):
    def broken(*args, **kwargs):
        raise vitrail.errors.RuleError("no rule for it.")

    monkeypatch.setattr(vitrail, "explain", broken)
    found = last(actions.explained(house, room, replace(image, methods=["gae", "attn_lrp"]))).maps
    assert "attn_lrp was left out: no rule for it." in found
    assert found.count("<img") == 2


def test_visitors_who_ask_at_once_get_their_own(house, text):
    sentences = [f"a film of {number} wonders, dull or not" for number in range(2)]
    text = replace(text, methods=["gae"])
    found = {}

    def visit(sentence):
        room = house.rooms.of(sentence)
        actions.take_text(house, room, sentence)
        found[sentence] = last(actions.explained(house, room, text)).maps

    threads = [threading.Thread(target=visit, args=[sentence]) for sentence in sentences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, sentence in enumerate(sentences):
        room = house.rooms.of("alone")
        room.given["text"] = Given("text", sentence)
        assert found[sentence] == last(actions.explained(house, room, text)).maps
        assert f">{number}<" in found[sentence]


def test_a_text_is_looked_at_once(house, room, text):
    actions.take_text(house, room, "another one")
    assert passes(house, "sentiment", lambda: actions.situation(house, room, text)) == 1
    assert passes(house, "sentiment", lambda: actions.situation(house, room, text)) == 0


def test_a_language_model_is_explained_by_its_next_token(room, known, tmp_path):
    name = str(save_gpt2(tmp_path / "gpt2"))
    house = House(Shelf([name]), Rooms(known), Limits())
    actions.take_text(house, room, "the quick brown fox")
    asked = Asked("text", name, None, ["gae", "attcat"], "recommended")
    shown = last(actions.explained(house, room, asked))
    assert shown.maps.count('class="sentence"') == 2
    assert actions.remove(house, room, asked, "gae", "black", 50.0).count("<del ") == 2
    assert "legend" in actions.between(house, room, asked, *(int(value) for _, value in shown.choices[:2]))
