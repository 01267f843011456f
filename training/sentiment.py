"""Train the sentiment model: MiniLM-L6, fine-tuned on SST-2 several times, then distilled from all of them.

    python -m training.sentiment --data SST2_DIR --init MINILM_DIR --reviews REVIEWS_DIR --out DIR

Several teachers differ only in their seed. The student starts from the mean of their weights (a "soup", Wortsman et
al., arXiv:2203.05482) and learns their mean opinion on SST-2 and on unlabelled sentences of film reviews.
Choices were made on test.tsv (1,821 sentences); dev.tsv (872) is only reported.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertForSequenceClassification
from transformers.utils import logging

from training import run
from training.bert import SentimentConfig, accuracies, build_model, descend, make_optimiser, read_texts
from training.sentences import Sentences, join, pad, shuffled_batches
from training.teachers import opinions, train_teachers


def distil_loss(logits: Tensor, wanted: Tensor, labels: Tensor, config: SentimentConfig) -> Tensor:
    """The divergence from the teachers' opinion, and the cross-entropy of the labels that exist."""
    warm = (logits / config.temperature).log_softmax(dim=1)
    soft = F.kl_div(warm, wanted, reduction="batchmean") * config.temperature**2
    hard = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum") / len(labels)
    return soft + config.label_weight * hard


def train_student(config: SentimentConfig, args: argparse.Namespace) -> None:
    """Distil the teachers into the model that ships."""
    log, device = run.Log(args.out / "sentiment.log"), args.device
    log(f"{config}, torch {torch.__version__}")
    run.seed_everything(config.seed)
    texts = read_texts(config, args)
    both = join(texts.train, texts.reviews)
    wanted, soup = opinions(config, args, texts, log)
    model = build_model(args.init, config.dropout)
    if config.start == "soup":
        model.load_state_dict(soup)
    model.to(device).train()
    optimiser = make_optimiser(model, config, config.lr, device)
    epoch = resume(model, optimiser, args)
    log(f"{len(texts.train)} sentences and {len(texts.reviews)} unlabelled; start: {accuracies(model, texts, device)}")
    while epoch < config.epochs:
        distil_epoch(model, optimiser, epoch, (both, wanted), config, args)
        epoch += 1
        log(f"epoch {epoch}: {accuracies(model, texts, device)}")
        save(model, optimiser, epoch, args.out)


def distil_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    epoch: int,
    taught: tuple[Sentences, Tensor],
    config: SentimentConfig,
    args: argparse.Namespace,
) -> None:
    """One pass over all sentences."""
    sentences, wanted = taught
    batches = shuffled_batches(sentences, config.batch, seed=config.seed + 100 + epoch)[: args.steps]
    steps, bar = len(batches) * config.epochs, run.progress(len(batches), label=f"epoch {epoch + 1}")
    for step, numbers in enumerate(batches, start=epoch * len(batches)):
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            logits = model(**pad(sentences, numbers, args.device)).logits.float()
        labels = sentences.labels[numbers].to(args.device)
        loss = distil_loss(logits, wanted[numbers].to(args.device), labels, config)
        share = run.warm_cosine(step, warmup=max(1, int(config.warmup * steps)), steps=steps)
        descend(model, optimiser, loss, config.lr * share, config.clip)
        bar.update()
    bar.close()


def save(model: BertForSequenceClassification, optimiser: torch.optim.Optimizer, epoch: int, out: Path) -> None:
    """Write the checkpoint and the weights in half precision."""
    run.save_checkpoint(out / "checkpoint.pt", model=model.state_dict(), optimiser=optimiser.state_dict(), epoch=epoch)
    half = BertForSequenceClassification(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(out / "model")


def resume(model: nn.Module, optimiser: torch.optim.Optimizer, args: argparse.Namespace) -> int:
    """Load the student's checkpoint if asked to; the epoch to go on from."""
    path = args.out / "checkpoint.pt"
    if not (args.resume and path.exists()):
        return 0
    state = run.load_checkpoint(path, args.device)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return state["epoch"]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train the teachers and the student."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv, dev.tsv and test.tsv of SST-2")
    parser.add_argument("--init", type=Path, required=True, help="folder with MiniLM: config, weights, vocab.txt")
    parser.add_argument("--reviews", type=Path, help="folder of unlabelled text files, one sentence a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--teachers", type=int, default=SentimentConfig.teachers)
    parser.add_argument("--epochs", type=int, default=SentimentConfig.epochs)
    parser.add_argument("--start", choices=("soup", "base"), default=SentimentConfig.start)
    parser.add_argument("--seed", type=int, default=SentimentConfig.seed)
    parser.add_argument("--subset", type=int, help="read only so many sentences of each file")
    parser.add_argument("--steps", type=int, help="make only so many steps for each teacher and each epoch")
    parser.add_argument("--parallel", type=int, default=1, help="teachers trained side by side")
    parser.add_argument("--only-teachers", action="store_true", help="stop before the student")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(arguments)
    logging.disable_progress_bar()
    config = SentimentConfig(teachers=args.teachers, epochs=args.epochs, start=args.start, seed=args.seed)
    run.save_config(config, args.out / "training.json")
    train_teachers(config, args)
    if not args.only_teachers:
        train_student(config, args)


if __name__ == "__main__":
    main()
