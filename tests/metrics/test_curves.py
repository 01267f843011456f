import numpy as np
import pytest
import torch
from golden_sets import golden
from numpy.testing import assert_allclose

from vitrail.errors import InputError, OptionError
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics import fills
from vitrail.evaluate.metrics.arrays import resize
from vitrail.evaluate.metrics.perturbation import by_rank, pixel_masks

SIDE, TOP, LEFT = 12, slice(3, 6), slice(6, 9)  # one of 4 x 4 patches of 3 x 3 pixels


def looks_at_one_patch(images):
    """Class 1 wins while the patch is brighter than 0.25 on average."""
    light = images[:, :, TOP, LEFT].mean(dim=(1, 2, 3))
    return torch.stack([torch.full_like(light, 1.0), 4 * light], dim=1)


def pictures(count=5):
    generator = torch.Generator().manual_seed(3)
    images = 0.4 + 0.6 * torch.rand(count, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    maps = torch.rand(count, 4, 4, generator=generator, dtype=torch.float64)
    return images, maps, torch.ones(count, dtype=torch.long)


def planted(maps):
    right = maps.clone()
    right[:, 1, 2] = 5
    return right


@pytest.mark.parametrize("order", ["positive", "negative"])
def test_the_golden_curves(given, expected, order):
    model = golden("v_tiny").model
    inputs = [given[f"perturb_model/{name}"] for name in ("images_0_1", "maps_4x4", "labels")]
    found = metrics.perturbation_curve(lambda x: model((x.double() - 0.5) / 0.5), *inputs, order=order)
    assert np.array_equal(found.hits, expected[f"perturb_model/{order}_hits"])
    assert_allclose(found.probability, expected[f"perturb_model/{order}_label_prob"], rtol=1e-6)


def test_the_golden_clean_logits_are_the_model_at_level_zero(given, expected):
    model = golden("v_tiny").model
    inputs = [given[f"perturb_model/{name}"] for name in ("images_0_1", "maps_4x4", "labels")]
    found = metrics.perturbation_curve(lambda x: model((x.double() - 0.5) / 0.5), *inputs, levels=[0])
    logits = torch.from_numpy(expected["perturb_model/clean_logits"])
    chosen = logits.softmax(dim=1)[torch.arange(6), torch.from_numpy(inputs[2])]
    assert_allclose(found.probability[0], chosen, rtol=1e-9)
    assert found.hits[0].tolist() == (logits.argmax(dim=1).numpy() == inputs[2]).tolist()


@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_planted_beats_random_beats_reverse(units):
    images, maps, labels = pictures()
    areas = {}
    for order in ("positive", "negative"):
        for name, some in (("planted", planted(maps)), ("random", maps), ("reverse", -planted(maps))):
            curve = metrics.perturbation_curve(looks_at_one_patch, images, some, labels, order=order, units=units)
            areas[order, name] = curve.probability.mean()
    assert areas["positive", "planted"] < areas["positive", "random"] < areas["positive", "reverse"]
    assert areas["negative", "planted"] > areas["negative", "random"] > areas["negative", "reverse"]


def test_removing_the_only_patch_the_model_looks_at_changes_its_mind():
    images, maps, labels = pictures()
    curve = metrics.perturbation_curve(
        looks_at_one_patch, images, planted(maps), labels, units="patches", levels=[0, 1 / 16, 1]
    )
    assert curve.hits.tolist() == [[True] * 5, [False] * 5, [False] * 5]
    assert_allclose(curve.probability[1], 1 / (1 + np.e))
    assert curve.levels == (0, 1 / 16, 1)


@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_masks_equal_the_removal_written_as_loops(units):
    images, maps, labels = pictures(3)
    seen = []
    levels = [0.05, 0.3, 0.77]
    metrics.perturbation_curve(
        lambda x: seen.append(x.clone()) or looks_at_one_patch(x), images, maps, labels, levels=levels, units=units
    )
    mixed = torch.cat(seen).view(3, 3, 3, SIDE, SIDE)
    keys = {"pixels": resize(maps, (SIDE, SIDE)), "patches": maps}[units]
    cell = SIDE // keys.shape[1]
    for level, count in enumerate(int(keys[0].numel() * fraction) for fraction in levels):
        for one in range(3):
            expected = images[one].clone()
            cut = sorted(keys[one].flatten().tolist(), reverse=True)[count - 1]
            removed = (keys[one] >= cut).nonzero().tolist()
            for y, x in removed:
                expected[:, y * cell : (y + 1) * cell, x * cell : (x + 1) * cell] = 0
            zeros = int((mixed[level, one, 0] == 0).sum())
            assert zeros == count * cell * cell
            if len(removed) == count:  # no ties at the limit
                assert torch.equal(mixed[level, one], expected)


def test_selecting_for_each_level_and_one_sort_for_all_agree_where_no_scores_are_equal():
    maps = torch.rand(3, 7, 9, dtype=torch.float64)
    levels, everything = [0.0, 0.2, 0.5, 1.0], (slice(None), slice(None))
    selected = pixel_masks(maps, (7, 9), levels)(*everything)
    ranked = by_rank(maps, [int(63 * level) for level in levels])(*everything)
    assert torch.equal(selected, ranked)
    assert selected.sum(dim=(2, 3)).tolist() == [[0] * 3, [12] * 3, [31] * 3, [63] * 3]


def test_equal_scores_go_in_reading_order_by_rank():
    maps = torch.randint(0, 5, (1, 60, 70)).double()  # large enough for an unstable sort to show
    expected = np.zeros(4200, dtype=bool)
    expected[np.argsort(-maps.flatten().numpy(), kind="stable")[:1000]] = True
    masks = by_rank(maps, [1000])(slice(None), slice(None))
    assert np.array_equal(masks.flatten().numpy(), expected)


def test_the_size_of_the_batch_and_the_company_of_other_images_change_nothing():
    images, maps, labels = pictures()
    for fill in fills.FILLS:
        whole = metrics.perturbation_curve(looks_at_one_patch, images, maps, labels, fill=fill)
        for batch in (1, 2, 7):
            again = metrics.perturbation_curve(looks_at_one_patch, images, maps, labels, fill=fill, batch=batch)
            assert_allclose(again.probability, whole.probability, rtol=1e-12)
        alone = metrics.perturbation_curve(looks_at_one_patch, images[2:3], maps[2:3], labels[2:3], fill=fill)
        assert_allclose(alone.probability[:, 0], whole.probability[:, 2], rtol=1e-12)


def test_no_more_images_than_the_batch_go_through_the_model_at_once():
    images, maps, labels = pictures()
    sizes = []
    metrics.perturbation_curve(lambda x: sizes.append(len(x)) or looks_at_one_patch(x), images, maps, labels, batch=11)
    assert (max(sizes), sum(sizes)) == (10, 45)  # two levels of five images
    sizes.clear()
    metrics.perturbation_curve(lambda x: sizes.append(len(x)) or looks_at_one_patch(x), images, maps, labels)
    assert sizes == [45]


def test_the_images_stay_as_they_are_and_no_graph_is_kept():
    images, maps, labels = pictures()
    before, graphs = images.clone(), []
    metrics.perturbation_curve(
        lambda x: graphs.append(torch.is_grad_enabled()) or looks_at_one_patch(x), images.requires_grad_(), maps, labels
    )
    assert torch.equal(images, before)
    assert graphs == [False]


def test_a_probability_too_small_for_softmax_still_is_not_zero():
    images, maps, labels = pictures(1)
    curve = metrics.perturbation_curve(lambda x: torch.tensor([[300.0, 0.0]]).repeat(len(x), 1), images, maps, labels)
    assert (curve.probability > 0).all()


def test_fills_are_what_they_are_called():
    torchvision = pytest.importorskip("torchvision.transforms.v2.functional")
    images, _, _ = pictures()
    assert_allclose(fills.filled(images, "black"), 0)
    assert_allclose(fills.filled(images, "grey"), 0.5)
    assert_allclose(fills.filled(images, "mean")[1, 2], float(images[1, 2].mean()))
    assert_allclose(fills.filled(images, "blur"), torchvision.gaussian_blur(images, [11, 11], [5.0, 5.0]), rtol=1e-5)
    noise = fills.filled(images, "noise")
    assert torch.equal(noise, fills.filled(images, fills.noise(seed=0)))
    assert not torch.equal(noise, fills.filled(images, fills.noise(seed=1)))
    assert 0 <= float(noise.min()) < 0.1 < 0.9 < float(noise.max()) <= 1


def test_a_fill_can_be_any_function_of_the_images():
    images, maps, labels = pictures()
    same = metrics.perturbation_curve(looks_at_one_patch, images, maps, labels, fill=lambda x: x)
    clean = looks_at_one_patch(images).softmax(dim=1)[:, 1]
    assert_allclose(same.probability, clean.expand(9, 5))


def test_deletion_falls_and_insertion_rises_fastest_for_the_planted_map():
    images, maps, labels = pictures()
    for measure, sign in ((metrics.deletion, -1), (metrics.insertion, 1)):
        means = [
            sign * measure(looks_at_one_patch, images, some, labels, steps=12, fill="black").probability.mean()
            for some in (planted(maps), maps, -planted(maps))
        ]
        assert means[0] > means[1] > means[2]


@pytest.mark.parametrize("convention", [{"steps": 4}, {"step": 20}])
@pytest.mark.parametrize("curve", [metrics.deletion, metrics.insertion], ids=["deletion", "insertion"])
def test_probabilities_are_taken_as_they_are_by_both_conventions(curve, convention):
    images, maps, labels = torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 2])
    weight = torch.randn(192, 3)
    logits = lambda images: images.flatten(1) @ weight  # noqa: E731
    plain = curve(logits, images, maps, labels, **convention)
    likely = curve(lambda images: logits(images).softmax(dim=1), images, maps, labels, **convention)
    torch.testing.assert_close(likely.probability, plain.probability)


