import pytest

from vitrail.errors import InputError
from vitrail.evaluate.data import load

VALUES = [[0, 0, 255], [15, 15, 255]]


@pytest.fixture
def devkit(tmp_path, save_picture, save_values):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000033\n2007_000042\n")
    for key in ("2007_000033", "2007_000042"):
        save_picture(root / "JPEGImages" / f"{key}.jpg", size=(3, 2))
        save_values(root / "SegmentationClass" / f"{key}.png", VALUES)
    return tmp_path


@pytest.mark.parametrize("start", [".", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_masks_are_palette_entries_and_borders_are_ignored(devkit, start):
    dataset = load("voc", devkit / start)
    assert dataset.keys == ["2007_000033", "2007_000042"]
    assert dataset[0].mask.tolist() == [[0, 0, -1], [15, 15, -1]]
    assert dataset[0].mask_labels == (15,)
    assert dataset.mask_classes[15] == "person"
    assert len(dataset.mask_classes) == 21
    assert dataset[1].image.mode == "RGB"


def test_wrong_masks_raise_for_their_example(devkit, save_values, save_picture):
    masks = devkit / "VOCdevkit" / "VOC2012" / "SegmentationClass"
    save_values(masks / "2007_000033.png", [[0, 21, 0], [0, 0, 0]])
    first, second = load("voc", devkit)
    with pytest.raises(InputError, match=r"2007_000033: the mask holds \[21\]"):
        _ = first.mask
    assert second.mask is not None
    save_values(masks / "2007_000042.png", [[0, 0]])
    with pytest.raises(InputError, match=r"2007_000042: .*has size \(2, 1\)"):
        _ = second.mask
    save_picture(masks / "2007_000042.png", size=(3, 2))
    with pytest.raises(InputError, match="mode RGB, not one channel"):
        _ = second.mask


def test_missing_lists_folders_and_years_are_named(devkit, tmp_path):
    with pytest.raises(InputError, match=r"there is no list of images at .*test.txt"):
        load("voc", devkit, split="test")
    with pytest.raises(InputError, match=r"no list of images in .*VOC2007"):
        load("voc", devkit, year="2007")
    with pytest.raises(InputError, match="there is no VOC folder at"):
        load("voc", tmp_path / "nowhere")
    (devkit / "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt").write_text("../2007_000032\n")
    with pytest.raises(InputError, match="which lies outside of its folder"):
        load("voc", devkit)
    (devkit / "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt").write_text("\n")
    with pytest.raises(InputError, match="holds no examples of voc"):
        load("voc", devkit)
