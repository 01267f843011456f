"""Fine-tune a model that returns its own loss: the schedule, the loop, the checkpoint and what is written."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training import run
from training.bert import descend
from training.encoded import Encoded, collate, random_order

Measure = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast is learned."""

    epochs: int
    batch: int
    lr: float
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class Job:
    """A model, what it learns from, and how it is measured after every epoch."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: Encoded
    measure: Measure
    schedule: Schedule


def add_options(parser: argparse.ArgumentParser, schedule: Schedule) -> None:
    """Add the options that every fine-tuning command takes."""
    parser.add_argument("--init", type=Path, required=True, help="folder with a Hugging Face encoder, such as MiniLM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=schedule.epochs)
    parser.add_argument("--batch", type=int, default=schedule.batch)
    parser.add_argument("--lr", type=float, default=schedule.lr)
    parser.add_argument("--seed", type=int, default=schedule.seed)
    parser.add_argument("--subset", type=int, help="read only so many examples of each file")
    parser.add_argument("--steps", type=int, help="make only so many steps in each epoch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", action="store_true", help="go on from the last finished epoch")


def schedule_of(args: argparse.Namespace) -> Schedule:
    """The schedule that the command line asks for."""
    return Schedule(epochs=args.epochs, batch=args.batch, lr=args.lr, seed=args.seed)


def fine_tune(job: Job, args: argparse.Namespace, log: run.Log) -> None:
    """Train, measure after every epoch; write checkpoint, `evaluation.json` and `model/`."""
    schedule, model = job.schedule, job.model.to(args.device)
    groups = run.decay_groups([model], schedule.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=schedule.lr, fused=args.device == "cuda")
    path, epoch, found = args.out / "checkpoint.pt", 0, {}
    if args.resume and path.exists():
        state = run.load_checkpoint(path, args.device)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        epoch = state["epoch"]
        log(f"resumed after epoch {epoch}")
    while epoch < schedule.epochs:
        loss = run_epoch(job, optimiser, epoch, args)
        epoch += 1
        run.save_checkpoint(path, model=model.state_dict(), optimiser=optimiser.state_dict(), epoch=epoch)
        found = job.measure(model)
        log(f"epoch {epoch}: loss {loss:.3f}; {in_words(found)}")
    finish(job, args.out, found or job.measure(model), log)


def run_epoch(job: Job, optimiser: torch.optim.Optimizer, epoch: int, args: argparse.Namespace) -> float:
    """The mean loss of one pass over the examples."""
    schedule, model = job.schedule, job.model.train()
    # Seeded anew in every epoch, so that a resumed run makes the same random choices as one that was never stopped.
    run.seed_everything(schedule.seed + epoch)
    batches = random_order(job.examples, schedule.batch, seed=schedule.seed + epoch)[: args.steps]
    steps, bar = len(batches) * schedule.epochs, run.progress(len(batches), label=f"epoch {epoch + 1}")
    total = torch.zeros((), device=args.device)
    for step, numbers in enumerate(batches, start=epoch * len(batches)):
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            loss = model(**collate(job.examples, numbers, args.device, learn=True)).loss
        share = run.warm_cosine(step, warmup=max(1, int(schedule.warmup * steps)), steps=steps)
        descend(model, optimiser, loss, schedule.lr * share, schedule.clip)
        total += loss.detach()
        bar.update()
    bar.close()
    return float(total / len(batches))


def finish(job: Job, out: Path, found: dict[str, float], log: run.Log) -> None:
    """Write the model with its tokenizer, and what it reached."""
    job.model.eval().save_pretrained(out / "model")
    job.tokenizer.save_pretrained(out / "model")
    (out / "evaluation.json").write_text(json.dumps(found, indent=2) + "\n")
    log(f"finished: {in_words(found)}")


def in_words(found: dict[str, float]) -> str:
    """Measured shares as one line."""
    return ", ".join(f"{name} {share:.4f}" for name, share in found.items())
