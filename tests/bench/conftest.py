"""Tiny models with random weights and tiny data sets in their true formats."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_bert, save_question_bert, save_vit
from transformers import ViTForImageClassification

from vitrail.evaluate import bench
from vitrail.evaluate.bench.store import reading

WORDS = ["the", "quick", "brown", "fox", "a", "dull", "film", "who", "sleeps", "man", "."]
BREEDS = 6


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with a ViT (32 x 32, patches of 8, four classes), two BERTs, pets and sentences."""
    folder = tmp_path_factory.mktemp("bench")
    torch.manual_seed(5)
    save_lively_vit(folder / "vit")
    save_bert(folder / "bert")
    save_question_bert(folder / "asker")
    save_pets(folder / "pets")
    save_sst2(folder / "sst2")
    return folder


def save_lively_vit(folder):
    """Random weights large enough that what is removed from a picture changes what is predicted."""
    save_vit(folder)
    model = ViTForImageClassification.from_pretrained(folder)
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "cls_token" not in name and "position" not in name:
            weight.data *= 20
    model.save_pretrained(folder)


def save_pets(folder, count=BREEDS):
    rng = np.random.default_rng(3)
    for part in ("images", "trimaps"):
        (folder / part).mkdir(parents=True)
    rows = []
    for number in range(count):
        pixels = rng.integers(256, size=(10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((48, 40)).save(folder / "images" / f"pug_{number}.jpg")
        trimap = np.full((40, 48), 2, dtype=np.uint8)
        trimap[5 : 20 + number, 10 : 30 + number] = 1
        trimap[0] = 3
        Image.fromarray(trimap).save(folder / "trimaps" / f"pug_{number}.png")
        rows.append([f"pug_{number}", number % 4, "pug"])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "imagenet_idx", "imagenet_name"], *rows])


def save_sst2(folder, count=8):
    folder.mkdir()
    rng = np.random.default_rng(4)
    lines = [" ".join(rng.choice(WORDS, size=9 + number % 4)) + f"\t{number % 2}" for number in range(count)]
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")


@pytest.fixture
def stored():
    """Key -> stored value of a metric, for the one run of a method; None where it was skipped."""

    def read(path, label, metric):
        with reading(path) as store:
            (run,) = (run for run, about in store.runs().items() if about["method"]["label"] == label)
            return {key: value for key, name, value, _ in store.results(run) if name == metric}

    return read


@pytest.fixture
def plan_of(place):
    """A plan for the ViT on the pets, with any fields changed."""

    def make(**changes):
        given = {
            "models": (bench.ModelSpec(str(place / "vit")),),
            "data": (bench.DataSpec("pets", str(place / "pets")),),
            "trials": (bench.Trial("gae"), bench.Trial("rollout")),
            "protocols": bench.protocols_of(("chefer",)),
            "batch": 4,
        }
        return bench.Plan(**{**given, **changes})

    return make


@pytest.fixture
def text_plan_of(place, plan_of):
    def make(**changes):
        given = {
            "models": (bench.ModelSpec(str(place / "bert")),),
            "data": (bench.DataSpec("sst2", str(place / "sst2")),),
            "trials": (bench.Trial("gae"), bench.Trial("attcat")),
            "protocols": bench.protocols_of(("attcat",)),
        }
        return plan_of(**{**given, **changes})

    return make
