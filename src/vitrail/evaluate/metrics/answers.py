"""Precision@K for question answering: how many tokens of the answer are among the highest scores.

AttCAT (Qiang et al., NeurIPS 2022): a count, not a share, over all tokens with question and special tokens; its mean
is at most the mean length of the answers.
"""

import numpy as np
from jaxtyping import Int

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_axes, check_same, numbers_of, to_array
from vitrail.evaluate.metrics.rationales import top


def precision_at_k(scores: Numbers, spans: Numbers, *, k: int = 20) -> Int[np.ndarray, " n"]:
    """The number of answer tokens among the k highest scores, for each example.

    Args:
        scores: `[n, t]`; -inf at padding.
        spans: `[n, 2]`, first and last token of the answer, both inside it.
        k: how many tokens are chosen.
    """
    ranked, answers = numbers_of(scores, "scores", "n t"), to_array(spans).astype(np.int64)
    check_axes(answers.shape, "spans", "n 2")
    check_same((len(ranked), 2), answers.shape, "the shape of spans [n, 2], with n from the scores, and the one given")
    for index, (start, end) in enumerate(answers):
        if not 0 <= start <= end < ranked.shape[1]:
            raise InputError(f"example {index}: the answer {start}..{end} is no part of {ranked.shape[1]} tokens.")
    places = np.arange(ranked.shape[1])
    answer = (places >= answers[:, :1]) & (places <= answers[:, 1:])
    return (top(ranked, k) & answer).sum(axis=1)
