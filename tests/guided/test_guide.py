import copy
import warnings

import pytest
import torch
from PIL import Image
from tiny_models import MODELS, tiny
from torch.testing import assert_close

import vitrail
from vitrail import targets, zoo
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.tools.guide import Setup, guided, of_any_size, open_shipped

pytestmark = pytest.mark.filterwarnings("ignore:the model does not recognise", "ignore:the guide shows the target")
SMALL = ("hf_vit", "hf_deit_teacher", "hf_clip", "hf_beit", "timm_vit", "timm_eva02", "timm_siglip", "torchvision_vit")


def pictures(name, batch=2, seed=0):
    torch.manual_seed(seed)
    return torch.randn(batch, 3, *MODELS[name].size, dtype=torch.float64)


def halves(image, other):
    """Both squashed to half the width, the first at the left."""
    half = (image.shape[2], image.shape[3] // 2)
    parts = [
        torch.nn.functional.interpolate(x, half, mode="bilinear", antialias=True, align_corners=False)
        for x in (image, other.expand_as(image))
    ]
    return torch.cat(parts, dim=3)


def test_a_guided_map_is_the_left_half_of_the_stitched_map():
    model, image, other = tiny("timm_vit"), pictures("timm_vit"), pictures("timm_vit", 1, seed=1)
    found = vitrail.guide(model, image, other, 3)
    whole = vitrail.explain(model, halves(image, other), "complete_gradient", 3)
    expected = whole.scores.reshape(2, 4, 4)[:, :, :2].flatten(1)
    assert_close(found.scores, expected)
    assert (found.grid, found.size, found.signed) == ((4, 2), (64, 64), True)
    assert not torch.equal(found.scores[0], found.scores[1])


def test_a_batch_gives_the_same_as_its_samples_one_by_one():
    model, image, others = tiny("timm_vit"), pictures("timm_vit", 3), pictures("timm_vit", 3, seed=1)
    together = vitrail.guide(model, image, others)
    alone = [vitrail.guide(model, image[i : i + 1], others[i : i + 1]).scores for i in range(3)]
    assert_close(together.scores, torch.cat(alone))


@pytest.mark.parametrize("name", SMALL)
def test_every_family_is_guided_and_left_as_it_was(name):
    model, inputs = tiny(name), MODELS[name].inputs()
    before = {n: x.clone() for n, x in model.state_dict().items()}
    found = vitrail.guide(model, inputs, pictures(name, 1, seed=1), 1, method="gae")
    assert found.scores.shape == (2, found.grid[0] * found.grid[1])
    assert bool(found.scores.abs().sum() > 0)
    assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())


@pytest.mark.parametrize("name", ["hf_vit", "hf_dinov2", "timm_vit", "timm_deit3"])
def test_native_keeps_every_patch_of_the_original(name):
    model, image = tiny(name), pictures(name)
    before = {n: x for n, x in vars(model).items() if not n.startswith("_")}
    found = vitrail.guide(model, image, pictures(name, 1, seed=1), 1, size="native", layout="mosaic")
    assert found.scores.shape[1] == vitrail.explain(model, image, "raw_attention").scores.shape[1]
    assert {n: x for n, x in vars(model).items() if not n.startswith("_")} == before
    with torch.no_grad():
        model(image)  # takes its own size as before


@pytest.mark.parametrize("name", ["torchvision_vit", "timm_eva02"])
def test_a_model_whose_positions_are_fixed_says_so(name):
    with pytest.raises(OptionError, match=r"cannot be interpolated to \d+ x \d+ pixels .*: use size='resize'"):
        vitrail.guide(tiny(name), pictures(name), pictures(name, 1), 1, size="native")


def test_a_timm_model_is_restored_after_an_error():
    model = tiny("timm_vit")
    with pytest.raises(TargetError):
        vitrail.guide(model, pictures("timm_vit"), pictures("timm_vit", 1), targets.difference(1, 99), size="native")
    assert not model.dynamic_img_size
    assert model.patch_embed.strict_img_size


def test_several_guides_are_averaged_with_equal_weight():
    model, image = tiny("timm_vit"), pictures("timm_vit")
    guides = [pictures("timm_vit", 1, seed=1), 5 * pictures("timm_vit", 1, seed=2)]
    alone = [vitrail.guide(model, image, guide, 3).scores for guide in guides]
    expected = sum(x / x.abs().amax(dim=1, keepdim=True) for x in alone) / 2
    found = vitrail.guide(model, image, guides, 3)
    assert_close(found.scores, expected)
    assert len(found.provenance["guidance"]["guides"]) == 2


def test_three_guides_find_room_in_one_mosaic():
    model, image = tiny("timm_vit"), pictures("timm_vit", 1)
    guides = [pictures("timm_vit", 1, seed=s) for s in (1, 2, 3)]
    found = vitrail.guide(model, image, guides, 3, layout="mosaic", size="native")
    stitched = torch.cat([torch.cat([image, guides[0]], 3), torch.cat([guides[1], guides[2]], 3)], 2)
    with of_any_size(model):
        whole = vitrail.explain(model, stitched, "complete_gradient", 3)
    assert_close(found.scores, whole.scores.reshape(1, 8, 8)[:, :4, :4].flatten(1))


