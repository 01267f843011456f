"""Sentences with labels (SST-2) and without (a folder of reviews), as token ids in batches of like length."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertTokenizer

UNLABELLED = -1
SHORTEST = 4  # words; shorter lines of a review say nothing


@dataclass(frozen=True)
class Sentences:
    """Token ids of sentences of different lengths, and their labels; -1 where there is none."""

    ids: list[list[int]]
    labels: Tensor  # int64 [n]

    def __len__(self) -> int:
        return len(self.ids)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Word pieces and their numbers: the line each stands on."""
    return {line: number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines())}


def read_sst2(path: Path, *, limit: int | None = None) -> tuple[list[str], list[int]]:
    """Texts and labels of a tab-separated file with a header line."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:][:limit]
    return [text for _, text in rows], [int(label) for label, _ in rows]


def read_reviews(folder: Path, *, limit: int | None = None) -> list[str]:
    """The lines of all text files of a folder, one sentence a line, each once."""
    lines = (line.strip() for file in sorted(folder.glob("*.txt")) for line in file.read_text("utf-8").splitlines())
    return list(dict.fromkeys(line for line in lines if len(line.split()) >= SHORTEST))[:limit]


def tokenise(tokenizer: BertTokenizer, texts: list[str], labels: list[int], *, longest: int) -> Sentences:
    """Texts as token ids, cut to `longest` tokens (in training only: the shipped model refuses longer texts)."""
    ids = tokenizer(texts, truncation=True, max_length=longest)["input_ids"] if texts else []
    return Sentences(list(ids), torch.tensor(labels, dtype=torch.long))


def join(first: Sentences, second: Sentences) -> Sentences:
    """Two sets as one."""
    return Sentences([*first.ids, *second.ids], torch.cat([first.labels, second.labels]))


def shuffled_batches(sentences: Sentences, size: int, seed: int) -> list[list[int]]:
    """The sentences' numbers in random batches; each batch holds like lengths, so that little is padding."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sentences), generator=generator).tolist()
    pool = size * 50
    batches = []
    for start in range(0, len(order), pool):
        near = sorted(order[start : start + pool], key=lambda number: len(sentences.ids[number]))
        batches += [near[i : i + size] for i in range(0, len(near), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def ordered_batches(sentences: Sentences, size: int) -> Iterator[list[int]]:
    """The sentences' numbers in batches, shortest first."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences.ids[number]))
    return (order[i : i + size] for i in range(0, len(order), size))


def pad(sentences: Sentences, numbers: list[int], device: str) -> dict[str, Tensor]:
    """Token ids and attention mask of some sentences, padded to the longest of them."""
    longest = max(len(sentences.ids[n]) for n in numbers)
    ids = torch.tensor([sentences.ids[n] + [0] * (longest - len(sentences.ids[n])) for n in numbers])
    mask = torch.tensor([[1] * len(sentences.ids[n]) + [0] * (longest - len(sentences.ids[n])) for n in numbers])
    return {"input_ids": ids.to(device, non_blocking=True), "attention_mask": mask.to(device, non_blocking=True)}
