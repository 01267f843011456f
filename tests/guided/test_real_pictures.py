"""The claims of Cui et al. on a trained model and real photographs, where they are at hand beside the project."""

from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.evaluate import data, metrics
from vitrail.models.loading import load
from vitrail.models.loading.images import open_image

DATA = Path(__file__).parents[3] / "shared" / "data"
ZEBRA, ELEPHANT = 340, 386

pytestmark = pytest.mark.skipif(
    not (DATA / "models").exists(), reason="real weights and photographs (../shared/data) are not at hand"
)


@pytest.fixture(scope="module")
def vit():
    return load(str(DATA / "models/vit_tiny_patch16_224.safetensors"), arch="vit_tiny_patch16_224")


def test_zebra_and_elephant_have_opposite_signs(vit):
    image = vit.image(open_image(DATA / "samples/el2.png"), squash=True).inputs
    for target, sign in ((ZEBRA, 1), (ELEPHANT, -1)):
        scores = sign * vitrail.explain(vit.model, image, "complete_gradient", target).scores.reshape(14, 14)
        assert scores[6:13, 6:13].sum() > 0 > scores[1:6, 1:9].sum()  # where the zebra stands, where the elephant


def test_the_absolute_correction_hardly_depends_on_the_class(vit):
    image = vit.image(open_image(DATA / "samples/el2.png"), squash=True).inputs
    found = {}
    for method in ("absolute_gradient", "gae", "complete_gradient"):
        pair = [vitrail.explain(vit.model, image, method, target).scores for target in (ZEBRA, ELEPHANT)]
        found[method] = float(metrics.rank_correlation(*pair)[0])
    assert found["absolute_gradient"] > 0.9 > 0.7 > found["gae"] > 0 > found["complete_gradient"]


def test_a_guide_mends_the_complete_correction_on_pictures_of_one_class(vit):
    chosen = list(data.load("pets", DATA / "pets").spread(8))
    images = torch.cat([vit.image(example.image, squash=True).inputs for example in chosen])
    masks = torch.stack([data.resize_mask(example.mask, (224, 224)) for example in chosen])
    labels = [example.label for example in chosen]
    alone = vitrail.explain(vit.model, images, "complete_gradient", labels)
    guided = vitrail.guide(vit.model, images, target=labels)
    fits = [metrics.segmentation(a.heatmap().numpy(), masks.numpy()).mean_iou for a in (alone, guided)]
    assert fits[1] > fits[0] + 0.1


def test_details_of_two_animals_lie_on_the_two(vit):
    image = vit.image(open_image(DATA / "samples/el2.png"), squash=True).inputs
    found = vitrail.detail(vit.model, image, ZEBRA, ELEPHANT)
    scores = found.scores.reshape(14, 14)
    assert scores[6:13, 6:13].sum() > 0 > scores[1:6, 1:9].sum()
