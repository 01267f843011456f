"""The 21-class measure: which class of a model stands for which of PASCAL VOC, and how the counts become numbers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_vit
from transformers import ViTForImageClassification

from vitrail import compare
from vitrail.evaluate import bench, data, metrics
from vitrail.evaluate.bench.measures import columns_of
from vitrail.evaluate.bench.pictures import IMAGENET, VOC, VOC_NUMBERS, voc_classes
from vitrail.evaluate.bench.table import MethodSample, _value
from vitrail.evaluate.data import resize_mask
from vitrail.models.loading import load

CAT, CHAIR, DOG, PERSON = (VOC.index(name) for name in ("cat", "chair", "dog", "person"))
NAMES = {0: "dog, hound", 1: "stapler", 2: "cat", 3: "chair"}


def test_every_class_of_voc_has_classes_of_imagenet_and_none_has_two():
    assert set(IMAGENET) == set(VOC[1:])
    listed = [part if isinstance(part, tuple) else (part, part) for parts in IMAGENET.values() for part in parts]
    assert sum(last - first + 1 for first, last in listed) == len(VOC_NUMBERS)
    assert [VOC[VOC_NUMBERS[number]] for number in (151, 268, 281, 404, 817)] == [
        "dog",
        "dog",
        "cat",
        "aeroplane",
        "car",
    ]
    assert 269 not in VOC_NUMBERS  # a wolf is no dog


def test_classes_are_found_by_number_or_by_name():
    assert voc_classes(None, 1000)[DOG] == tuple(range(151, 269))
    assert voc_classes(tuple(f"class {i}" for i in range(1000)), 1000) == {}
    assert voc_classes(("Airplane", "couch, sofa", "stone"), 3) == {1: (0,), VOC.index("sofa"): (1,)}
    photo = load("photo")
    assert voc_classes(photo.class_names, photo.classes) == {DOG: (1,)}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A ViT that knows dogs, cats and chairs, and pictures of them and of others."""
    folder = tmp_path_factory.mktemp("voc")
    torch.manual_seed(8)
    save_vit(folder / "vit")
    model = ViTForImageClassification.from_pretrained(folder / "vit", num_labels=4)
    model.config.id2label = NAMES
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "token" not in name and "position" not in name:
            weight.data *= 20
    model.save_pretrained(folder / "vit")
    masks = {"a": (DOG, CAT), "b": (CHAIR, CAT), "c": (PERSON, PERSON), "d": (0, 0), "e": (DOG, PERSON)}
    save_devkit(folder / "VOC2012", masks)
    return folder


def save_devkit(root, masks):
    rng = np.random.default_rng(1)
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / part).mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("\n".join(masks))
    for key, (left, right) in masks.items():
        Image.fromarray(rng.integers(256, size=(40, 48, 3), dtype=np.uint8)).save(root / "JPEGImages" / f"{key}.jpg")
        mask = np.zeros((40, 48), dtype=np.uint8)
        mask[5:30, 4:20], mask[10:38, 24:44], mask[:, 20] = left, right, 255
        Image.fromarray(mask).save(root / "SegmentationClass" / f"{key}.png")


