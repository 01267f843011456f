"""Every action of the page without a server: the library's numbers, nothing computed twice, stopped when asked."""

import base64
import json
import threading
from unittest.mock import patch

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.apps.web import GoneError, actions, explaining, removing
from vitrail.apps.web.downloads import FORMS, PALETTES
from vitrail.apps.web.guard import ASKS
from vitrail.apps.web.payload import INTEGERS
from vitrail.apps.web.workers import Job, Stopped
from vitrail.attribution import Comparison
from vitrail.capture.recording import forward
from vitrail.capture.structure import measure
from vitrail.errors import MethodError, ModelError, OptionError, TargetError
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics.fills import FILLS
from vitrail.methods import METHODS
from vitrail.models.loading.huggingface import answer_words
from vitrail.models.loading.images import open_image

BALL, SENTENCE = "example:golf_ball", "example:sentence-1"


def unpacked(data):
    whole = np.frombuffer(base64.b64decode(data["int16"]), "<i2").astype(float)
    return torch.tensor(whole * data["scale"]).reshape(data["shape"])


def near(data, values):
    """Equal up to the rounding to 16 bits, and float32 in models."""
    largest = values.abs().max().item()
    assert_close(unpacked(data), values.double(), atol=largest / INTEGERS + 1e-5 * largest, rtol=0)


def case_of(explorer, session, name, model):
    steps = explaining.case_of(explorer, explaining.input_of(session, name), model, Job(session.id))
    while True:
        try:
            next(steps)
        except StopIteration as found:
            return found.value


def passes(explorer, model, kind, run):
    """How often the model is called while something runs, but for the passes that measure its structure."""
    calls = []

    def uncounted(own):
        def run(*args, **kwargs):
            before = len(calls)
            found = own(*args, **kwargs)
            del calls[before:]
            return found

        return run

    opened = explorer.models.open(model, kind)
    both = (opened.loaded.model, opened.twin.loaded.model)
    hooks = [one.register_forward_pre_hook(lambda *_: calls.append(1)) for one in both]
    try:
        with (
            patch.object(measure, "_measured", uncounted(measure._measured)),
            patch.object(forward, "_ends_of_run", uncounted(forward._ends_of_run)),
        ):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return len(calls)


@pytest.mark.parametrize(("name", "model"), [(BALL, "tiny"), (SENTENCE, "sentiment")])
def test_the_maps_are_those_of_the_library(explorer, session, do, tiny, name, model):
    model = tiny if model == "tiny" else model
    methods = ("gae", "complete_gradient", "attn_lrp")
    said, *found, end = do("explain", input=name, model=model, methods=methods)
    case = case_of(explorer, session, name, model)
    assert [one["map"]["method"] for one in found] == list(methods)  # the slow one last
    assert end == {"done": True}
    assert said["case"]["target"]["index"] == case.best
    for one, method in zip(found, methods, strict=True):
        expected = vitrail.explain(case.opened.loaded.model, case.sample.inputs, method, case.best)
        near(one["map"]["scores"], expected.shown[0])
        assert one["map"]["signed"] == expected.signed


