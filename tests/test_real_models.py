"""Trained models on real photographs, where they are at hand beside the project."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import vitrail

DATA = Path(__file__).parents[2] / "shared" / "data"
MODELS = {
    "vit_tiny_patch16_224": ("vit_tiny_patch16_224.safetensors", (0.5,) * 3, (0.5,) * 3),
    "deit_tiny_patch16_224": (
        "deit_tiny_patch16_224_lnq.safetensors", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
    ),
}  # fmt: skip
DOG, CAT = 243, 282
METHODS = ["gae", "tokentm", ("gradtoken", {"scheme": "average_elementwise"}), "gradtoken", "complete_gradient"]

pytestmark = pytest.mark.skipif(
    not (DATA / "models").exists(), reason="real weights and photographs (../shared/data) are not at hand"
)


def load(name):
    import timm
    from PIL import Image
    from safetensors.torch import load_file

    file, mean, std = MODELS[name]
    model = timm.create_model(name, pretrained=False)
    model.load_state_dict(load_file(DATA / "models" / file))
    picture = Image.open(DATA / "samples" / "catdog.png").convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255
    return model.eval(), ((pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])[None]


def share(attribution):
    """How much of the positive map lies on the cat, of what lies on the cat or the dog."""
    map_ = attribution.heatmap()[0].clamp(min=0)
    dog, cat = map_[8:125, 65:170].sum(), map_[130:, 45:200].sum()
    return float(cat / (cat + dog))


@pytest.mark.parametrize("name", MODELS)
def test_maps_of_the_cat_and_of_the_dog_lie_on_the_cat_and_on_the_dog(name):
    model, image = load(name)
    cats, dogs = (vitrail.compare(model, image, METHODS, target) for target in (CAT, DOG))
    for cat, dog in zip(cats, dogs, strict=True):
        assert share(cat) > share(dog) + 0.1, cat.label
    assert share(cats["gae"]) > 0.5 > share(dogs["gae"])


# The interpreter takes fifteen seconds for a picture, so without a GPU two blocks and one method have to do.
FUSED = ["gae", "absolute_gradient", "complete_gradient", "tokentm", "attcat", "gradtoken"]
CASES = (
    [(name, method) for name in MODELS for method in FUSED]
    if torch.cuda.is_available()
    else [("vit_tiny_patch16_224", "gae")]
)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_kernels_rank_the_patches_as_whole_maps_do(name, method):
    """In bfloat16 on a GPU; elsewhere Triton's interpreter, which has no bfloat16, runs the kernels in float32."""
    pytest.importorskip("triton", reason="Triton is not installed")
    model, image = load(name)
    if torch.cuda.is_available():
        model, image = model.cuda().bfloat16(), image.cuda().bfloat16()
    else:
        model.blocks = model.blocks[-2:]
    kernels, maps = (vitrail.explain(model, image, method, CAT, backend=b) for b in ("fused", "dense"))
    assert kernels.provenance["backend"].startswith("fused")
    found = stats.spearmanr(kernels.scores[0].cpu(), maps.scores[0].cpu()).statistic
    assert found > 0.999
