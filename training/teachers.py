"""The teachers of the sentiment model: several fine-tuned copies of MiniLM, and what they think together."""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import logging

from training import run
from training.bert import (
    SentimentConfig,
    Texts,
    accuracies,
    build_model,
    descend,
    logits_of,
    make_optimiser,
    read_texts,
)
from training.sentences import join, pad, shuffled_batches


def train_teacher(number: int, config: SentimentConfig, args: argparse.Namespace) -> None:
    """Fine-tune one teacher on SST-2; write its weights and its logits on everything."""
    logging.disable_progress_bar()
    run.seed_everything(1 + number)
    log, device = run.Log(args.out / f"teacher{number}.log"), args.device
    texts = read_texts(config, args)
    model = build_model(args.init, config.dropout).to(device).train()
    optimiser = make_optimiser(model, config, config.teacher_lr, device)
    batches = [
        batch
        for epoch in range(config.teacher_epochs)
        for batch in shuffled_batches(texts.train, config.teacher_batch, seed=1000 * number + epoch)
    ][: args.steps]
    bar = run.progress(len(batches), label=f"teacher {number}")
    for step, numbers in enumerate(batches):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(**pad(texts.train, numbers, device)).logits
        loss = F.cross_entropy(logits.float(), texts.train.labels[numbers].to(device))
        share = run.warm_cosine(step, warmup=max(1, int(config.warmup * len(batches))), steps=len(batches))
        descend(model, optimiser, loss, config.teacher_lr * share, config.clip)
        bar.update()
        if (step + 1) % max(1, len(batches) // config.teacher_epochs) == 0:
            log(f"teacher {number} step {step + 1}: loss {loss.item():.3f}; {accuracies(model, texts, device)}")
    bar.close()
    run.save_checkpoint(
        args.out / f"teacher{number}.pt",
        model={name: weight.cpu() for name, weight in model.state_dict().items()},
        logits=logits_of(model, join(texts.train, texts.reviews), device),
        **{f"{name}_logits": logits_of(model, part, device) for name, part in texts.checked.items()},
    )


def train_teachers(config: SentimentConfig, args: argparse.Namespace) -> None:
    """Train the teachers that are not there yet, some side by side."""
    missing = [n for n in range(config.teachers) if not (args.resume and (args.out / f"teacher{n}.pt").exists())]
    if args.parallel == 1:
        for number in missing:
            train_teacher(number, config, args)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.parallel, mp_context=context) as pool:
        list(pool.map(train_teacher, missing, [config] * len(missing), [args] * len(missing)))


def opinions(config: SentimentConfig, args: argparse.Namespace, texts: Texts, log: run.Log) -> tuple[Tensor, dict]:
    """The mean of the teachers' softened probabilities on everything, and the mean of their weights."""
    states = [run.load_checkpoint(args.out / f"teacher{n}.pt", "cpu") for n in range(config.teachers)]
    for name, part in texts.checked.items():
        votes = [state[f"{name}_logits"].softmax(dim=1) for state in states]
        single = [float((vote.argmax(dim=1) == part.labels).float().mean()) for vote in votes]
        all_right = (torch.stack(votes).mean(dim=0).argmax(dim=1) == part.labels).float().mean()
        log(f"{name}: teachers {' '.join(f'{x:.4f}' for x in single)}, together {float(all_right):.4f}")
    probs = torch.stack([(s["logits"] / config.temperature).softmax(dim=1) for s in states]).mean(dim=0)
    soup = {name: torch.stack([s["model"][name].float() for s in states]).mean(dim=0) for name in states[0]["model"]}
    return probs, soup