def test_the_model_says_what_it_is_and_what_it_knows_and_doubts_a_foreign_picture(explorer, session, do, tmp_path):
    from PIL import Image

    (said, *_) = do("explain", input=BALL, model="photo", methods=("gae",))
    assert said["case"]["target"]["name"] == "golf ball"
    assert "ten classes" in said["case"]["card"]["what"]
    assert len(said["case"]["card"]["knows"]) == 10
    assert said["case"]["cautions"] == []
    noise = torch.randint(256, (64, 64, 3), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(tmp_path / "noise.png")
    steps = actions.take_picture(explorer, session, (tmp_path / "noise.png").read_bytes())
    (kept,) = [step for step in steps if isinstance(step, dict)]
    (said, *_) = do("explain", input=kept["input"], model="photo", methods=("gae",))
    assert "may show something it does not know" in said["case"]["cautions"][0]


def test_one_recording_serves_every_quick_method(explorer, do, tiny):
    quick = [name for name in explaining.offered("image") if explaining.is_quick(name)]
    do("explain", input=BALL, model=tiny, methods=("gae",))
    run = [tuple(quick[start : start + 8]) for start in range(0, len(quick), 8)]
    count = passes(
        explorer, tiny, "image", lambda: [do("explain", input=BALL, model=tiny, methods=some) for some in run]
    )
    assert count == 0
    fresh = passes(explorer, tiny, "image", lambda: do("explain", input=BALL, model=tiny, methods=run[0], target=1))
    assert fresh == 1


def test_any_class_can_be_found_and_explained(explorer, session, do):
    case = case_of(explorer, session, BALL, "photo")
    (found,) = do("classes", input=BALL, model="photo", words="HORN")
    (only,) = found["found"]
    assert (only["name"], only["probability"]) == ("French horn", float(case.probs[only["index"]]))
    (every,) = do("classes", input=BALL, model="photo")
    assert [one["index"] for one in every["found"]] == case.probs.argsort(descending=True).tolist()
    said, *_ = do("explain", input=BALL, model="photo", methods=("gae",), target=only["index"])
    assert said["case"]["target"] == only
    with pytest.raises(TargetError, match="10 classes"):
        do("explain", input=BALL, model="photo", methods=("gae",), target=10)


def test_removal_follows_the_curve_of_the_library(explorer, session, do, tiny):
    (found,) = do("remove", input=BALL, model=tiny, method="gae", fill="grey")
    case = case_of(explorer, session, BALL, tiny)
    gae = vitrail.explain(case.opened.loaded.model, case.sample.inputs, "gae", case.best)
    expected = metrics.perturbation_curve(
        case.opened.loaded.logits, removing.pixels_of(case), gae.scores.reshape(1, *gae.grid), [case.best],
        levels=removing.LEVELS, units="patches", fill="grey",
    )  # fmt: skip
    np.testing.assert_allclose(found["curve"], expected.probability[:, 0], atol=1e-5)
    for other in (*found["random"], found["centre"]):  # all begin whole and end with nothing
        assert other[0] == pytest.approx(found["curve"][0], abs=1e-6)
        assert other[-1] == pytest.approx(found["curve"][-1], abs=1e-6)
    assert found["ends"]["grey"] == pytest.approx(found["curve"][-1], abs=1e-5)
    gone = unpacked(found["removed_at"]).round()
    assert [(gone <= level).sum().item() for level in (0, 5, 10)] == [0, gae.scores.shape[1] // 2, gae.scores.shape[1]]
    order = gae.scores[0].argsort(descending=True, stable=True)
    assert (gone[order].diff() >= 0).all()
    again = passes(explorer, tiny, "image", lambda: do("remove", input=BALL, model=tiny, method="gae", fill="grey"))
    assert again == 0


def test_the_advantage_over_random_orders_has_an_honest_interval():
    random = np.array([[1.0, 0.6, 0.2], [1.0, 0.4, 0.2], [1.0, 0.5, 0.2]])
    same = removing.advantage(random.mean(axis=0), random)
    assert same["mean"] == pytest.approx(0)
    assert same["low"] < 0 < same["high"]
    faster = removing.advantage(np.array([1.0, -0.5, 0.2]), random)
    assert faster["low"] > 0
    gains = random.mean(axis=1) - (0.7 / 3)
    assert faster["mean"] == pytest.approx(gains.mean())
    reach = 4.302653 * gains.std(ddof=1) * np.sqrt(4 / 3)  # Student's t, two degrees of freedom
    assert faster["high"] - faster["mean"] == pytest.approx(reach, rel=1e-5)


def test_compare_gives_rank_correlations_and_a_row_of_trust(explorer, session, do, tiny):
    events = do("compare", input=BALL, model=tiny, methods=("gae", "complete_gradient"), fill="black")
    case = case_of(explorer, session, BALL, tiny)
    a, b = (vitrail.explain(case.opened.loaded.model, case.sample.inputs, m) for m in ("gae", "complete_gradient"))
    expected = metrics.rank_correlation(a.scores, b.scores)[0]
    assert events[0]["agreement"][0][1] == pytest.approx(expected, abs=1e-4)
    trusted = {one["trust"]: one for one in events if "trust" in one}
    (curve,) = do("remove", input=BALL, model=tiny, method="gae", fill="black")
    assert trusted["gae"]["mean"] == pytest.approx(np.mean(curve["random"]) - np.mean(curve["curve"]), abs=1e-6)
    assert trusted["gae"]["low"] < trusted["gae"]["mean"] < trusted["gae"]["high"]


def test_by_default_parts_become_what_hides_the_class_most(do, tiny):
    (found,) = do("remove", input=BALL, model=tiny, method="gae")
    assert found["ends"][found["fill"]] == min(found["ends"].values()) == pytest.approx(found["curve"][-1], abs=1e-5)
    (same,) = do("whatif", input=BALL, model=tiny, cells=(1,))
    assert same["fill"] == found["fill"]


def test_progress_counts_every_pass_once(explorer, session, do, tiny):
    do("explain", input=BALL, model=tiny, methods=("gae",))  # the hooks of the model are there before its twin is made
    said = []
    job = Job(session.id, progress=lambda share, words: said.append((share, words)))
    do("remove", job, input=BALL, model=tiny, method="gae", fill="noise", target=2)
    random = [words for _, words in said if words.startswith("removing parts at random")]
    assert random[-1] == "removing parts at random, pass 11 of 11"
    assert not any("in the order of gae, pass" in words for _, words in said)  # one pass


def test_every_fill_has_the_curve_that_removal_has_with_it(do, tiny):
    found = {event["fill"]: event["curve"] for event in do("fills", input=BALL, model=tiny, method="gae")}
    assert list(found) == list(FILLS)
    for fill in ("black", "noise"):
        (removed,) = do("remove", input=BALL, model=tiny, method="gae", fill=fill)
        assert found[fill] == removed["curve"]
    with pytest.raises(OptionError, match="no fills to compare"):
        do("fills", input="example:sentence-1", model="sentiment", method="gae")


def test_an_answer_and_its_sources_are_those_of_the_library(explorer, session, do, writer):
    text = explorer.sessions.add_text(session, "the quick brown fox")
    (found,) = do("answer", input=text, model=writer, length=5)
    loaded = explorer.models.open(writer, "text").loaded
    made = vitrail.generate(loaded.model, loaded.tokenizer, "the quick brown fox", unit="word", max_new_tokens=5)
    assert found["text"] == made.text
    table = next(iter(made.tables.values()))
    expected = table[:, : made.units[0].start]
    np.testing.assert_allclose(unpacked(found["scores"]), expected, atol=float(expected.abs().max()) / 60000)
    assert len(found["units"]) == len(made.units) == len(found["cited"])
    assert "".join(found["prompt"]).split() == ["the", "quick", "brown", "fox"]
    assert explaining.size_of(made) >= explaining.SMALL + table.nbytes  # counted in what the server keeps
    (longest,) = do("answer", input=text, model=writer, length=64)  # the model has 16 positions
    assert len(longest["prompt"]) + len(longest["units"]) <= 16
    with pytest.raises(OptionError, match="writes no text"):
        do("answer", input=text, model="sentiment", length=5)


def test_an_answer_about_a_picture_and_its_sources_are_those_of_the_library(explorer, session, do, questioned):
    about, _ = do("explain", input=BALL, model=questioned, methods=("gae",))
    assert (about["case"]["task"], about["case"]["classes"]) == ("asking", [])
    first, *words, _ = do("answer", input=BALL, model=questioned, question="a b c", length=5)
    loaded = explorer.models.open(questioned, "image").loaded
    sample = loaded.write(open_image(vitrail.zoo.example("golf_ball")), "a b c", length=5)
    known = answer_words(loaded, sample)
    assert [one["text"] for one in first["units"]] == [text for text, _ in known]
    assert first["text"].split() == [text for text, _ in known]
    assert len(known) == len(words) == 5
    assert "".join(first["prompt"]).split() == ["a", "b", "c"]
    for (_, span), found in zip(known, words, strict=True):
        streams = vitrail.explain(loaded.model, sample.inputs, "gae", targets.continuation(*span)).streams
        expected = streams["image"].scores[0].numpy()
        assert tuple(found["grid"]) == streams["image"].grid == (4, 4)
        np.testing.assert_allclose(unpacked(found["patches"]), expected, atol=float(abs(expected).max()) / 60000)
        text = streams["text"].shown[0, sample.start - len(first["prompt"]) : sample.start].numpy()
        np.testing.assert_allclose(unpacked(found["scores"]), text, atol=float(abs(text).max()) / 60000)
    assert do("answer", input=BALL, model=questioned, question="a b c", length=5) == [first, *words, {"done": True}]


def test_a_model_that_is_asked_says_what_it_needs(explorer, session, do, questioned):
    with pytest.raises(OptionError, match="there is no question"):
        do("answer", input=BALL, model=questioned, question=" ")
    with pytest.raises(OptionError, match="answers questions about pictures"):
        do("remove", input=BALL, model=questioned, method="gae")
    with pytest.raises(ModelError, match="reads pictures, not text"):
        do("answer", input="example:sentence-1", model=questioned, question="a b")


def test_what_if_asks_the_model_without_those_parts(explorer, session, do, tiny):
    case = case_of(explorer, session, BALL, tiny)
    (same,) = do("whatif", input=BALL, model=tiny, cells=())
    assert [one["probability"] for one in same["before"]] == pytest.approx(
        [one["probability"] for one in same["after"]], abs=1e-6
    )
    image = removing.pixels_of(case)
    (found,) = do("whatif", input=BALL, model=tiny, cells=(0,), fill="black")
    rows, columns = vitrail.explain(case.opened.loaded.model, case.sample.inputs, "gae").grid
    image[:, :, : image.shape[2] // rows, : image.shape[3] // columns] = 0
    expected = case.opened.loaded.logits(image)[0].softmax(dim=0)
    assert found["after"][0]["probability"] == pytest.approx(expected[case.best].item(), abs=1e-6)
    (text,) = do("whatif", input=SENTENCE, model="sentiment", cells=(6, 0))  # [CLS] always stays
    plain = case_of(explorer, session, SENTENCE, "sentiment")
    left = {
        "input_ids": torch.cat([plain.sample.inputs["input_ids"][:, :6], plain.sample.inputs["input_ids"][:, 7:]], 1)
    }
    with torch.no_grad():
        said = plain.opened.loaded.model(**left).logits[0].softmax(dim=0)
    assert text["after"][0]["probability"] == pytest.approx(said[plain.best].item(), abs=1e-5)


def test_what_if_and_attention_of_another_class_explain_nothing_again(do, tiny, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(vitrail, "compare", None)
        do("whatif", input=BALL, model=tiny, cells=(0,), target=1)  # the grid is known from what the model said
    do("explain", input=BALL, model=tiny, methods=("gae",))
    monkeypatch.setattr(vitrail, "compare", None)
    do("attention", input=BALL, model=tiny, target=1)


def test_contrast_is_the_library_s_detail(explorer, session, do, tiny):
    case = case_of(explorer, session, BALL, tiny)
    first, second = case.probs.topk(2).indices.tolist()
    (found,) = do("contrast", input=BALL, model=tiny, target=first, other=second)
    near(found["map"]["scores"], vitrail.detail(case.opened.loaded.model, case.sample.inputs, first, second).shown[0])
    with pytest.raises(OptionError, match="both classes"):
        do("contrast", input=BALL, model=tiny, target=first, other=first)


@pytest.mark.parametrize(("name", "model"), [(BALL, "tiny"), (SENTENCE, "sentiment")])
def test_attention_of_every_layer_and_head(explorer, session, do, tiny, name, model):
    model = tiny if model == "tiny" else model
    case = case_of(explorer, session, name, model)
    recording = vitrail.record(case.opened.loaded.model, case.sample.inputs, case.best)
    (read,) = do("attention", input=name, model=model)
    prefix = 1 if name == BALL else 0
    expected = torch.stack([layer.probs[0, :, 0] for layer in recording.layers])  # the answer is read at [CLS]
    near(read["rows"], expected[:, :, prefix:])
    (third,) = do("attention", input=name, model=model, token=3)
    expected = torch.stack([layer.probs[0, :, 3 + prefix] for layer in recording.layers])
    near(third["rows"], expected[:, :, prefix:])


def test_layers_and_heads_of_a_method(explorer, session, do):
    case = case_of(explorer, session, SENTENCE, "sentiment")
    attcat = vitrail.explain(case.opened.loaded.model, case.sample.inputs, "attcat", case.best)
    (found,) = do("layers", input=SENTENCE, model="sentiment", method="attcat")
    near(found["layers"], attcat.layers[0])
    (none,) = do("layers", input=SENTENCE, model="sentiment", method="gae")
    assert (none["layers"], none["heads"]) == (None, None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "model"), [(BALL, "tiny"), (SENTENCE, "sentiment")])
def test_everything_can_be_downloaded(do, tiny, tmp_path, name, model, form):
    model = tiny if model == "tiny" else model
    (file,) = do("download", input=name, model=model, methods=("gae",), form=form, palette="Viridis")
    data = base64.b64decode(file["base64"])
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml", "html": b"<!doctype", "json": b"{"}
    assert data.startswith(begins[form])
    if form == "json":
        (tmp_path / "one.json").write_bytes(data)
        assert vitrail.Attribution.load(tmp_path / "one.json").method == "gae"


def test_a_figure_is_drawn_in_the_colours_of_the_page(do, tiny):
    figures = {
        do("download", input=BALL, model=tiny, methods=("gae",), form="png", palette=name)[0]["base64"]
        for name in PALETTES
    }
    assert len(figures) == len(PALETTES)
    for name, (_, diverging) in PALETTES.items():
        (made,) = do("download", input=SENTENCE, model="sentiment", methods=("attcat",), form="svg", palette=name)
        ends = [to_hex(colormaps[diverging](place)) for place in (0.07, 0.93)]
        assert any(end in base64.b64decode(made["base64"]).decode() for end in ends)  # the strongest word
    with pytest.raises(OptionError, match="plaid"):
        do("download", input=BALL, model=tiny, methods=("gae",), form="png", palette="plaid")


@pytest.mark.parametrize("palette", PALETTES)
def test_signed_colours_diverge_from_a_pale_middle_and_warm_means_for(palette):
    low, middle, high = colormaps[PALETTES[palette][1]]([0.05, 0.5, 0.95])[:, :3]
    assert middle.min() > 0.85
    assert low[2] > low[0]  # cool: more blue than red
    assert high[0] > high[2]


@pytest.mark.parametrize(
    ("name", "asked", "error"),
    [
        ("explain", {"methods": ("gea",)}, MethodError),
        ("explain", {"methods": tuple(METHODS)[:20]}, OptionError),
        ("explain", {"methods": ("gae",), "model": "/etc"}, ModelError),
        ("explain", {"methods": ("gae",), "model": "sentiment"}, ModelError),
        ("explain", {"methods": ("gae",), "input": "example:nobody"}, GoneError),
        ("remove", {"method": "gae", "fill": "plaid"}, OptionError),
        ("download", {"methods": ("gae",), "form": "exe"}, OptionError),
        ("whatif", {"cells": (10**6,)}, ValueError),
        ("attention", {"token": 10**6}, ValueError),
    ],
)
def test_what_does_not_exist_is_said_so(do, tiny, name, asked, error):
    with pytest.raises(error):
        do(name, **{"input": BALL, "model": tiny, **asked})


def test_a_job_stops_at_the_next_block_and_the_model_is_as_it_was(explorer, session, do, tiny):
    job, told = Job(session.id), []

    def tell(fraction, words):
        told.append(words)
        if "dix, pass 3" in words:
            job.stop.set()

    job.progress = tell
    with pytest.raises(Stopped):
        do("explain", job=job, input=BALL, model=tiny, methods=("dix",))
    assert told[-1] == "computing dix, pass 3"
    assert do("explain", input=BALL, model=tiny, methods=("gae",))[-1] == {"done": True}


def test_a_slow_job_keeps_no_quick_one_waiting(explorer, session, do, tiny):
    begun, go_on, job = threading.Event(), threading.Event(), Job(session.id)

    def tell(fraction, words):
        if "pass 2" in words:
            begun.set()
            go_on.wait(60)

    job.progress = tell
    ask = ASKS["explain"](id="slow", input=BALL, model=tiny, methods=("dix",))
    thread = threading.Thread(target=lambda: list(actions.explain(explorer, session, ask, job)))
    thread.start()
    assert begun.wait(60)
    assert do("explain", input=BALL, model=tiny, methods=("gae",), target=2)[-1] == {"done": True}
    go_on.set()
    thread.join(60)


def test_a_language_model_answers_every_question_of_the_page(explorer, session, do, tmp_path):
    from saved_models import save_gpt2

    model = str(save_gpt2(tmp_path / "gpt2"))
    explorer.models.allowed = (*explorer.models.allowed, model)
    name = explorer.sessions.add_text(session, "the film is not bad")
    said, *maps, _ = do("explain", input=name, model=model, methods=("gae", "attcat"))
    assert len(maps) == 2
    count = len(said["case"]["tokens"]["text"])
    assert len(said["case"]["tokens"]["words"]) <= count
    (gone,) = do("remove", input=name, model=model, method="gae")
    assert len(unpacked(gone["removed_at"])) == count
    (changed,) = do("whatif", input=name, model=model, cells=(1,))
    assert changed["after"] != changed["before"]
    (rows,) = do("attention", input=name, model=model, token=1)
    assert unpacked(rows["rows"]).shape[-1] == count
    assert unpacked(rows["rows"])[..., 2:].abs().max() == 0  # a causal model does not attend to later tokens
    (found,) = do("classes", input=name, model=model, words="3")
    assert found["found"][0]["index"] == 3


def test_a_method_that_fails_is_missing_with_its_reason(do, tiny, monkeypatch):
    def broken(*args, **kwargs):
        return Comparison([], {0: vitrail.errors.RuleError("no rule for it.")})

    monkeypatch.setattr("vitrail.api.explainer.compare", broken)
    events = do("explain", input=BALL, model=tiny, methods=("attn_lrp", "gae"))
    assert {"missing": "attn_lrp", "why": "no rule for it."} in events
    assert [one["map"]["method"] for one in events if "map" in one] == ["gae"]


def test_a_quick_method_that_fails_leaves_the_others_as_they_are(explorer, session, do, tiny, monkeypatch):
    own = vitrail.compare

    def partly(model, inputs, specs, scalar, **more):
        place = [name for name, _ in specs].index("gae")
        made = [one for number, one in enumerate(own(model, inputs, specs, scalar, **more)) if number != place]
        return Comparison(made, {place: vitrail.errors.RuleError("no rule for it.")})

    monkeypatch.setattr(vitrail, "compare", partly)
    events = do("explain", input=BALL, model=tiny, methods=("gae", "complete_gradient"))
    assert {"missing": "gae", "why": "no rule for it."} in events
    (found,) = [event["map"] for event in events if "map" in event]
    case = case_of(explorer, session, BALL, tiny)
    near(found["scores"], vitrail.explain(case.opened.loaded.model, case.sample.inputs, "complete_gradient").shown[0])


def test_another_visitor_s_input_and_results_are_out_of_reach(explorer, session, do):
    name = explorer.sessions.add_text(session, "a quiet film")
    do("explain", input=name, model="sentiment", methods=("gae",))
    other = explorer.sessions.new()
    with pytest.raises(GoneError):
        do("explain", owner=other, input=name, model="sentiment", methods=("gae",))
    own = explorer.sessions.add_text(other, "a quiet film")
    assert other.get(own).key != session.get(name).key  # whether somebody asked the same cannot be told by the time


def test_a_script_in_a_text_stays_text_in_the_self_contained_page(explorer, session, do):
    name = explorer.sessions.add_text(session, "</script><script>alert(1)</script> a small miracle")
    (file,) = do("download", input=name, model="sentiment", methods=("gae",), form="html")
    page = base64.b64decode(file["base64"]).decode()
    assert page.count("</script>") == 2  # the data's and the program's own
    inside = page.split('id="data">')[1].split("</script>")[0]
    assert "alert" in json.loads(inside)["case"]["tokens"]["text"]