@pytest.fixture(scope="module")
def results(scene, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "r.db"
    plan = bench.Plan(
        models=(bench.ModelSpec(str(scene / "vit")),),
        data=(bench.DataSpec("voc", str(scene)),),
        trials=(bench.Trial("gae"), bench.Trial("rollout")),
        protocols=bench.protocols_of(("gradtoken",)),
        batch=3,
    )
    bench.run(plan, path)
    return path


def test_the_table_holds_the_numbers_of_direct_calls(scene, results):
    loaded, pictures = load(str(scene / "vit")), data.load("voc", scene)
    model_class = {DOG: 0, CAT: 2, CHAIR: 3}
    maps, classes, masks = [], [], []
    for key in ("a", "b", "e"):
        example = pictures[pictures.keys.index(key)]
        mask, inputs = resize_mask(example.mask, (32, 32)), loaded.image(example.image, squash=True).inputs
        mask[mask == PERSON] = -1  # the model does not know people
        seen = [value for value in mask.unique().tolist() if value > 0]
        shown = [compare(loaded.model, inputs, ["gae"], model_class[value])[0] for value in seen]
        maps.append(torch.cat([attribution.scores.reshape(-1, 4, 4) for attribution in shown]))
        classes.append(seen)
        masks.append(mask)
    assert classes == [[CAT, DOG], [CAT, CHAIR], [DOG]]
    expected = metrics.voc(maps, classes, masks)
    (table,) = bench.tables(results)
    found = {c.name: e for c, e in zip(table.columns, dict(table.rows)["gae"], strict=True)}
    assert found["VOC mIoU"].value == pytest.approx(100 * expected.mean_iou, rel=1e-6)
    assert found["VOC pixel accuracy"].value == pytest.approx(100 * expected.pixel_accuracy, rel=1e-6)
    assert found["VOC mIoU"].count == 3
    assert {"mIoU", "positive AUC"} <= set(found)  # the rest of the protocol


def test_pictures_without_a_class_the_model_knows_are_counted(results, stored):
    assert stored(results, "gae", "voc")["c"] is None
    note = bench.tables(results)[0].notes[-1]
    assert "the mask shows only classes that the model does not know. (2 times)" in note
    assert "the mask shows none of PASCAL VOC's classes. (2 times)" in note


def test_among_the_classes_for_an_object_the_likeliest_is_explained():
    from vitrail.evaluate.bench.pictures import find_objects

    mask = torch.tensor([[0, DOG], [CAT, -1]])
    example = data.ImageExample("x", lambda: None, open_mask=lambda: mask)
    found = find_objects(example, (2, 2), torch.tensor([1.0, 5.0, 3.0, 4.0]), {DOG: (0, 2, 3), PERSON: (1,)})
    assert found.classes == {DOG: 3}
    assert found.mask.tolist() == [[0, DOG], [-1, -1]]


def test_a_bootstrap_of_counts_is_the_measure_of_the_resample():
    rng = np.random.default_rng(2)
    shown = [rng.random((2, 6, 5)) for _ in range(4)]
    masks = [rng.choice([0, DOG, CAT, -1], size=(6, 5)) for _ in range(4)]
    counts = [metrics.voc_counts(m, [CAT, DOG], mask) for m, mask in zip(shown, masks, strict=True)]
    rows = [
        {"classes": (there := np.flatnonzero(c.any(axis=(0, 2)))).tolist(), "counts": c[:, there].tolist()}
        for c in counts
    ]
    drawn = [0, 2, 2, 3]
    accuracy, iou = columns_of(bench.find_protocol("gradtoken"), ["voc"])
    sample = MethodSample(accuracy.features([(rows[i],) for i in drawn]), np.ones(4, dtype=bool))
    expected = metrics.aggregate_voc(counts[i] for i in drawn)
    assert _value(iou, sample, sample.present) == pytest.approx(100 * expected.mean_iou)
    assert _value(accuracy, sample, sample.present) == pytest.approx(100 * expected.pixel_accuracy)
    assert json.loads(json.dumps(rows[0])) == rows[0]


def test_coco_with_the_classes_of_voc_is_called_a_stand_in(scene, tmp_path, stored):
    for part in ("images/train", "labels/train"):
        (tmp_path / part).mkdir(parents=True)
    Image.new("RGB", (40, 30), "grey").save(tmp_path / "images/train/one.jpg")
    (tmp_path / "labels/train/one.txt").write_text("16 0.1 0.1 0.6 0.1 0.6 0.7 0.1 0.7\n")  # a dog
    plan = bench.Plan(
        models=(bench.ModelSpec(str(scene / "vit")),),
        data=(bench.DataSpec("coco", str(tmp_path), {"classes": "voc"}),),
        trials=(bench.Trial("gae"),),
        protocols=bench.protocols_of(("gradtoken",)),
    )
    bench.run(plan, tmp_path / "r.db")
    (table,) = bench.tables(tmp_path / "r.db")
    assert table.title == "vit on coco (stand-in for PASCAL VOC), protocol gradtoken"
    assert stored(tmp_path / "r.db", "gae", "voc")["one"]["classes"] == [0, DOG]
    other = bench.Plan(**{**vars(plan), "data": (bench.DataSpec("coco", str(tmp_path)),)})
    bench.run(other, tmp_path / "o.db")
    assert "VOC mIoU" not in {column.name for column in bench.tables(tmp_path / "o.db")[0].columns}
