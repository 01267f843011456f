"""Train the photo model: a ViT of our own initialisation, taught by a ViT that saw ImageNet.

    python -m training.photo --data IMAGENETTE_DIR --teacher vit_tiny_patch16_224.safetensors --out DIR

What the student learns from its teacher is written in `training/distil.py`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTForImageClassification
from transformers.utils import logging

from training import run
from training.augment import jitter_colours, mix, random_crop
from training.distil import PhotoConfig, Student, build_model, losses, teach
from training.images import Photos, archive_stems, join, read_archive, read_folder
from training.vit import load_teacher
from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS


def views(photos: Photos, config: PhotoConfig, *, calm: bool) -> tuple[Tensor, Tensor]:
    """A random batch of augmented photographs, values from -1 to 1, with smoothed labels (zero where unlabelled)."""
    chosen = torch.randint(0, len(photos.labels), (config.batch,), device=photos.labels.device)
    images = random_crop(photos.pixels[chosen].float() / 255, smallest=config.smallest_crop)
    images = jitter_colours(images, strength=config.jitter)
    labels = photos.labels[chosen]
    wanted = F.one_hot(labels.clamp(min=0), len(IMAGENETTE_SYNSETS)).float()
    wanted = (wanted * (1 - config.smoothing) + config.smoothing / len(IMAGENETTE_SYNSETS)) * (labels >= 0).unsqueeze(1)
    images, wanted = mix(images, wanted, share=0.0 if calm else config.mixed)
    return images * 2 - 1, wanted


@torch.no_grad()
def accuracy(model: ViTForImageClassification, photos: Photos, *, batch: int = 500) -> float:
    """The share of photographs whose first class is right."""
    right = 0
    for pixels, labels in zip(photos.pixels.split(batch), photos.labels.split(batch), strict=True):
        guess = model(pixels.float() / 127.5 - 1).logits.argmax(dim=1)
        right += int((guess == labels).sum())
    return right / len(photos.labels)


@dataclass(frozen=True)
class Parts:
    """What a training run moves."""

    student: Student
    mean: ViTForImageClassification
    optimiser: torch.optim.Optimizer
    teacher: ViTForImageClassification


def make_parts(config: PhotoConfig, teacher: ViTForImageClassification, device: str) -> Parts:
    """Fresh student, running mean and optimiser."""
    student = Student(config, teacher.config.hidden_size).to(device)
    mean = build_model(config).to(device).eval().requires_grad_(requires_grad=False)
    mean.load_state_dict(student.model.state_dict())
    optimiser = torch.optim.AdamW(
        run.decay_groups([student], config.weight_decay),
        lr=config.peak_lr,
        betas=(0.9, 0.98),
        fused=device == "cuda",
    )
    return Parts(student, mean, optimiser, teacher)


def make_step(parts: Parts, config: PhotoConfig, device: str) -> Callable[[Photos, int], Tensor]:
    """The function that makes one step and returns the five losses; compiled where there is a GPU."""
    compiled = torch.compile if device == "cuda" else lambda f: f
    ask, answer, weigh = compiled(teach), compiled(parts.student), compiled(losses)
    weights = torch.tensor([config.label_weight, 1.0, 1.0, config.token_weight, config.token_weight], device=device)
    shown = list(parts.student.parameters())
    averaged = list(zip(parts.mean.parameters(), parts.student.model.parameters(), strict=True))

    def step(photos: Photos, number: int) -> Tensor:
        for group in parts.optimiser.param_groups:
            group["lr"] = config.peak_lr * run.warm_cosine(number, warmup=config.warmup, steps=config.steps)
        pixels, labels = views(photos, config, calm=number >= (1 - config.calm) * config.steps)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            with torch.no_grad():
                taught = ask(parts.teacher, pixels, 16 * config.grid)
            said = answer(pixels)
        each = weigh(said, taught, labels, parts.teacher)
        (each * weights).sum().backward()
        nn.utils.clip_grad_norm_(shown, config.clip)
        parts.optimiser.step()
        parts.optimiser.zero_grad(set_to_none=True)
        decay = min(config.average, (1 + number) / (10 + number))
        torch._foreach_lerp_([m for m, _ in averaged], [w.detach() for _, w in averaged], 1 - decay)
        return each.detach()

    return step


def train(config: PhotoConfig, photos: Photos, checked: Photos, args: argparse.Namespace) -> None:
    """Run the steps, write checkpoints and the running mean as a Hugging Face folder."""
    log, out, device = run.Log(args.out / "photo.log"), args.out, args.device
    run.seed_everything(config.seed)
    parts = make_parts(config, load_teacher(args.teacher, grid=config.grid).to(device), device)
    first = resume(parts, out / "checkpoint.pt", device) if args.resume else 0
    run.save_config(config, out / "training.json")
    size = sum(weight.numel() for weight in parts.mean.parameters())
    log(f"{config}\n{len(photos.labels)} photographs, {size:,} weights, torch {torch.__version__}, step {first}")
    step, number, start = make_step(parts, config, device), first, time.monotonic()
    bar = run.progress(config.steps, start=first, label="photo")
    while number < config.steps and time.monotonic() - start < args.stop_after:
        each = step(photos, number)
        number += 1
        bar.update()
        if number % args.every == 0 or number == config.steps:
            told = " ".join(f"{x:.3f}" for x in each.tolist())
            log(f"step {number}: losses {told}; validation {accuracy(parts.mean, checked):.4f}")
            save(parts, number, out)
    bar.close()
    save(parts, number, out)
    rate = (number - first) * config.batch / (time.monotonic() - start)
    log(f"stopped after step {number}, {rate:.0f} views/s; validation {accuracy(parts.mean, checked):.4f}")


def save(parts: Parts, number: int, out: Path) -> None:
    """Write the checkpoint and the running mean of the weights in half precision."""
    states = {name: getattr(parts, name).state_dict() for name in ("student", "mean", "optimiser")}
    run.save_checkpoint(out / "checkpoint.pt", step=number, **states)
    half = ViTForImageClassification(parts.mean.config).half()
    half.load_state_dict(parts.mean.state_dict())
    half.save_pretrained(out / "model")


def resume(parts: Parts, path: Path, device: str) -> int:
    """Load a checkpoint into the parts; the step to go on from, 0 where there is no checkpoint."""
    if not path.exists():
        return 0
    state = run.load_checkpoint(path, device)
    for name in ("student", "mean", "optimiser"):
        getattr(parts, name).load_state_dict(state[name])
    return state["step"]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, the data, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.zip and val.zip of Imagenette")
    parser.add_argument("--teacher", type=Path, required=True, help="timm ViT weights with 16-pixel patches")
    parser.add_argument("--unlabelled", type=Path, nargs="*", default=[], help="folders of further photographs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=PhotoConfig.steps)
    parser.add_argument("--batch", type=int, default=PhotoConfig.batch)
    parser.add_argument("--seed", type=int, default=PhotoConfig.seed)
    parser.add_argument("--subset", type=int, help="read only so many photographs of each archive")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--every", type=int, default=500, help="steps between validations and checkpoints")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds; go on later with --resume")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(arguments)
    logging.disable_progress_bar()
    config = PhotoConfig(batch=args.batch, steps=args.steps, seed=args.seed)
    config = replace(config, warmup=min(config.warmup, max(1, args.steps // 10)))
    archives = [args.data / name for name in ("train.zip", "val.zip")]
    photos, checked = (read_archive(path, size=config.image_size, limit=args.subset) for path in archives)
    skip = archive_stems(archives[0]) | archive_stems(archives[1])
    more = [read_folder(folder, size=config.image_size, skip=skip) for folder in args.unlabelled]
    train(config, join([photos, *more]).to(args.device), checked.to(args.device), args)


if __name__ == "__main__":
    main()
