"""Order, parts and keys, on a set whose examples are their own numbers."""

import pickle
from dataclasses import replace
from functools import partial

import pytest
from PIL import Image

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.bench.opened import example_hash, read_demo_pictures, read_picture_folder
from vitrail.evaluate.data import Dataset, TextExample
from vitrail.evaluate.data.examples import require_unique
from vitrail.evaluate.data.pictures import PictureFile
from vitrail.models.loading.images import open_image

BROKEN = 3


def key(number):
    return f"n{number}"


def read(number):
    if number == BROKEN:
        raise InputError(f"{key(number)}: broken")
    return TextExample(key(number), str(number))


@pytest.fixture
def numbers():
    return Dataset("numbers", "nowhere", range(11), key, read)


def test_a_part_keeps_the_keys_of_the_whole(numbers):
    assert numbers[::2].keys == [key(n) for n in (0, 2, 4, 6, 8, 10)]
    assert numbers[1::2].keys == [key(n) for n in (1, 3, 5, 7, 9)]
    assert numbers[1::2][2].key == key(5)
    assert numbers[-1].key == key(10)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, range(11)),
        ({"limit": 4}, range(4)),
        ({"limit": 40}, range(11)),
        ({"limit": 3, "offset": 2}, range(2, 5)),
        ({"limit": 2, "offset": 1, "every": 4}, (1, 5)),
    ],
)
def test_take_counts_after_choosing(numbers, options, kept):
    assert numbers.take(**options).keys == [key(n) for n in kept]


@pytest.mark.parametrize("options", [{"limit": 0}, {"offset": -1}, {"every": 0}, {"offset": 11}])
def test_parts_that_make_no_sense_are_refused(numbers, options):
    with pytest.raises(OptionError, match=str(next(iter(options.values())))):
        numbers.take(**options)


def test_spread_reaches_both_halves_of_a_sorted_set(numbers):
    assert numbers.spread(4).keys == [key(n) for n in (0, 2, 5, 8)]
    assert numbers.spread(4)[::2].keys == [key(n) for n in (0, 5)]
    assert len(numbers.spread(100)) == 11
    with pytest.raises(OptionError, match="at least 1"):
        numbers.spread(0)


def test_a_broken_example_does_not_end_the_iteration(numbers):
    examples, read, skipped = iter(numbers), [], []
    for expected in numbers.keys:
        try:
            read.append(next(examples).key)
        except InputError:
            skipped.append(expected)
    assert (len(read), skipped) == (10, [key(BROKEN)])


def test_a_data_set_travels_to_other_processes(numbers):
    assert pickle.loads(pickle.dumps(numbers))[5] == numbers[5]


def test_keys_are_unique():
    require_unique(["a", "b"], "list.txt")
    with pytest.raises(InputError, match=r"list.txt names b twice"):
        require_unique(["a", "b", "b"], "list.txt")


def test_a_rationale_marks_its_words():
    from vitrail.evaluate.data import Span

    example = TextExample("k", "a dull  and\nlong film", rationale=(Span(1, 2), Span(3, 5)))
    assert example.words == ("a", "dull", "and", "long", "film")
    assert example.rationale_mask.tolist() == [False, True, False, True, True]
    assert example.texts == (example.text,)
    assert partial(TextExample, "k", "a")(second="b").texts == ("a", "b")


def test_own_pictures_and_those_of_the_demo_can_be_sent_to_another_process(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "one.png")
    for made in (read_picture_folder(tmp_path), read_demo_pictures()):
        assert pickle.loads(pickle.dumps(made))[0].key == made[0].key


def test_what_is_said_of_a_damaged_picture_is_the_same_each_time(tmp_path):
    (tmp_path / "one.png").write_bytes(b"no picture")
    said = []
    for _ in range(2):
        with pytest.raises(InputError, match=r"cannot be read as an image: it is none of [^<]* damaged\.$") as caught:
            _ = read_picture_folder(tmp_path)[0].image
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_pictures_of_ones_own_folder_are_turned_as_explain_turns_them(tmp_path):
    """Published sets are not: their masks belong to the pixels as stored. A turned picture is another example."""
    picture = Image.effect_noise((12, 8), 90).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "plain.png")
    picture.save(tmp_path / "turned.png", exif=exif)
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    damaged, plain, turned = read_picture_folder(tmp_path)
    for example in (plain, turned):
        shown = open_image(tmp_path / example.key)
        assert example.image.size == shown.size
        assert example.image.tobytes() == shown.tobytes()
    assert (plain.image.size, turned.image.size) == ((12, 8), (8, 12))
    for example, differs in ((damaged, False), (plain, False), (turned, True)):
        stored = replace(example, open_image=PictureFile(example.key, tmp_path / example.key))
        assert (example_hash(stored) != example_hash(example)) == differs
