"""What a visitor may hand in."""

from io import BytesIO

import numpy as np
import pytest
from bombs import bomb
from PIL import Image

from vitrail.apps.web.limits import KINDS, Limits, read_picture, read_text
from vitrail.errors import InputError

PIXELS = np.random.default_rng(0).integers(256, size=(9, 13, 3), dtype=np.uint8)


def file(form, **options):
    sink = BytesIO()
    Image.fromarray(PIXELS).save(sink, form, **options)
    return sink.getvalue()


@pytest.mark.parametrize("form", KINDS)
def test_a_picture_is_known_by_its_content(form):
    found = read_picture(file(form), Limits())
    assert (found.mode, found.size) == ("RGB", (13, 9))


def test_of_an_animation_the_first_frame_is_taken():
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue", "green")]
    sink = BytesIO()
    frames[0].save(sink, "GIF", save_all=True, append_images=frames[1:])
    assert read_picture(sink.getvalue(), Limits()).getpixel((1, 1)) == (255, 0, 0)


@pytest.mark.parametrize("size", [(7000, 7000), (60000, 60000), (1_000_000, 1)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(InputError, match=r"accepted|too large"):
        read_picture(bomb(*size), Limits(pixels=999_999))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no picture"),
        (b"<svg onload='alert(1)'></svg>", "no picture"),
        (b"%PDF-1.4", "no picture"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (b"\xff\xd8\xff\xe0 nothing more", "damaged"),
        (b"RIFF....WEBP", "damaged"),
        (file("PNG")[:-60], "damaged"),
        (file("JPEG")[:200], "damaged"),
    ],
)
def test_what_is_no_whole_picture_is_said_so(data, words):
    with pytest.raises(InputError, match=words):
        read_picture(data, Limits())


def test_other_formats_that_pillow_knows_are_not_decoded():
    for form in ("TIFF", "PPM", "ICO"):
        with pytest.raises(InputError, match="no picture"):
            read_picture(file(form), Limits())


def test_a_large_file_is_refused():
    with pytest.raises(InputError, match="at most 0 MB"):
        read_picture(file("PNG"), Limits(upload=100))


def test_a_picture_on_its_side_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_picture(file("JPEG", exif=exif.tobytes()), Limits()).size == (9, 13)


@pytest.mark.parametrize(
    ("text", "words"), [("  \n", "no text"), ("a" * 21, "21 characters"), ("a\ud800", "surrogate")]
)
def test_a_text_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_text(text, Limits(letters=20))
    assert read_text(" a film ", Limits(letters=20)) == "a film"
