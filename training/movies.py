"""Train the movies model: an encoder such as MiniLM-L6, fine-tuned on the reviews of ERASER Movie Reviews.

    python -m training.movies --data ERASER_DIR --init MINILM_DIR --out DIR

A review is cut after the model's longest input, 512 tokens for MiniLM. Choices were made on val; test is only reported.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from training import run
from training.backbone import load_backbone, load_tokenizer
from training.bert import CLASSES
from training.encoded import Encoded, collate, encode_texts, short_first
from training.eraser import read_eraser
from training.finetune import Job, Schedule, add_options, fine_tune, schedule_of

SCHEDULE = Schedule(epochs=6, batch=16, lr=5e-5)


@dataclass(frozen=True)
class MoviesConfig:
    """Everything that decides the result but the data and the encoder."""

    longest: int
    schedule: Schedule


@torch.no_grad()
def accuracy(model: nn.Module, reviews: Encoded, device: str) -> float:
    """The share of reviews whose class is found."""
    model.eval()
    right = 0
    for numbers in short_first(reviews, 32):
        logits = model(**collate(reviews, numbers, device, learn=False)).logits
        right += int((logits.argmax(dim=1).cpu() == reviews.targets["labels"][numbers]).sum())
    return right / len(reviews)


def train(args: argparse.Namespace) -> None:
    """Fine-tune as the command line says."""
    log, tokenizer = run.Log(args.out / "movies.log"), load_tokenizer(args.init)
    config = MoviesConfig(min(args.longest, tokenizer.model_max_length), schedule_of(args))
    run.save_config(config, args.out / "training.json")
    run.seed_everything(config.schedule.seed)
    names = dict(enumerate(CLASSES))
    numbers = {name: number for number, name in names.items()}
    model = load_backbone(AutoModelForSequenceClassification, args.init, id2label=names, label2id=numbers)
    read = {split: read_eraser(args.data, split, limit=args.subset) for split in ("train", "val", "test")}
    sets = {split: encode_texts(tokenizer, *both, longest=config.longest) for split, both in read.items()}
    log(f"{type(model).__name__}, {config}, torch {torch.__version__}")
    log(", ".join(f"{len(part)} {split}" for split, part in sets.items()))
    checked = {split: sets[split] for split in ("val", "test")}
    job = Job(
        model,
        tokenizer,
        sets["train"],
        lambda model: {split: accuracy(model, part, args.device) for split, part in checked.items()},
        config.schedule,
    )
    fine_tune(job, args, log)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train, val, test.jsonl and docs/")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a review that are read")
    add_options(parser, SCHEDULE)
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # its report of the head's fresh weights
    train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
