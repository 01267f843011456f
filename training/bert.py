"""A BERT that classifies sentences: its configuration, its data, its accuracy and one step of its training."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from training import run
from training.sentences import Sentences, ordered_batches, pad, read_reviews, read_sst2, read_vocabulary, tokenise

CLASSES = ("negative", "positive")


@dataclass(frozen=True)
class SentimentConfig:
    """Everything that decides the result but the data."""

    longest: int = 128
    teachers: int = 5
    teacher_epochs: int = 4
    teacher_batch: int = 64
    teacher_lr: float = 7e-5
    start: str = "soup"  # or "base": MiniLM itself
    epochs: int = 6
    batch: int = 128
    lr: float = 8e-5
    warmup: float = 0.06  # share of the steps
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.1
    temperature: float = 2.0
    label_weight: float = 0.3
    seed: int = 0


@dataclass(frozen=True)
class Texts:
    """The sentences of a run."""

    train: Sentences
    reviews: Sentences
    checked: dict[str, Sentences]  # "dev", "test"


def read_texts(config: SentimentConfig, args: argparse.Namespace) -> Texts:
    """SST-2 and the reviews, as token ids."""
    tokenizer = BertTokenizer(vocab=read_vocabulary(args.init / "vocab.txt"))
    read = {name: read_sst2(args.data / f"{name}.tsv", limit=args.subset) for name in ("train", "dev", "test")}
    sets = {name: tokenise(tokenizer, *both, longest=config.longest) for name, both in read.items()}
    lines = read_reviews(args.reviews, limit=args.subset) if args.reviews else []
    reviews = tokenise(tokenizer, lines, [-1] * len(lines), longest=config.longest)
    return Texts(sets.pop("train"), reviews, sets)


def build_model(init: Path, dropout: float) -> BertForSequenceClassification:
    """MiniLM with a fresh classifier."""
    config = BertConfig.from_json_file(init / "config.json")
    config.id2label = dict(enumerate(CLASSES))
    config.label2id = {name: number for number, name in enumerate(CLASSES)}
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    model = BertForSequenceClassification(config)
    weights = {n: w.float() for n, w in load_file(init / "model.safetensors").items() if w.is_floating_point()}
    missing, unknown = model.bert.load_state_dict(weights, strict=False)
    if missing or unknown:
        raise ValueError(f"{init} holds no BERT encoder: missing {missing}, unknown {unknown}")
    return model


@torch.no_grad()
def logits_of(model: nn.Module, sentences: Sentences, device: str) -> Tensor:
    """The model's logits for every sentence, in order, on the CPU."""
    was_training = model.training
    model.eval()
    logits = torch.zeros(len(sentences), len(CLASSES))
    for numbers in ordered_batches(sentences, 512):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits[numbers] = model(**pad(sentences, numbers, device)).logits.float().cpu()
    model.train(was_training)
    return logits


def accuracies(model: nn.Module, texts: Texts, device: str) -> str:
    """The accuracy on dev and test, as a line."""
    shares = {
        name: float((logits_of(model, part, device).argmax(dim=1) == part.labels).float().mean())
        for name, part in texts.checked.items()
    }
    return ", ".join(f"{name} {share:.4f}" for name, share in shares.items())


def make_optimiser(model: nn.Module, config: SentimentConfig, lr: float, device: str) -> torch.optim.Optimizer:
    """AdamW without decay of vectors."""
    return torch.optim.AdamW(run.decay_groups([model], config.weight_decay), lr=lr, fused=device == "cuda")


def descend(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor, lr: float, clip: float) -> None:
    """One step of the optimiser."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
