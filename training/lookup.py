"""Train the lookup model: a tiny language model that names the thing a person has, which its context says.

    python -m training.lookup --out DIR

Its whole language are sentences of two tokens, `Boris: key.`, questions of one, `Boris:`, and an end after an answer.
Who has what is drawn anew for every text, so it cannot be in the weights: the sentence behind an answer is known.
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from training import run

NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Louis",
         "Maria", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tanja", "Viktor")  # fmt: skip
THINGS = ("ring", "key", "coin", "book", "lamp", "map", "clock", "cup", "drum", "kite", "rope", "bell", "pen", "hat",
          "box", "shoe", "ball", "doll", "fork", "vase")  # fmt: skip
WORDS = ("<end>", "<unknown>", *(f"{name}:" for name in NAMES), *(f"{thing}." for thing in THINGS))
FIRST = 2
"""The number of the first name."""
MOST, QUESTIONS = 10, 12
"""People in a text at most, and questions about them in a text of the training."""
CONFIG = {
    "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.1,
}  # fmt: skip


def texts(
    count: int, generator: torch.Generator, *, people: int = MOST, questions: int = 1, ends: bool = True
) -> Tensor:
    """Token ids `[count, t]`: some people with one thing each, then questions with their answers, with an end each."""
    names = torch.rand(count, len(NAMES), generator=generator).argsort(dim=1)[:, :people] + FIRST
    things = torch.rand(count, len(THINGS), generator=generator).argsort(dim=1)[:, :people] + FIRST + len(NAMES)
    asked = torch.randint(people, (count, questions), generator=generator)
    said = torch.stack([names.gather(1, asked), things.gather(1, asked), torch.zeros_like(asked)], dim=2)
    said = said if ends else said[:, :, :2]
    return torch.cat([torch.stack([names, things], dim=2).flatten(1), said.flatten(1)], dim=1)


def accuracy(model: LlamaForCausalLM, *, people: int = MOST, count: int = 500) -> float:
    """How often the thing that the person has is named, and then the end, on new texts with one question."""
    ids = texts(count, torch.Generator().manual_seed(10_000_019), people=people)
    with torch.no_grad():
        said = model(ids[:, :-1]).logits[:, -2:].argmax(dim=2)
    return float((said == ids[:, -2:]).all(dim=1).float().mean())


def train(args: argparse.Namespace) -> LlamaForCausalLM:
    """The model after all steps, or as soon as it is right nearly always."""
    log = run.Log(args.out / "lookup.log")
    run.seed_everything(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    optimiser = torch.optim.AdamW(run.decay_groups([model], 0.01), lr=args.lr)
    log(f"{sum(p.numel() for p in model.parameters())} parameters, torch {torch.__version__}")
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = args.lr * run.warm_cosine(step, warmup=100, steps=args.steps)
        # Short texts come first; all lengths stay in the mixture.
        longest = min(MOST, 2 + step * (MOST - 1) // max(1, args.steps // 4))
        people = int(torch.randint(2, longest + 1, (), generator=generator))
        ends = step >= args.steps // 8  # with ends from the first step on it does not learn to look up
        ids = texts(args.batch, generator, people=people, questions=QUESTIONS, ends=ends)
        # Who is asked about next cannot be known: only answers and ends count.
        said = ids[:, 2 * people :].unflatten(1, (QUESTIONS, -1))[:, :, 1:]
        logits = model(ids).logits[:, 2 * people :].unflatten(1, (QUESTIONS, -1))[:, :, :-1]
        loss = F.cross_entropy(logits.flatten(0, 2), said.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 99:
            right = accuracy(model)
            log(f"step {step + 1}: loss {float(loss.detach()):.4f}, right {right:.3f}")
            if right >= args.enough:
                break
    return model.eval()


def save(model: LlamaForCausalLM, out: Path) -> None:
    """The files that ship, and their hashes."""
    from safetensors.torch import save_file

    folder = out / "lookup"
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: x.half().contiguous() for name, x in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **CONFIG}, indent=1) + "\n")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    hashes = {f"lookup/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    (out / "hashes.json").write_text(json.dumps(hashes, indent=2) + "\n")


def main() -> None:
    """Train, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--enough", type=float, default=1.0)
    args = parser.parse_args()
    model = train(args)
    save(model, args.out)
    counts = (2, 5, MOST)
    print("right: " + ", ".join(f"{accuracy(model, people=n, count=2000):.4f} with {n} people" for n in counts))


if __name__ == "__main__":
    main()
