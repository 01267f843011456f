"""Train the qa model: an encoder such as MiniLM-L6 with a span head, on question files in the format of SQuAD.

    python -m training.qa --train amazon.json reddit.json --test new_wiki.json xquad.json --init MINILM_DIR --out DIR

Each question is learned with the answer that most people gave. Choices were made on the first test file.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForQuestionAnswering
from transformers.utils import logging

from training import run
from training.answers import answer, score
from training.backbone import load_backbone, load_tokenizer
from training.finetune import Job, Measure, Schedule, add_options, fine_tune, schedule_of
from training.questions import Question, Windows, make_windows, read_squad

SCHEDULE = Schedule(epochs=3, batch=64, lr=2e-4)


@dataclass(frozen=True)
class QaConfig:
    """Everything that decides the result but the data and the encoder."""

    longest: int
    stride: int
    longest_answer: int
    schedule: Schedule


def measure_on(tests: dict[str, tuple[list[Question], Windows]], config: QaConfig, device: str) -> Measure:
    """A function that gives a model's exact match and F1 on every test."""

    def measure(model: nn.Module) -> dict[str, float]:
        found = {}
        for name, (questions, windows) in tests.items():
            said = answer(model, questions, windows, longest=config.longest_answer, device=device)
            found[f"{name} EM"], found[f"{name} F1"] = score(said, questions)
        return found

    return measure


def train(args: argparse.Namespace) -> None:
    """Fine-tune as the command line says."""
    log, tokenizer = run.Log(args.out / "qa.log"), load_tokenizer(args.init)
    longest = min(args.longest, tokenizer.model_max_length)
    config = QaConfig(longest, args.stride, args.longest_answer, schedule_of(args))
    run.save_config(config, args.out / "training.json")
    run.seed_everything(config.schedule.seed)
    model = load_backbone(AutoModelForQuestionAnswering, args.init)
    log(f"{type(model).__name__}, {config}, torch {torch.__version__}")
    learned = [question for path in args.train for question in read_squad(path, limit=args.subset)]
    read = {"train": learned, **{path.stem: read_squad(path, limit=args.subset) for path in args.test}}
    sets = {name: (qs, make_windows(tokenizer, qs, longest=longest, stride=args.stride)) for name, qs in read.items()}
    for name, (questions, windows) in sets.items():
        log(f"{name}: {len(questions)} questions in {len(windows.encoded)} windows")
    _, windows = sets.pop("train")
    job = Job(model, tokenizer, windows.encoded, measure_on(sets, config, args.device), config.schedule)
    fine_tune(job, args, log)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="files in the format of SQuAD")
    parser.add_argument("--test", type=Path, nargs="+", required=True, help="files in the format of SQuAD")
    parser.add_argument("--longest", type=int, default=384, help="tokens of a question with a piece of its context")
    parser.add_argument("--stride", type=int, default=128, help="tokens that two pieces of a context share")
    parser.add_argument("--longest-answer", type=int, default=30, help="tokens that an answer may have")
    add_options(parser, SCHEDULE)
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # its report of the head's fresh weights
    train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
