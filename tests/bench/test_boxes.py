"""Boxes as the bench measures them: energy, overlap and the pointing game."""

import numpy as np
import pytest
from PIL import Image

from vitrail import compare
from vitrail.evaluate import bench, data, metrics
from vitrail.evaluate.bench.pictures import find_boxes
from vitrail.models.loading import load

WIDE, HIGH = 93, 71  # 32 / 93 * 93 is not 32 in floating point
BOXES = {"a.png": "0 0 93 71", "b.png": "10 5 40 30;50 40 93 71", "c.png": "-3 20 160 99", "d.png": ""}


@pytest.fixture
def photographs(tmp_path):
    rng = np.random.default_rng(7)
    (tmp_path / "images").mkdir()
    lines = ["file,class_idx,boxes_x0y0x1y1"]
    for number, (name, boxes) in enumerate(BOXES.items()):
        Image.fromarray(rng.integers(256, size=(HIGH, WIDE, 3), dtype=np.uint8)).save(tmp_path / "images" / name)
        lines.append(f"{name},{number},{boxes}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def test_the_three_numbers_are_those_of_direct_calls(place, photographs, plan_of, tmp_path, stored):
    plan = plan_of(
        data=(bench.DataSpec("imagenet", str(photographs)),), trials=(bench.Trial("gae"),), metrics=("boxes",)
    )
    bench.run(plan, tmp_path / "r.db")
    rows = stored(tmp_path / "r.db", "gae", "boxes")
    loaded = load(str(place / "vit"))
    across, down = 32 / WIDE, 32 / HIGH
    boxes = {
        "a": [[0, 0, 32, 32]],
        "b": [[10 * across, 5 * down, 40 * across, 30 * down], [50 * across, 40 * down, 32, 32]],
        "c": [[0, 20 * down, 32, 32]],
    }
    for key, listed in boxes.items():
        example = next(e for e in data.load("imagenet", photographs) if e.key == key)
        (gae,) = compare(loaded.model, loaded.image(example.image, squash=True).inputs, ["gae"])
        map_ = gae.scores.reshape(1, 4, 4)
        expected = {
            "energy": metrics.box_energy(map_, [listed], (32, 32))[0],
            "iou": metrics.box_iou(map_, [listed], (32, 32))[0],
            "hit": metrics.pointing_game(map_, metrics.box_masks([listed], (32, 32)).astype(int))[0],
        }
        assert rows[key] == pytest.approx(expected, rel=1e-4)
    assert rows["a"]["energy"] == pytest.approx(1)
    assert rows["a"]["hit"] == 1
    assert rows["d"] is None
    (table,) = bench.tables(tmp_path / "r.db")
    assert [column.name for column in table.columns] == ["box energy", "box IoU", "box pointing"]
    assert [estimate.count for estimate in table.rows[0][1]] == [3, 3, 3]
    assert "there are no boxes in this picture. (1 times)" in table.notes[-1]


def test_boxes_never_leave_the_picture():
    sizes = [(width, height) for width in range(3, 400, 7) for height in (5, 333)]
    for width, height in sizes:
        example = data.ImageExample(
            "x",
            lambda w=width, h=height: Image.new("L", (w, h)),
            boxes=(data.Box(0.0, 0.0, float(width), float(height)),),
        )
        (box,) = find_boxes(example, (224, 224))
        assert box == [0, 0, 224, 224]


def test_cropped_pictures_have_no_boxes(photographs, plan_of, tmp_path):
    plan = plan_of(
        data=(bench.DataSpec("imagenet", str(photographs)),),
        protocols=(bench.find_protocol("chefer").with_(view="crop"),),
        metrics=("boxes",),
    )
    assert bench.run(plan, tmp_path / "r.db").skipped == 4 * len(BOXES)  # both methods and both priors
    assert "squashed, not cropped" in bench.tables(tmp_path / "r.db")[0].notes[-1]
