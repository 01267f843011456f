"""Scores of tokens and sources against those that people marked, and against what the model does without them.

ERASER's token scores: DeYoung et al., ACL 2020, arXiv:1911.03429. Masks are `[n, t]`, one row for each document. Macro
scores are means over the documents that have a rationale, a prediction or both; micro scores pool the tokens. Gold
tokens the model never saw stay in the truth, so they cost recall. Scores of words follow the evaluation of Chefer et
al. (arXiv:2012.09838).
Precision@K for question answering: AttCAT (Qiang et al., NeurIPS 2022), a count over all tokens, with question and
special tokens; its mean is at most the mean length of the answers.
Scores of sources (documents, sentences, tokens): LDS of Park et al., "TRAK", ICML 2023, arXiv:2303.14186, as
ContextCite uses it (Cohen-Wang et al., NeurIPS 2024, arXiv:2409.00729), and top-k drop from the latter.

`text_curve` removes tokens in the order of their scores. Modes say how many are removed at each level:
`paper`: 0, 10, ..., 100 % of the ordinary tokens (Qiang et al., "AttCAT", NeurIPS 2022).
`attcat`: as its released code does, nine levels of the whole length; special tokens count in the length but are not
removed, and the lowest-ranked token is never removed.
`eraser`: 1, 5, 10, 20 and 50 % of the ordinary tokens, rounded up.
"""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError, VitrailError
from vitrail.evaluate.metrics.arrays import (
    Numbers,
    average_precision,
    brief,
    check_axes,
    check_no_nan,
    check_number,
    check_same,
    f1_of,
    flags_of,
    look_up,
    numbers_of,
    to_array,
)
from vitrail.evaluate.metrics.perturbation import read_logits

Mask = Bool[np.ndarray, "n t"]


@dataclass(frozen=True)
class TokenF1:
    """Precision, recall and F1, averaged over documents (macro, the published one) and over tokens (micro)."""

    macro_precision: float
    macro_recall: float
    macro_f1: float
    micro_precision: float
    micro_recall: float
    micro_f1: float


@dataclass(frozen=True)
class TokenRanking:
    """Threshold-free scores, means over the documents that have a rationale."""

    auprc: float
    average_precision: float
    roc_auc: float


def token_f1(truth: Numbers, predicted: Numbers) -> TokenF1:
    """Token F1 of predicted rationales `[n, t]`."""
    gold, chosen = flags_of(truth, "truth", "n t"), flags_of(predicted, "predicted", "n t")
    check_same(gold.shape, chosen.shape, "the shapes of truth and prediction")
    sizes = np.stack([(gold & chosen).sum(axis=1), chosen.sum(axis=1), gold.sum(axis=1)])
    present = sizes[:, (sizes[1] + sizes[2]) > 0]
    if not present.shape[1]:
        raise InputError(f"none of the {len(gold)} documents has a rationale or a prediction.")
    macro = [float(values.mean()) for values in _scores(*present)]
    micro = [float(values.mean()) for values in _scores(*present.sum(axis=1, keepdims=True))]
    return TokenF1(*macro, *micro)


def token_f1_at_k(truth: Numbers, scores: Numbers, k: int) -> TokenF1:
    """Token F1 of the k highest-scored tokens of every document.

    Args:
        truth: gold tokens.
        scores: -inf for tokens that cannot be chosen, such as padding and what was cut off.
        k: how many tokens; all there are, if a document has fewer.
    """
    return token_f1(truth, top(numbers_of(scores, "scores", "n t"), k))


def token_ranking(truth: Numbers, scores: Numbers) -> TokenRanking:
    """Return how well the scores rank gold tokens, over the documents with a rationale.

    The area under the precision-recall curve by trapezoids, its step-wise form (average precision), and the area under
    the ROC curve.
    """
    gold, ranked = flags_of(truth, "truth", "n t"), numbers_of(scores, "scores", "n t")
    check_same(gold.shape, ranked.shape, "the shapes of truth and scores")
    some = gold.any(axis=1)
    if not some.any():
        raise InputError(f"none of the {len(gold)} documents has a rationale.")
    gold, ranked = gold[some], ranked[some]
    if gold.all(axis=1).any():
        raise InputError("a document whose tokens all are gold has no ROC curve: leave it out.")
    steps = average_precision(
        torch.from_numpy(ranked), torch.from_numpy(gold), torch.ones(gold.shape, dtype=torch.bool)
    )
    return TokenRanking(
        auprc=float(np.mean([_trapezoids(g, s) for g, s in zip(gold, ranked, strict=True)])),
        average_precision=float(steps.mean()),
        roc_auc=float(np.mean([_roc(g, s) for g, s in zip(gold, ranked, strict=True)])),
    )