@pytest.mark.parametrize("size", [(200, 90), (5, 7)])
def test_a_guide_of_any_size_is_fitted(size):
    other = torch.randn(1, 3, *size, dtype=torch.float64)
    assert vitrail.guide(tiny("timm_vit"), pictures("timm_vit"), other, 3).grid == (4, 2)


def test_methods_on_pixels_are_cut_too():
    found = vitrail.guide(
        tiny("timm_vit"), pictures("timm_vit"), pictures("timm_vit", 1), 3, method="input_x_gradient", level="pixels"
    )
    assert found.pixels.shape == (2, 64, 32)
    assert_close(found.scores.sum(dim=1), found.pixels.sum(dim=(1, 2)))


@pytest.fixture(scope="module")
def photo():
    return zoo.load("photo")


@pytest.mark.parametrize(("shown", "guide"), [("temple", "golf ball"), ("golf_ball", "church")])
def test_the_guide_of_the_package_shows_another_class_and_is_recognised(photo, shown, guide):
    image = photo.preprocess(open_shipped(shown))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = vitrail.guide(photo.model, image)
    about = found.provenance["guidance"]
    assert photo.class_names[about["guides"][0][0]] == guide
    assert about["probabilities"][0][0] > 0.9
    assert found.target.first == (photo.class_names.index("church" if shown == "temple" else "golf ball"),)


def test_each_sample_gets_a_guide_of_another_class_than_its_own(photo):
    image = torch.cat([photo.preprocess(open_shipped(name)) for name in ("temple", "golf_ball")])
    assert vitrail.guide(photo.model, image).provenance["guidance"]["guides"] == [[8, 4]]


def test_guidance_makes_the_guide_speak_against_the_target(photo):
    image = photo.preprocess(open_shipped("temple"))
    (found,) = guided(photo.model, image, open_shipped("golf_ball"), None, Setup())
    whole = found.whole.scores.reshape(16, 16)
    assert whole[:, :8].sum() > 0 > whole[:, 8:].sum()


def test_the_target_is_what_the_model_sees_in_the_image_alone(photo):
    image = photo.preprocess(open_shipped("temple"))
    (found,) = guided(photo.model, image, open_shipped("golf_ball"), None, Setup("mosaic"))
    with torch.no_grad():
        seen = [int(photo.model(x).logits.argmax()) for x in (image, found.stitched)]
    assert [photo.class_names[c] for c in seen] == ["church", "golf ball"]
    assert found.part.target == targets.logit([seen[0]])


def test_a_guide_of_the_target_itself_is_warned_of(photo):
    image = photo.preprocess(open_shipped("temple"))
    with pytest.warns(UserWarning, match="the guide shows the target itself, class 4"):
        vitrail.guide(photo.model, image, image)


def test_a_guide_the_model_does_not_recognise_is_warned_of(photo):
    noise = torch.rand(1, 3, 160, 160) * 0.02
    with pytest.warns(
        UserWarning, match=r"does not recognise the guide: class \d+ with probability 0\.\d+, below 0\.5"
    ):
        vitrail.guide(photo.model, photo.preprocess(open_shipped("temple")), noise)


def test_pictures_are_preprocessed_as_the_user_says(photo):
    image = photo.preprocess(open_shipped("temple"))
    first = vitrail.guide(photo.model, image, open_shipped("golf_ball"))
    golf = photo.preprocess(open_shipped("golf_ball"))
    again = vitrail.guide(photo.model, image, Image.new("RGB", (9, 9)), preprocess=lambda _: golf)
    assert_close(first.scores, again.scores)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "does not say how pictures are scaled"),
        ("zebra.png", "not str. Open a file"),
        ([], "the list of guides is empty"),
        (torch.ones(2, 5), r"a guide is a picture \[b, 3, h, w\]"),
        (torch.ones(2, 5, dtype=torch.long), r"a guide is a picture \[b, 3, h, w\]"),
    ],
)
def test_what_is_no_guide_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        vitrail.guide(tiny("hf_vit"), pictures("hf_vit"), given)


def test_text_is_referred_to_detail():
    with pytest.raises(InputError, match=r"For text: vitrail\.detail"):
        vitrail.guide(tiny("hf_bert"), MODELS["hf_bert"].inputs(), pictures("hf_vit", 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_a_gpu_gives_what_the_cpu_gives():
    model, image, other = tiny("timm_vit"), pictures("timm_vit"), pictures("timm_vit", 1, seed=1)
    here = vitrail.guide(model, image, other, 3)
    there = copy.deepcopy(model).cuda()
    far = vitrail.guide(there, image.cuda(), other, 3)
    assert_close(far.scores.cpu(), here.scores, atol=1e-6, rtol=1e-4)
    assert vitrail.detail(there, image.cuda()).target == vitrail.detail(model, image).target
