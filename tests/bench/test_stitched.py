import numpy as np
import pytest
import torch
from PIL import Image

from vitrail import compare
from vitrail.errors import InputError, OptionError
from vitrail.evaluate import bench, data, metrics
from vitrail.evaluate.bench.plan import PRIORS
from vitrail.evaluate.bench.store import reading
from vitrail.models.loading import load
from vitrail.tools.guide import open_shipped


@pytest.fixture
def cui(plan_of):
    return lambda text="cui", **more: plan_of(protocols=(bench.find_protocol(text),), **more)


def stored(path, metric):
    """Key -> stored value of the one method's metric, of the examples that have one."""
    with reading(path) as store:
        (run,) = (run for run, about in store.runs().items() if about["method"]["name"] not in PRIORS)
        return {key: value for key, name, value, _ in store.results(run) if name == metric and value is not None}


def stitched(place, guide):
    """The pets and the guide, both squashed to half the width, in 0..1."""
    loaded, pets = load(str(place / "vit")), data.load("pets", place / "pets")
    pictures = [loaded.image(picture, squash=True).picture for picture in (*(e.image for e in pets), guide)]
    images = torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) / 255 for p in pictures])
    halves = torch.nn.functional.interpolate(images, (32, 16), mode="bilinear", antialias=True, align_corners=False)
    both = torch.cat([halves[:-1], halves[-1:].expand_as(halves[:-1])], dim=3)
    return loaded.model, both, torch.tensor([e.label for e in pets]), images[-1:]


@pytest.mark.parametrize("own", [False, True])
def test_the_curves_are_those_of_the_stitched_pictures(place, cui, tmp_path, own):
    guide = open_shipped("golf_ball")
    text = "cui"
    if own:
        guide = Image.effect_noise((50, 40), 90).convert("RGB")
        guide.save(tmp_path / "noise.png")
        text = f"cui(guide={tmp_path / 'noise.png'})"
    bench.run(cui(text, trials=(bench.Trial("gae"),)), tmp_path / "r.db")
    model, images, labels, other = stitched(place, guide)

    def score(x):
        return model((x - 0.5) / 0.5).logits

    with torch.no_grad():
        shown = int(score(other).argmax())
    kept = [i for i, label in enumerate(labels.tolist()) if label != shown]
    assert 0 < len(kept) < len(labels)  # the guide's own class is left out
    (gae,) = compare(model, (images - 0.5) / 0.5, ["gae"], labels)
    for order in ("positive", "negative"):
        expected = metrics.perturbation_curve(
            score, images, gae.scores.reshape(-1, 4, 4), labels, order=order, levels=np.arange(10) / 10, units="patches"
        )
        found = [row["probability"] for row in stored(tmp_path / "r.db", order).values()]
        assert len(found) == len(kept)
        np.testing.assert_allclose(found, expected.probability.T[kept], rtol=1e-3)  # single precision, other batches


def test_the_guide_stands_in_the_table(cui, tmp_path):
    bench.run(cui(), tmp_path / "r.db")
    text = bench.render(bench.tables(tmp_path / "r.db"))
    assert "protocol cui\n" in text
    assert "beside the guide golf_ball" in text
    assert "it is of the guide's class" in text


def test_two_guides_make_two_protocols(tmp_path):
    path = tmp_path / "zebra.png"
    for colour in ("red", "blue"):
        Image.new("RGB", (9, 9), colour).save(path)
        protocol = bench.find_protocol(f"cui(guide={path})")
        assert protocol.name == "cui(guide=zebra.png)"
        assert str(tmp_path) not in str(protocol.table())
        if colour == "red":
            before = protocol.table()
    assert protocol.table() != before
    assert "guide" not in bench.find_protocol("chefer").table()


def test_without_a_guide_pictures_are_left_alone(cui, plan_of, tmp_path):
    bench.run(cui("cui(guide=)", trials=(bench.Trial("gae"),)), tmp_path / "a.db")
    plain = bench.find_protocol("chefer").with_(target="label", units="patches")
    bench.run(plan_of(protocols=(plain,), trials=(bench.Trial("gae"),)), tmp_path / "b.db")
    assert stored(tmp_path / "a.db", "positive") == stored(tmp_path / "b.db", "positive")


def test_masks_do_not_fit_stitched_pictures(cui, tmp_path):
    bench.run(cui(metrics=("segmentation",), trials=(bench.Trial("gae"),)), tmp_path / "r.db")
    assert "not cropped or stitched" in bench.render(bench.tables(tmp_path / "r.db"))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("cui(guide=zebra)", InputError, "there is no guide zebra: give one of golf_ball, temple or the path"),
        ("cui(gide=zebra)", OptionError, "Did you mean guide"),
        ("cui(k=many)", OptionError, "not a whole number"),
        ("cui(levels=0.5)", OptionError, r"not a list such as \[1, 2\]"),
        ("kui", OptionError, "there is no protocol 'kui'"),
    ],
)
def test_a_guide_or_convention_that_does_not_exist_is_refused(cui, tmp_path, text, error, words):
    with pytest.raises(error, match=words):
        bench.run(cui(text), tmp_path / "r.db")


def test_conventions_in_brackets_are_those_of_with():
    changed = bench.find_protocol("vtranm(fill=blur, drops=false, k=5)")
    assert changed == bench.find_protocol("vtranm").with_(fill="blur", drops=False, k=5)
