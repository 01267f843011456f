import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vitrail.evaluate.data.pictures import Shape, fill, paint, unroll

SQUARE = np.array([[1.0, 2.0], [4.0, 2.0], [4.0, 5.0], [1.0, 5.0]])


def inside_by_ray(polygon, x, y):
    """Even-odd rule for one point: how many edges cross the ray to the left."""
    crossed = 0
    for (x0, y0), (x1, y1) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        if (y0 <= y) != (y1 <= y) and x0 + (y - y0) * (x1 - x0) / (y1 - y0) <= x:
            crossed += 1
    return crossed % 2 == 1


def test_a_square_holds_exactly_its_pixels():
    expected = np.zeros((6, 7), dtype=bool)
    expected[2:5, 1:4] = True
    np.testing.assert_array_equal(fill(SQUARE, (6, 7)), expected)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-3, 12), st.floats(-3, 12)), min_size=3, max_size=9))
@example([(-0.4592016881006469, -0.4592016881006469), (2.0, 2.0), (0.0, 0.0)])  # edges through the centres of pixels
def test_filling_equals_the_even_odd_rule_point_by_point(corners):
    expected = [[inside_by_ray(corners, x + 0.5, y + 0.5) for x in range(9)] for y in range(6)]
    np.testing.assert_array_equal(fill(np.array(corners, dtype=np.float64), (6, 9)), expected)


def test_runs_go_down_the_columns():
    assert unroll((1, 2, 2, 1), (3, 2)).tolist() == [[False, False], [True, False], [True, True]]
    with pytest.raises(ValueError, match="reshape"):
        unroll((1, 2), (3, 2))


def test_the_smaller_of_two_objects_is_on_top_and_a_crowd_below_both():
    small, crowd = SQUARE[:, :] * 0.5 + 1, np.array([[0.0, 0.0], [7.0, 0.0], [7.0, 3.0], [0.0, 3.0]])
    shapes = [Shape(8, (small,)), Shape(9, (SQUARE,)), Shape(5, (crowd,), crowd=True)]
    mask = paint(shapes, (6, 7))
    assert mask[2, 2] == 8
    assert mask[4, 1] == 9
    assert mask[0, 0] == -1
    assert mask[5, 6] == 0
    assert paint(shapes[::-1], (6, 7)).tolist() == mask.tolist()
