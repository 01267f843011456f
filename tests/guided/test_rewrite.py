import inspect
import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.errors import InputError, OptionError, OutputError, TargetError
from vitrail.models.loading import load
from vitrail.plots.canvas import rendered
from vitrail.tools.pixels import Budget, pixel_model_of, shown_model_of
from vitrail.tools.rewrite import NOTICE, psnr, ssim
from vitrail.tools.robustness import robustness

DATA = Path(__file__).parents[3] / "shared" / "data"
SHAPE = (12, 13, 3)
SHIFT, SCALE = (-1.0, -2.0, 0.5), (2.0, 3.0, 4.0)


class Linear(nn.Module):
    """Logits that are weighted sums of the pixels."""

    def __init__(self, strength=0.05):
        super().__init__()
        size = (5, SHAPE[2], SHAPE[0], SHAPE[1])
        self.weight = nn.Parameter(strength * torch.randn(size, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return torch.einsum("bchw,kchw->bk", x, self.weight)


def prepare(image):
    values = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None] / 255
    return torch.tensor(SHIFT)[None, :, None, None] + torch.tensor(SCALE)[None, :, None, None] * values


def picture(seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(60, 196, size=SHAPE, dtype=np.uint8))


def go(target, model=None, image=None, **options):
    image = picture() if image is None else image
    return vitrail.rewrite(model or Linear(), image, target, preprocess=prepare, **options)


def other(model=None):
    """A class the model does not predict."""
    return (int((model or Linear())(prepare(picture())).argmax()) + 1) % 5


# How alike two pictures are


def test_psnr_is_ten_logarithms_of_the_mean_squared_error():
    a = np.zeros((4, 5, 3))
    assert psnr(a, a + 0.1) == pytest.approx(20)
    assert psnr(a, a) == math.inf


def test_ssim_of_even_pictures_is_their_light_alone():
    """Eq. 6 of Wang et al.: (2 a b + C1) / (a a + b b + C1)."""
    a, b = 0.2, 0.7
    shape = (15, 17, 3)
    assert ssim(np.full(shape, a), np.full(shape, b)) == pytest.approx((2 * a * b + 1e-4) / (a * a + b * b + 1e-4))


def test_ssim_equals_the_sums_over_windows_of_the_paper():
    generator = np.random.default_rng(3)
    a = generator.random((13, 14, 2))
    b = np.clip(a + 0.1 * generator.standard_normal(a.shape), 0, 1)
    ticks = np.arange(-5, 6)
    window = np.exp(-(ticks[:, None] ** 2 + ticks[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for channel in range(2):
        for top in range(3):
            for left in range(4):
                x, y = (p[top : top + 11, left : left + 11, channel] for p in (a, b))
                mx, my = (window * x).sum(), (window * y).sum()
                sx, sy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
                both = (window * (x - mx) * (y - my)).sum()
                up = (2 * mx * my + 0.01**2) * (2 * both + 0.03**2)
                found.append(up / ((mx**2 + my**2 + 0.01**2) * (sx + sy + 0.03**2)))
    assert ssim(a, b) == pytest.approx(np.mean(found), abs=1e-9)
    assert ssim(a, a) == pytest.approx(1)


def test_ssim_needs_a_window():
    with pytest.raises(InputError, match="11 x 11"):
        ssim(np.zeros((10, 20, 3)), np.zeros((10, 20, 3)))


# Budgets


def test_a_projection_is_the_nearest_change_within_the_budget():
    change = torch.tensor([3.0, -4.0])
    assert_close(Budget(l2=1.0).project(change), torch.tensor([0.6, -0.8]))
    assert_close(Budget(l2=6.0).project(change), change)
    assert_close(Budget(linf=3.5).project(change), torch.tensor([3.0, -3.5]))


@pytest.mark.parametrize("budget", [Budget(l2=0.05), Budget(l2=0.4), Budget(linf=2.6 / 255), Budget(0.1, 3 / 255)])
def test_the_quantised_picture_stays_within_the_budget(budget):
    original = torch.randint(256, (1, 3, 20, 21)) / 255
    wild = (original + 0.1 * torch.randn_like(original)).clamp(0, 1)
    found = budget.quantise((original + budget.project(wild - original)).clamp(0, 1), original)
    assert_close(found * 255, (found * 255).round(), atol=1e-4, rtol=0)
    assert float((found - original).double().norm()) <= (budget.l2 or math.inf) + 1e-5
    assert float((found - original).abs().max()) <= (budget.linf or math.inf) + 1e-5
    assert float((found - original).abs().max()) > 0


@pytest.mark.parametrize("sizes", [{"l2": 0.0}, {"l2": -1.0}, {"linf": math.inf}, {"linf": 0.5 / 255}])
def test_a_budget_in_which_nothing_fits_is_refused(sizes):
    with pytest.raises(OptionError, match=r"budget is a size above 0|nothing fits"):
        Budget(**sizes)


# From pixels to logits


def test_the_lens_reads_shift_and_scale_off_the_preprocessing():
    pixel_model, levels = pixel_model_of(shown_model_of(Linear(), prepare, squash=False), picture())
    assert_close(pixel_model.scaling.shift.flatten(), torch.tensor(SHIFT))
    assert_close(pixel_model.scaling.scale.flatten(), torch.tensor(SCALE))
    assert_close(levels[0].permute(1, 2, 0), torch.from_numpy(np.array(picture())) / 255)
    plain = pixel_model.shown_model.model(prepare(picture()))[0]
    assert_close(pixel_model.logits(levels), plain, rtol=1e-5, atol=1e-5)  # single precision
    assert_close(pixel_model.reload(levels), plain)


def test_a_preprocessing_that_moves_pixels_is_refused():
    def crops(image):
        return prepare(image.resize((SHAPE[1] + 2, SHAPE[0] + 2)).crop((1, 1, SHAPE[1] + 1, SHAPE[0] + 1)))

    with pytest.raises(OptionError, match=r"13 x 12 pixels.*Leave resizing"):
        vitrail.rewrite(Linear(), picture(), 1, preprocess=crops)


# Rewriting


def test_the_first_step_of_a_linear_model_is_eta_times_the_difference_of_its_weights():
    """x <- x - eta d(y_source - y_target)/dx, rounded to 8 bits; the gradient reaches raw pixels through the scale."""
    model, target = Linear(), other()
    source = (target - 1) % 5
    made = go(target, source=source, eta=0.5, steps=1, probability=0.999999)
    slope = (model.weight[source] - model.weight[target]).detach() * torch.tensor(SCALE)[:, None, None]
    expected = (made.levels[0] - 0.5 * slope).clamp(0, 1)
    assert_close(made.levels[1], (expected * 255).round() / 255)
    assert made.trace.shape == (2, 2)


def test_the_new_picture_fools_the_model_when_it_is_saved_and_loaded(tmp_path):
    made = go(other())
    with Image.open(made.save(tmp_path / "new.png")) as image:
        assert (image.mode, image.size) == ("RGB", (13, 12))
        logits = Linear()(prepare(image))[0].detach()
    assert made.reached
    assert int(logits.argmax()) == made.classes[1] == other()
    assert float(logits.softmax(dim=0)[other()]) >= 0.9
    assert_close(logits.softmax(dim=0)[list(made.classes)], made.probabilities[1])


def test_steps_go_on_where_rounding_loses_the_class(monkeypatch):
    plain = go(other())
    real, calls = vitrail.tools.pixels.PixelModel.reload, []

    def stubborn(pixel_model, levels):
        calls.append(1)
        found = real(pixel_model, levels)
        return -found if 1 < len(calls) < 5 else found  # the first call looks at the original

    monkeypatch.setattr("vitrail.tools.pixels.PixelModel.reload", stubborn)
    made = go(other())
    assert made.reached
    assert len(made.trace) == len(plain.trace) + 3


def test_the_strongest_rival_gives_way_unless_a_source_is_named():
    model = Linear()
    logits = model(prepare(picture()))[0]
    order = logits.argsort(descending=True).tolist()
    made, named = go(order[2]), go(order[2], source=order[4])
    assert made.classes == (order[0], order[2])
    assert made.l2 < named.l2


@pytest.mark.parametrize("limit", [{"linf": 3 / 255}, {"l2": 0.25}])
def test_a_budget_holds_and_what_it_costs_is_told(limit):
    made = go(other(), steps=20, **limit)
    (name, size) = next(iter(limit.items()))
    assert getattr(made, name) <= size + 1e-6
    assert made.reached == (made.fooled and float(made.probabilities[1, 1]) >= 0.9)
    free = go(other())
    assert free.l2 > made.l2 or made.reached


def test_nothing_is_reached_within_a_budget_that_is_too_small():
    made = go(other(), linf=1 / 255, steps=3)
    assert not made.reached
    assert len(made.trace) == 4


def test_the_difference_is_amplified_around_grey():
    made = go(other())
    change = np.asarray(made.picture, float) - np.asarray(made.original, float)
    expected = np.clip(127.5 + made.amplification * change, 0, 255)
    assert np.abs(np.asarray(made.difference) - expected).max() <= 1
    assert made.amplification > 1
    assert made.psnr == pytest.approx(psnr(np.asarray(made.picture) / 255, np.asarray(made.original) / 255))
    assert made.l2 == pytest.approx(np.linalg.norm(change / 255), rel=1e-5)


def test_everything_says_that_it_is_an_audit(tmp_path):
    made = go(other())
    assert NOTICE == "adversarial robustness audit of your own model"
    for documented in (vitrail.rewrite, type(made), robustness):
        assert NOTICE in " ".join((inspect.getdoc(documented) or "").lower().split())
    with Image.open(made.save(tmp_path / "new.png")) as image:
        assert NOTICE in image.text["Title"]
        about = json.loads(image.text["Description"])
    assert about["notice"] == json.loads(made.save(tmp_path / "new.json").read_text())["notice"] == NOTICE
    assert any(NOTICE in text.get_text() for text in made.plot().texts)
    with pytest.raises(OutputError, match=r"does not end in \.png"):
        made.save(tmp_path / "new.jpg")


@pytest.mark.parametrize("name", ["mask: N95", ": ", "a: b: c", "cash $5 to $6", "two\nlines", ""])
def test_a_class_may_have_any_name(name):
    made = replace(go(other()), names=(name, "x: y"))
    rendered(made.plot())
    assert any(f"rewritten\n{name} " in text.get_text() for text in made.plot().texts)


def strict(path):
    """JSON as other readers take it: NaN and Infinity are no words of it."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(path.read_text(), parse_constant=refuse)


def test_an_unchanged_picture_has_no_infinity_in_its_json(tmp_path):
    made = go(other())
    same = replace(made, levels=(made.levels[0], made.levels[0]))
    assert same.psnr == math.inf
    assert strict(same.save(tmp_path / "x.json"))["psnr"] is None
    with Image.open(same.save(tmp_path / "x.png")) as image:
        assert "Infinity" not in image.text["Description"]
    assert json.dumps(same.to_dict(), allow_nan=False)


def test_an_audit_with_an_unchanged_picture_has_no_infinity_in_its_json(tmp_path):
    found = robustness(Linear(), [("a", picture())], preprocess=prepare, steps=1, budgets=[Budget(linf=1 / 255)])
    within = {**found.pictures[0]["within"][0], "psnr": math.inf}
    row = replace(found.rows[0], psnr=math.inf, ssim=math.nan)
    changed = replace(found, rows=(row,), pictures=({**found.pictures[0], "within": [within]},))
    content = strict(changed.save(tmp_path / "x.json"))
    assert content["pictures"][0]["within"][0]["psnr"] is content["rows"][0]["psnr"] is None


def test_the_model_is_as_it_was_also_after_an_error(monkeypatch):
    model = Linear().train()
    before = model.weight.detach().clone()
    go(other(), model)
    monkeypatch.setattr("vitrail.tools.rewrite.PixelPath.step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(other(), model)
    assert model.training
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)


WRONG = [
    ({"target": 9}, TargetError, "out of range"),
    ({"target": "church"}, TargetError, "classes have no names"),
    ({"target": (other() - 1) % 5}, TargetError, "already sees"),
    ({"target": 1, "source": 1}, TargetError, "source and target are both"),
    ({"target": 1, "eta": -1.0}, OptionError, "above 0"),
    ({"target": 1, "steps": 0}, OptionError, "steps=0"),
    ({"target": 1, "probability": 1.0}, OptionError, "below 1"),
    ({"target": 1, "image": "cat.png"}, InputError, "not str"),
    ({"target": 1, "image": np.zeros(SHAPE)}, InputError, "PIL image, not ndarray"),
]


@pytest.mark.parametrize(("options", "error", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_what_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        go(**options)


def test_a_model_without_preprocessing_or_for_text_is_refused():
    with pytest.raises(OptionError, match="preprocess="):
        vitrail.rewrite(Linear(), picture(), 1)
    for model in (vitrail.zoo.load("sentiment"), load("sentiment")):
        with pytest.raises(InputError, match="sentiment reads text"):
            vitrail.rewrite(model, picture(), 1)
    with pytest.raises(InputError, match="not str"):
        vitrail.rewrite("photo", picture(), 1)


# Success rate against perturbation size


def test_a_larger_budget_never_fools_less():
    pictures = [(f"{seed}.png", picture(seed)) for seed in range(4)]
    budgets = [Budget(linf=levels / 255) for levels in (1, 6, 40)]
    found = robustness(Linear(), pictures, budgets=budgets, preprocess=prepare, steps=15)
    rates = [row.fooled for row in found.rows]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == 1
    assert all(row.sure <= row.fooled for row in found.rows)
    assert found.to_dict()["notice"] == NOTICE


@pytest.mark.parametrize("second", [Budget(linf=1 / 255), Budget(l2=0.05)])
def test_nothing_counts_within_a_budget_that_it_exceeds(second):
    budgets = [Budget(linf=40 / 255), second]
    found = robustness(Linear(), [("a.png", picture())], budgets=budgets, preprocess=prepare, steps=15)
    first, other_one = found.pictures[0]["within"]
    assert first["fooled"]
    assert not second.holds(l2=first["l2"], linf=first["linf"])
    assert second.holds(l2=other_one["l2"], linf=other_one["linf"])


def test_an_audit_names_what_it_leaves_out_and_is_written_as_a_table(tmp_path):
    pictures = [("a.png", picture())]
    found = robustness(Linear(), [*pictures, ("b.png", picture(5))], other(), preprocess=prepare, steps=5)
    lines = found.save(tmp_path / "audit.csv").read_text().splitlines()
    assert lines[0].startswith("l2,linf,fooled")
    assert len(lines) == 1 + len(found.rows)
    assert all(NOTICE in line for line in lines[1:])
    seen = (other() - 1) % 5
    with pytest.raises(InputError, match=r"a\.png: the model already sees"):
        robustness(Linear(), pictures, seen, preprocess=prepare)
    with pytest.raises(OptionError, match="no budget"):
        robustness(Linear(), pictures, budgets=[], preprocess=prepare)
    with pytest.raises(OutputError, match="known ending"):
        found.save(tmp_path / "audit.txt")


# Trained models


@pytest.mark.parametrize(("name", "target"), [("golf_ball.jpg", "church"), ("temple.jpg", "golf ball")])
def test_the_embedded_model_is_fooled_above_forty_decibels(name, target):
    with Image.open(str(files("vitrail.apps.demo") / "pictures" / name)) as image:
        made = vitrail.rewrite(vitrail.zoo.load("photo"), image, target)
    assert made.reached
    assert made.names[1] == target
    assert made.psnr > 40


@pytest.mark.skipif(not (DATA / "models").exists(), reason="real weights (../shared/data) are not at hand")
def test_a_real_model_is_fooled_above_forty_decibels():
    loaded = load(str(DATA / "models/vit_tiny_patch16_224.safetensors"), arch="vit_tiny_patch16_224")
    with Image.open(DATA / "samples/el1.png") as image:
        made = vitrail.rewrite(loaded, image.convert("RGB"), "bull mastiff", squash=True)
    assert made.reached
    assert made.psnr > 40
    assert loaded.model(loaded.image(made.picture, squash=True).inputs).argmax() == made.classes[1]
