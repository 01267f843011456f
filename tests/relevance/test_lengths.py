"""Lengths and angles of token vectors: the kernels give what torch gives, on CUDA and in Triton's interpreter."""

import pytest
import torch
from torch.testing import assert_close

from vitrail.methods.tokentm import (
    Change,
    head_change,
    heads_by_kernel,
    row_lengths,
    rows_by_kernel,
    weighed,
    weighed_by_kernel,
)

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * CUDA
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def double(*tensors):
    return [x.double().cpu() for x in tensors]


def same(found, expected):
    for name in ("original", "length", "product"):
        assert_close(getattr(found, name).double().cpu(), getattr(expected, name), **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 24), (1, 3, 130)])
def test_lengths_of_rows(dtype, shape):
    x, y, z = torch.randn(3, *shape, dtype=dtype, device=DEVICE)
    alone, _ = row_lengths(*double(x))
    length, change = rows_by_kernel(x, (y, z))
    assert_close(length.double().cpu(), alone, **CLOSE)
    same(change, row_lengths(*double(x), tuple(double(y, z)))[1])
    assert_close(rows_by_kernel(x, None)[0].double().cpu(), alone, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "groups", "tokens", "width"), [(1, 1, 1, 1), (4, 2, 37, 20), (2, 2, 64, 64)])
def test_changes_by_heads_that_share_values(dtype, heads, groups, tokens, width):
    stored = torch.randn(2, tokens, groups, width, dtype=dtype, device=DEVICE)
    value, original = stored.transpose(1, 2), torch.rand(2, tokens, device=DEVICE)
    back = torch.randn(2, tokens, heads * width, device=DEVICE)
    weight = torch.randn(heads, 48, width, device=DEVICE)
    gram = weight.mT @ weight
    assert not value.is_contiguous() or 1 in value.shape
    expected = head_change(*double(original, value, back, gram))
    same(heads_by_kernel(original, value, back, gram), expected)
    each = value.double().repeat_interleave(heads // groups, dim=1)
    formed = torch.einsum("hmd,bhtd->bhtm", weight.double(), each)  # the vectors that are never formed
    assert_close(expected.length, formed.norm(dim=3).cpu(), **CLOSE)


@pytest.mark.parametrize("use", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("tokens", [1, 37])
def test_weights_leave_padding_out(use, tokens):
    numbers = torch.rand(2, 3, tokens, device=DEVICE), torch.randn(2, 3, tokens, device=DEVICE)
    change = Change(torch.rand(2, tokens, device=DEVICE), *numbers)
    valid = torch.ones(2, tokens, dtype=torch.bool, device=DEVICE)
    valid[1, tokens // 2 + 1 :] = False
    expected = weighed(Change(*double(change.original, *numbers)), valid.cpu(), use=use)
    assert_close(weighed_by_kernel(change, valid, use=use).double().cpu(), expected, rtol=1e-5, atol=1e-6)
