import pytest
import torch
from torch.testing import assert_close

from vitrail import METHODS, Attribution, targets


def image(**more):
    scores = torch.arange(12, dtype=torch.float64).reshape(2, 6)
    fields = {"method": "gae", "target": targets.logit(3), "kind": "image", "grid": (2, 3), "size": (8, 12)}
    return Attribution(scores, **{**fields, **more})


def test_a_heatmap_is_bilinear_with_half_pixel_centres_and_not_normalised():
    found = image().heatmap()
    assert found.shape == (2, 8, 12)
    assert_close(found[0, 0, 0], torch.tensor(0.0, dtype=torch.float64))
    # Four pixels a patch: pixel 1 lies an eighth of a patch before the first centre, pixel 2 an eighth behind it.
    assert_close(found[0, 0, 2], torch.tensor(0.125, dtype=torch.float64))
    assert_close(image().heatmap((2, 3))[1].flatten(), image().scores[1])


def test_pixels_take_the_place_of_patches():
    pixels = torch.rand(2, 8, 12, dtype=torch.float64)
    assert_close(image(pixels=pixels).heatmap(), pixels)


def test_text_has_no_heatmap():
    text = Attribution(torch.rand(1, 4), method="gae", target=targets.logit(0), kind="text")
    with pytest.raises(ValueError, match="no image to fill"):
        text.heatmap()


def test_what_is_shown_of_a_text_leaves_the_readouts_own_entry_out():
    scores = torch.tensor([[9.0, 1.0, -2.0], [1.0, 2.0, 9.0]])
    text = Attribution(scores, method="gae", target=targets.logit(0), kind="text", readout=torch.tensor([0, 2]))
    assert_close(text.shown, torch.tensor([[0.0, 1.0, -2.0], [1.0, 2.0, 0.0]]))
    assert_close(text.magnitude, scores.abs())
    assert_close(text.direction, scores.sign())


def test_the_label_names_the_options_that_differ_from_the_defaults():
    assert image(method="gradtoken", options={"depth": 2, "heads": "relu_mean"}).label == "gradtoken(depth=2)"
    assert image(method="lost", options={"a": 1}).label == "lost(a=1)"


def test_the_label_names_the_preset_where_that_is_shorter():
    fine = METHODS["consensus"].resolve("fine", {}, "image")
    assert image(method="consensus", preset="fine", options=fine).label == "consensus(preset=fine)"
    changed = {**fine, "radius": 8}
    assert image(method="consensus", preset="fine", options=changed).label == "consensus(preset=fine, radius=8)"
    rollout = METHODS["rollout"].resolve("official", {}, "image")
    assert image(method="rollout", preset="official", options=rollout).label == "rollout(start_layer=1)"