def test_insertion_ends_with_the_image_and_deletion_with_the_fill():
    images, maps, labels = pictures()
    clean = looks_at_one_patch(images).softmax(dim=1)[:, 1]
    blurred = looks_at_one_patch(fills.filled(images, "blur")).softmax(dim=1)[:, 1]
    inserted = metrics.insertion(looks_at_one_patch, images, maps, labels, steps=7)
    deleted = metrics.deletion(looks_at_one_patch, images, maps, labels, steps=7)
    assert_allclose(inserted.probability[-1], clean)
    assert_allclose(deleted.probability[-1], blurred)
    assert inserted.levels[:2] == (
        21 / 144,
        42 / 144,
    )  # 21 = ceil(144 / 7); the point before the first step is left out
    assert inserted.levels[-1] == 1
    assert inserted.probability.shape == (7, 5)


@pytest.mark.parametrize(
    ("change", "help"),
    [
        ({"images": 2 * torch.rand(5, 3, SIDE, SIDE)}, "in 0..1, not yet normalised"),
        ({"images": torch.ones(5, 3, SIDE, SIDE, dtype=torch.uint8)}, "must be floating point"),
        ({"maps": torch.rand(4, 4, 4)}, r"\[5, 5\] and \[4, 5\]"),
        ({"maps": torch.full((5, 4, 4), float("nan"))}, "maps: 80 of 80 values are NaN, in example 0, 1, 2, 3, 4"),
        ({"labels": torch.full((5,), 2)}, "labels run from 2 to 2, but there are 2 classes"),
        ({"labels": torch.tensor(1)}, r"labels must have the axes \[b\]"),
        ({"levels": [0.5, 1.5]}, r"fractions from 0 to 1, but they are \[0.5, 1.5\]"),
        ({"batch": 0}, "at least 1, not 0"),
        ({"maps": torch.rand(5, 5, 5), "units": "patches"}, "12 x 12 do not divide into 5 x 5 patches"),
        ({"score": lambda x: x.mean(dim=(1, 2, 3))}, r"logits \[45, classes\] for 45 inputs, but it gave \[45\]"),
        ({"score": lambda x: {"logits": x}}, "but it gave dict"),
        ({"score": lambda x: torch.full((len(x), 2), float("nan"))}, "logits score returned: 45 of 45 values are NaN"),
        ({"images": torch.rand(5, 3, 4, 4), "fill": "blur"}, r"blur of 11 pixels needs larger images than \[4, 4\]"),
        ({"fill": lambda x: x[:1]}, "what the fill made of them"),
    ],
)
def test_what_cannot_be_perturbed_is_refused(change, help):
    images, maps, labels = pictures()
    call = {"score": looks_at_one_patch, "images": images, "maps": maps, "labels": labels} | change
    with pytest.raises(InputError, match=help):
        metrics.perturbation_curve(**call)


@pytest.mark.parametrize(
    ("option", "help"),
    [
        ({"order": "positiv"}, "no order 'positiv'. Did you mean positive"),
        ({"fill": "blak"}, "no fill 'blak'. Did you mean black"),
        ({"units": "tokens"}, "no unit 'tokens'. Known: patches, pixels"),
    ],
)
def test_unknown_conventions_are_refused(option, help):
    with pytest.raises(OptionError, match=help):
        metrics.perturbation_curve(looks_at_one_patch, *pictures(), **option)


def test_fills_that_are_no_colours_are_refused():
    with pytest.raises(OptionError, match="a fill of 127 is not a colour"):
        fills.constant(127.0)
    with pytest.raises(OptionError, match="odd kernel and a positive sigma, not 4 and 5"):
        fills.blur(kernel=4)
    with pytest.raises(InputError, match="steps is a number of levels, at least 1 and at most 10000, not 0"):
        metrics.insertion(looks_at_one_patch, *pictures(), steps=0)
