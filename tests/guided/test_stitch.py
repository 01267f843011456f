import pytest
import torch
from torch.testing import assert_close

from vitrail import Attribution, targets
from vitrail.errors import InputError, OptionError
from vitrail.evaluate.stitch import LAYOUTS, SIZES, crop, plan_canvas, stitch

PLACES = [(layout, side) for layout, sides in LAYOUTS.items() for side in sides]


def canvas_of(layout, side, size, grid=(4, 7), patch=3):
    return plan_canvas(layout, side, size, ((grid[0] * patch, grid[1] * patch), grid))


def attribution(scores, grid, **more):
    return Attribution(
        scores=scores, method="gae", target=targets.logit(0), kind="image", grid=grid, size=(9, 9), **more
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("layout", "side"), PLACES)
def test_no_patch_shows_both_pictures_and_the_crop_holds_the_original_alone(layout, side, size):
    canvas, patch = canvas_of(layout, side, size), 3
    ones = torch.ones(2, 3, 12, 21, dtype=torch.float64)
    whole = stitch(ones, [0 * ones], canvas)
    patches = whole[:, 0].unfold(1, patch, patch).unfold(2, patch, patch).flatten(3)
    assert_close(patches.min(dim=3).values, patches.max(dim=3).values)
    scores = patches[..., 0].flatten(1)
    part = crop(attribution(scores, canvas.grid), canvas, (12, 21))
    assert_close(part.scores, torch.ones_like(part.scores))
    assert part.scores.sum() == scores.sum()
    assert part.grid[0] * part.grid[1] == part.scores.shape[1]
    assert part.size == (12, 21)


@pytest.mark.parametrize(("layout", "side"), PLACES)
def test_the_crop_keeps_rows_and_columns_in_their_places(layout, side):
    canvas = canvas_of(layout, side, "native")
    scores = torch.arange(canvas.grid[0] * canvas.grid[1], dtype=torch.float64)[None]
    part = crop(attribution(scores, canvas.grid, layers=torch.stack([scores, -scores], 1)), canvas, (9, 9))
    top, left = (4 if "bottom" in side else 0), (7 if "right" in side else 0)
    expected = [(top + y) * canvas.grid[1] + left + x for y in range(4) for x in range(7)]
    assert part.scores[0].tolist() == expected
    assert part.layers[0, 1].tolist() == [-x for x in expected]


def test_of_an_odd_number_of_patches_the_original_gets_one_more():
    for side, own in (("left", slice(0, 4)), ("right", slice(3, 7))):
        assert canvas_of("beside", side, "resize").own == (slice(0, 4), own)


def test_at_native_size_no_pixel_of_the_original_changes():
    images = torch.randn(2, 3, 12, 21, dtype=torch.float64)
    canvas = canvas_of("stacked", "bottom", "native")
    whole = stitch(images, [torch.randn(1, 3, 50, 40, dtype=torch.float64)], canvas)
    assert torch.equal(whole[:, :, 12:], images)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pictures_of_any_precision_are_fitted(dtype):
    whole = stitch(
        torch.ones(1, 3, 12, 21, dtype=dtype), [torch.ones(1, 3, 5, 5)], canvas_of("beside", "left", "resize")
    )
    assert whole.dtype == dtype
    assert_close(whole, torch.ones_like(whole))


def test_guides_fill_the_free_cells_in_order_and_again_from_the_first():
    canvas = canvas_of("mosaic", "top_right", "native")
    guides = [torch.full((1, 3, 12, 21), value) for value in (2.0, 3.0)]
    whole = stitch(torch.ones(1, 3, 12, 21), guides, canvas)[0, 0]
    assert [whole[0, 0], whole[0, -1], whole[-1, 0], whole[-1, -1]] == [2, 1, 3, 2]


def test_maps_of_pixels_are_cut_at_the_same_edge():
    canvas = canvas_of("beside", "right", "resize")
    pixels = torch.arange(12 * 21, dtype=torch.float64).reshape(1, 12, 21)
    part = crop(attribution(torch.zeros(1, 28), canvas.grid, pixels=pixels), canvas, (12, 21))
    assert torch.equal(part.pixels, pixels[:, :, 9:])
    assert part.heatmap().shape == (1, 12, 21)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": "besides"}, "Did you mean beside"),
        ({"side": "top"}, "no side 'top' for the original. Known: left, right"),
        ({"size": "big"}, "Known: native, resize"),
        ({"grid": (4, 1)}, "no room for 2 pictures"),
    ],
)
def test_a_geometry_that_does_not_exist_is_refused(changes, words):
    with pytest.raises(OptionError, match=words):
        canvas_of(**{"layout": "beside", "side": None, "size": "resize", **changes})


def test_guides_for_another_batch_are_refused():
    with pytest.raises(InputError, match="2 guides were given for 3 images"):
        stitch(torch.ones(3, 3, 12, 21), [torch.ones(2, 3, 12, 21)], canvas_of("beside", "left", "resize"))