def top(scores: Float[np.ndarray, "n t"], k: int) -> Mask:
    """True for the k highest scores of each row, earlier ones first where equal; never where the score is -inf."""
    check_number(k, "k", "tokens")
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    chosen = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(chosen, order, values=True, axis=1)
    return chosen & (scores > -np.inf)


def _scores(hits: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1, 0 where they are 0 / 0."""
    return hits / np.maximum(predicted, 1), hits / np.maximum(gold, 1), f1_of(hits, predicted, gold)


def _trapezoids(gold: Bool[np.ndarray, " t"], scores: Float[np.ndarray, " t"]) -> float:
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)
    found, seen = np.cumsum(gold[order])[last], (np.arange(len(gold)) + 1)[last]
    # The curve begins at recall 0 with precision 1, as in scikit-learn.
    recall, precision = np.append(0, found / found[-1]), np.append(1, found / seen)
    return float(scipy.integrate.trapezoid(precision, recall))


def _roc(gold: Bool[np.ndarray, " t"], scores: Float[np.ndarray, " t"]) -> float:
    """The share of pairs (gold, other) in the right order: Mann and Whitney's statistic."""
    count = gold.sum()
    pairs = scipy.stats.rankdata(scores)[gold].sum() - count * (count + 1) / 2
    return float(pairs / (count * (len(gold) - count)))


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


def word_scores(scores: Numbers, offsets: Numbers, text: str) -> Float[np.ndarray, " w"]:
    """One score per whitespace word of the text: the highest score of its characters.

    Every character carries the score of the piece it lies in. Words without a piece, such as those cut off, get -inf:
    they are never chosen by `token_f1_at_k`. The papers clamp scores at 0 first.

    Args:
        scores: one per piece.
        offsets: `[t, 2]`, where each piece begins and ends in the text; special tokens are empty.
        text: the words joined by whitespace.
    """
    pieces, places = numbers_of(scores, "scores", "t"), to_array(offsets).astype(np.int64)
    check_same((len(pieces), 2), places.shape, "the shape of offsets [t, 2], with t from the scores, and the one given")
    if places.min() < 0 or places.max() > len(text):
        raise InputError(f"offsets run from {places.min()} to {places.max()}, but the text has {len(text)} characters.")
    characters = np.full(len(text), -np.inf)
    for score, (start, end) in zip(pieces, places, strict=True):
        characters[start:end] = score
    spans = [word.span() for word in re.finditer(r"\S+", text)]
    if not spans:
        raise InputError("the text has no words.")
    return np.array([characters[start:end].max() for start, end in spans])


DECIMALS = 12
"""Sums of scores are rounded to so many decimals, so that equal sums are ties in any order of summation."""


def lds(scores: Numbers, kept: Numbers, log_probability: Numbers) -> Float[np.ndarray, " n"]:
    """Linear datamodeling score: Spearman's correlation over ablations of the summed scores with the log-probability.

    NaN where all sums or all log-probabilities of an example are equal.

    Args:
        scores: `[n, s]`, one for each source.
        kept: `[n, m, s]`, which sources each ablation keeps.
        log_probability: `[n, m]`, of the answer under each ablation.
    """
    given, flags = numbers_of(scores, "scores", "n s"), flags_of(kept, "kept", "n m s")
    observed = to_array(log_probability).astype(np.float64)
    check_same((len(given), given.shape[1]), (len(flags), flags.shape[2]), "the shapes [n, s] of scores and of kept")
    check_same(flags.shape[:2], observed.shape, "the shapes [n, m] of kept and of the log-probabilities")
    sums = np.round(np.einsum("ns,nms->nm", given, flags.astype(np.float64)), DECIMALS)
    pairs = zip(sums, observed, strict=True)
    return np.array([_spearman(a, b) for a, b in pairs])


def _spearman(a: Float[np.ndarray, " m"], b: Float[np.ndarray, " m"]) -> float:
    if (a == a[0]).all() or (b == b[0]).all():
        return math.nan
    return float(scipy.stats.spearmanr(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def topk_drop(score: Callable[[Any], Numbers], scores: Numbers, k: int) -> Float[np.ndarray, " n"]:
    """`f(all) - f(without the k highest-scored sources)`; high is good.

    Args:
        score: `[n, s]` of ones and zeros, 1 for each source that is kept -> `[n]`, such as a log-probability. It is
            given what `scores` is, a tensor or an array.
        scores: `[n, s]`, one for each source.
        k: how many sources are removed.
    """
    given = numbers_of(scores, "scores", "n s")
    if not 1 <= k <= given.shape[1]:
        raise InputError(f"k={k}, but there are {given.shape[1]} sources: k is from 1 to that number.")
    kept = (~top(given, k)).astype(np.float64)

    def run(flags: Float[np.ndarray, "n s"]) -> Float[np.ndarray, " n"]:
        shown = torch.from_numpy(flags).to(scores.device) if isinstance(scores, Tensor) else flags
        return numbers_of(score(shown), "what score returned", "n")

    return run(np.ones_like(kept)) - run(kept)


def recall_at(scores: Numbers, gold: Numbers, percent: int | float) -> Float[np.ndarray, " n"]:
    """The share of gold tokens among the `max(1, ceil(percent / 100 t))` highest-scored of t tokens.

    Args:
        scores: `[n, t]`; -inf for tokens that cannot be chosen, such as padding, which do not count in t.
        gold: `[n, t]`, True for the marked tokens; each example needs one.
        percent: how many of the tokens are chosen, above 0 to 100.
    """
    given, marked = numbers_of(scores, "scores", "n t"), flags_of(gold, "gold", "n t")
    check_same(given.shape, marked.shape, "the shapes of scores and gold")
    if not 0 < percent <= 100:
        raise InputError(f"percent={percent}, but it is a part of the tokens above 0, at most 100.")
    if not marked.any(axis=1).all():
        raise InputError(f"example {int((~marked.any(axis=1)).argmax())} has no gold token, so it has no recall.")
    real = (given > -np.inf).sum(axis=1)
    counts = [max(1, math.ceil(percent / 100 * int(count))) for count in real]
    chosen = np.concatenate([top(row[None], count) for row, count in zip(given, counts, strict=True)])
    return (chosen & marked).sum(axis=1) / marked.sum(axis=1)


Ids = Int[np.ndarray, " t"]
Left = Int[np.ndarray, " _"]  # what is left of them
Flags = Bool[np.ndarray, " t"]
Plan = tuple[Int[np.ndarray, " c"], list[int]]  # the tokens that may go, first to go first; how many at each level


def _paper(ranking: Ids, ordinary: Flags) -> Plan:
    candidates = ranking[ordinary[ranking]]
    return candidates, [round(len(candidates) * tenth / 10) for tenth in range(11)]


def _attcat(ranking: Ids, ordinary: Flags) -> Plan:
    if len(ranking) < 10:
        raise InputError(
            f"mode 'attcat' skips texts of fewer than 10 tokens, and this one has {len(ranking)}: leave it out."
        )
    looked_at = ranking[:-1]
    levels = np.unique(np.round(np.linspace(0, 1, 10) * len(ranking)).astype(int))[1:]
    return looked_at[ordinary[looked_at]], levels.tolist()


def _eraser(ranking: Ids, ordinary: Flags) -> Plan:
    candidates = ranking[ordinary[ranking]]
    return candidates, [math.ceil(len(candidates) * percent / 100) for percent in (1, 5, 10, 20, 50)]


MODES: dict[str, Callable[[Ids, Flags], Plan]] = {"paper": _paper, "attcat": _attcat, "eraser": _eraser}
HOWS: dict[str, Callable[[Ids, Flags, Flags, int], Left]] = {
    "delete": lambda ids, chosen, ordinary, pad: ids[~chosen],
    "cut": lambda ids, chosen, ordinary, pad: ids[~chosen] if (~chosen).any() else np.array([pad]),
    "pad": lambda ids, chosen, ordinary, pad: np.where(chosen, pad, ids),
    "keep": lambda ids, chosen, ordinary, pad: ids[chosen | ~ordinary],
}


OTHER_ROLES = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def kept_ids(tokenizer: Any) -> set[int]:  # noqa: ANN401
    """Return the ids that are never removed from a text: special tokens, but not [UNK] and [MASK].

    [UNK] is a word that the tokenizer does not know. GPT-2 has one id for this, the beginning and the end: it is kept.
    """
    words = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
    marks = {getattr(tokenizer, role, None) for role in OTHER_ROLES}
    return set(tokenizer.all_special_ids) - (words - marks)


def blank_id(tokenizer: Any) -> int:  # noqa: ANN401
    """Return the id that stands where tokens were: [PAD], or what a tokenizer without it has."""
    known = (tokenizer.pad_token_id, getattr(tokenizer, "eos_token_id", None), tokenizer.unk_token_id, 0)
    return next(blank for blank in known if blank is not None)


def perturbed_ids(
    ids: Numbers,
    scores: Numbers,
    *,
    special: Collection[int] = (),
    how: str = "delete",
    mode: str = "paper",
    pad: int = 0,
) -> list[Left]:
    """The id sequences of one text after its highest-scored tokens are taken, one for each level of the mode.

    Args:
        ids: `[t]`, without padding.
        scores: `[t]`.
        special: ids that are never taken, such as [CLS] and [SEP]; none, as AttCAT's code does for pairs of sentences.
        how: `"delete"` and close up, or `"cut"`, which leaves one [PAD] of a text without a token; replace by
            `"pad"`, or `"keep"` only the highest-scored and the special ones.
        mode: how many tokens go at which level: `paper`, `attcat` or `eraser`.
        pad: the id of [PAD].
    """
    plan, change = look_up(MODES, mode, "mode"), look_up(HOWS, how, "way of removing tokens")
    tokens, ranked = to_array(ids).astype(np.int64), numbers_of(scores, "scores", "t")
    check_axes(tokens.shape, "ids", "t")
    check_same(tokens.shape, ranked.shape, "the numbers of ids and of scores")
    ordinary = ~np.isin(tokens, list(special))
    if not ordinary.any():
        raise InputError(f"all {len(tokens)} tokens are special: there is nothing to remove.")
    candidates, levels = plan(np.argsort(-ranked, kind="stable"), ordinary)
    places = np.arange(len(tokens))
    return [change(tokens, np.isin(places, candidates[:level]), ordinary, pad) for level in levels]


TextScore = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TextCurve:
    """The label's probability for each text as it is, and at each level: `aopc(curve.p, curve.p_k)`."""

    p: Float[np.ndarray, " n"]
    p_k: Float[np.ndarray, "n l"]


@torch.no_grad()
def text_curve(  # noqa: PLR0913  (one option for each convention the papers differ in)
    score: TextScore,
    ids: Sequence[Numbers],
    scores: Sequence[Numbers],
    labels: Numbers,
    *,
    special: Collection[int] = (),
    how: str = "delete",
    mode: str = "paper",
    pad: int = 0,
    batch: int = 64,
) -> TextCurve:
    """Take the highest-scored tokens out of every text, level by level, and look at the label's probability.

    AttCAT's AOPC deletes and its LOdds replaces by [PAD], which then is not masked.

    Args:
        score: ids and attention mask `[n, t]` -> logits `[n, classes]`; it moves them as its model needs.
        ids: one sequence per text, without padding.
        scores: one score per id.
        labels: `[n]`; AttCAT's paper takes the predicted class, its code the label of the data set.
        special: ids that are never taken.
        how: `delete`, `cut`, `pad` or `keep`, as in `perturbed_ids`.
        mode: `paper`, `attcat` or `eraser`.
        pad: the id of [PAD], for `pad` and `cut`.
        batch: sequences of one length that go through `score` at once.
    """
    classes = to_array(labels).astype(np.int64)
    check_same([len(ids)] * 2, [len(scores), len(classes)], "the number of texts, and those of scores and labels")
    if not len(ids):
        raise InputError("there are no texts to perturb.")
    versions = [
        [to_array(one).astype(np.int64), *perturbed_ids(one, ranked, special=special, how=how, mode=mode, pad=pad)]
        for one, ranked in zip(ids, scores, strict=True)
    ]
    empty = [index for index, texts in enumerate(versions) if not all(map(len, texts))]
    if empty:
        raise InputError(
            f"nothing is left of text {brief(empty)} at some level: name the special ids to keep (special=)."
        )
    sequences = [sequence for texts in versions for sequence in texts]
    log_probs = _run(score, sequences, np.repeat(classes, len(versions[0])), batch=batch)
    table = np.exp(log_probs).reshape(len(versions), -1)
    return TextCurve(table[:, 0], table[:, 1:])


def _run(score: TextScore, sequences: Sequence[Left], labels: np.ndarray, *, batch: int) -> Float[np.ndarray, " m"]:
    """Return the log-probability of each sequence's label, those of one length together.

    Nothing is padded: many classifiers find the row that they read by the ids alone.
    """
    check_number(batch, "batch", "texts")
    log_probs, bounds = np.zeros(len(sequences)), (int(labels.min()), int(labels.max()))
    lengths = np.array([len(sequence) for sequence in sequences])
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        for some in np.split(same, range(batch, len(same), batch)):
            logits = _logits(score, torch.from_numpy(np.stack([sequences[index] for index in some])))
            _, likely = read_logits(logits, torch.from_numpy(labels[some]), bounds)
            log_probs[some] = to_array(likely)
    check_no_nan(log_probs, "the logits score returned")
    return log_probs


def _logits(score: TextScore, ids: Int[Tensor, "m t"]) -> Tensor:
    """Return the logits of texts that run together, or one by one where the model takes single texts only."""
    try:
        return score(ids, torch.ones_like(ids))
    except (VitrailError, torch.OutOfMemoryError):
        raise
    except Exception:
        if len(ids) == 1:
            raise
        return torch.cat([_logits(score, one) for one in ids.split(1)])
