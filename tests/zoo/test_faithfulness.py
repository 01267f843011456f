"""What is deleted first by a good explanation lowers the answer most: facts about trained models, not shapes.

Each test deletes the same share of patches or words in four orders and compares the drop in the predicted class's
probability, input by input; the 95 % interval of the mean difference must lie above zero.
"""

import csv
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import torch
from einops import rearrange

import vitrail
from vitrail import zoo

DATA = Path(__file__).parents[3] / "shared" / "data"
PHOTOS, SENTENCES, SHARE = 24, 60, 0.2

pytestmark = pytest.mark.skipif(
    not (DATA / "imagenette160").exists(), reason="validation data (../shared/data) is not at hand"
)


def clear_of_zero(differences):
    """The lower end of the 95 % interval of the mean."""
    return float(differences.mean() - 1.96 * differences.std() / len(differences) ** 0.5)


def check_drops(drops):
    for other in ("rollout", "random", "reverse"):
        assert clear_of_zero(drops["gae"] - drops[other]) > 0, other


def photographs():
    from PIL import Image

    with zipfile.ZipFile(DATA / "imagenette160" / "val.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".webp"))
        for name in names[:: len(names) // PHOTOS][:PHOTOS]:
            with Image.open(BytesIO(archive.read(name))) as picture:
                yield picture.convert("RGB")


def without_patches(images, scores, grid):
    """The images with the best-scored fifth of their patches at the mean grey."""
    count = int(SHARE * scores.shape[1])
    keep = torch.ones_like(scores).scatter_(1, scores.topk(count, dim=1).indices, 0.0)
    side = images.shape[2] // grid[0]
    mask = rearrange(keep, "b (y x) -> b 1 y x", y=grid[0]).repeat_interleave(side, 2).repeat_interleave(side, 3)
    return images * mask


def test_deleting_what_gae_points_at_in_photographs_hurts_most():
    photo = zoo.load("photo")
    pictures = list(photographs())
    drops = {name: [] for name in ("gae", "rollout", "random", "reverse")}
    for start in range(0, len(pictures), 24):
        images = torch.cat([photo.preprocess(p) for p in pictures[start : start + 24]])
        gae, rollout = vitrail.compare(photo.model, images, ["gae", "rollout"])
        orders = {
            "gae": gae.scores, "rollout": rollout.scores, "random": torch.rand_like(gae.scores), "reverse": -gae.scores,
        }  # fmt: skip
        with torch.no_grad():
            before, predicted = photo.model(images).logits.softmax(dim=1).max(dim=1)
            for name, scores in orders.items():
                after = photo.model(without_patches(images, scores, gae.grid)).logits.softmax(dim=1)
                drops[name].append(before - after.gather(1, predicted[:, None])[:, 0])
    check_drops({name: torch.cat(found) for name, found in drops.items()})


def test_deleting_the_words_gae_points_at_hurts_most():
    sentiment = zoo.load("sentiment")
    with (DATA / "text" / "sst2" / "dev.tsv").open() as file:
        sentences = [row["content"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    drops = {name: [] for name in ("gae", "rollout", "random", "reverse")}
    for sentence in sentences[:: len(sentences) // SENTENCES][:SENTENCES]:
        inputs = sentiment.preprocess([sentence])
        gae, rollout = vitrail.compare(sentiment.model, inputs, ["gae", "rollout"])
        words = gae.scores.shape[1] - 2  # [CLS] and [SEP] stay
        orders = {"gae": gae.scores, "rollout": rollout.scores, "random": torch.rand_like(gae.scores)}
        orders["reverse"] = -gae.scores
        with torch.no_grad():
            before, predicted = sentiment.model(**inputs).logits.softmax(dim=1).max(dim=1)
            gone = torch.cat([scores[:, 1:-1] for scores in orders.values()]).topk(max(1, round(SHARE * words))).indices
            keep = torch.ones(len(orders), words + 2, dtype=torch.bool).scatter_(1, gone + 1, value=False)
            fewer = {key: x.expand(len(orders), -1)[keep].unflatten(0, (len(orders), -1)) for key, x in inputs.items()}
            after = sentiment.model(**fewer).logits.softmax(dim=1)[:, predicted]
        for name, remaining in zip(orders, after, strict=True):
            drops[name].append(before - remaining)
    check_drops({name: torch.cat(found) for name, found in drops.items()})
