"""The answers of a span head, and how SQuAD scores them (Rajpurkar et al., arXiv:1606.05250)."""

import re
import string
from collections import Counter

import torch
from torch import Tensor, nn

from training.encoded import collate, short_first
from training.questions import Question, Windows

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def best_spans(starts: Tensor, ends: Tensor, inside: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """The scores, first and last tokens of the best spans of a batch [b t].

    Args:
        inside: which tokens are of the context.
        longest: tokens that an answer may have.
    """
    t = starts.shape[1]
    starts, ends = (x.float().masked_fill(~inside, float("-inf")) for x in (starts, ends))
    fits = torch.ones(t, t, dtype=torch.bool, device=starts.device).triu().tril(longest - 1)
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill(~fits, float("-inf"))
    best, where = scores.flatten(start_dim=1).max(dim=1)
    return best, where // t, where % t


@torch.no_grad()
def answer(model: nn.Module, questions: list[Question], windows: Windows, *, longest: int, device: str) -> list[str]:
    """The answer to each question: the best span of all its windows, as it stands in the context."""
    model.eval()
    found = [(float("-inf"), "")] * len(questions)
    for numbers in short_first(windows.encoded, 64):
        batch = collate(windows.encoded, numbers, device, learn=False)
        inside = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        for row, number in enumerate(numbers):
            inside[row, windows.context[number].start : windows.context[number].stop] = True
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(**batch)
        spans = best_spans(logits.start_logits, logits.end_logits, inside, longest)
        for number, score, first, last in zip(numbers, *(x.tolist() for x in spans), strict=True):
            offsets, question = windows.offsets[number], windows.question[number]
            text = questions[question].context[offsets[first][0] : offsets[last][1]]
            found[question] = max(found[question], (score, text))
    return [text for _, text in found]


def normalise(text: str) -> str:
    """Lower case without punctuation, articles and spare spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(said: str, true: str) -> float:
    """One if both are the same once normalised, else zero."""
    return float(normalise(said) == normalise(true))


def f1(said: str, true: str) -> float:
    """The harmonic mean of precision and recall of the words."""
    said_words, true_words = normalise(said).split(), normalise(true).split()
    shared = (Counter(said_words) & Counter(true_words)).total()
    if not said_words or not true_words:
        return float(said_words == true_words)
    return 2 * shared / (len(said_words) + len(true_words))


def score(said: list[str], questions: list[Question]) -> tuple[float, float]:
    """The mean exact match and F1, each question against the nearest of its answers."""
    pairs = list(zip(said, questions, strict=True))
    exacts = [max(exact(text, a.text) for a in question.answers) for text, question in pairs]
    words = [max(f1(text, a.text) for a in question.answers) for text, question in pairs]
    return sum(exacts) / len(pairs), sum(words) / len(pairs)
