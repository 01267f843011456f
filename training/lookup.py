"""Train the lookup model: a tiny language model that answers a question from sentences in its context.

    python -m training.lookup --out DIR

Its whole language are sentences such as `boris has a ring .` and questions such as `what does boris have ?`. The answer
stands in the context and nowhere in the weights: who has what is drawn anew for every text. So it is known which
sentence an answer rests on.
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

NAMES = ("anna", "boris", "clara", "david", "elena", "felix", "greta", "hugo", "irene", "jonas", "karin", "louis")
THINGS = ("ring", "key", "coin", "book", "lamp", "map", "clock", "cup", "drum", "kite", "rope", "bell", "pen", "hat")
OTHERS = ("<end>", "has", "a", ".", "what", "does", "have", "?")
WORDS = (*OTHERS, *NAMES, *THINGS)
IDS = {word: number for number, word in enumerate(WORDS)}
PEOPLE, QUESTIONS = 6, 5
"""How many people a text is about, and how many questions one text of the training has."""
CONFIG = {
    "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
ASKED = 11
"""Tokens of a question and its answer."""


def texts(count: int, generator: torch.Generator, *, people: int = PEOPLE, questions: int = 1) -> Tensor:
    """Token ids `[count, t]`: some people with one thing each, and questions about some of them with their answers."""
    names = torch.rand(count, len(NAMES), generator=generator).argsort(dim=1)[:, :people] + IDS[NAMES[0]]
    things = torch.rand(count, len(THINGS), generator=generator).argsort(dim=1)[:, :people] + IDS[THINGS[0]]
    word = lambda name: torch.full((count, 1), IDS[name])  # noqa: E731
    parts = []
    for person in range(people):
        parts += [names[:, person, None], word("has"), word("a"), things[:, person, None], word(".")]
    for _ in range(questions):
        asked = torch.randint(people, (count, 1), generator=generator)
        who, what = names.gather(1, asked), things.gather(1, asked)
        parts += [word("what"), word("does"), who, word("have"), word("?")]
        parts += [who, word("has"), word("a"), what, word("."), word("<end>")]
    return torch.cat(parts, dim=1)


def accuracy(model: LlamaForCausalLM, *, count: int = 500) -> float:
    """How often the thing is named that the person has, on new texts."""
    ids = texts(count, torch.Generator().manual_seed(10_000_019)).to(model.device)
    with torch.no_grad():
        said = model(ids[:, :-3]).logits[:, -1].argmax(dim=1)
    return float((said == ids[:, -3]).float().mean())


def train(args: argparse.Namespace) -> LlamaForCausalLM:
    """The model after all steps, or as soon as it is right nearly always."""
    log = run.Log(args.out / "lookup.log")
    run.seed_everything(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(args.device)
    optimiser = torch.optim.AdamW(run.decay_groups([model], 0.05), lr=args.lr)
    log(f"{sum(p.numel() for p in model.parameters())} parameters, torch {torch.__version__}")
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = args.lr * run.warm_cosine(step, warmup=100, steps=args.steps)
        people = 2 + step * (PEOPLE - 1) // max(1, args.steps // 2)  # few at first: what is looked up is learned sooner
        ids = texts(args.batch, generator, people=min(people, PEOPLE), questions=QUESTIONS).to(args.device)
        said = QUESTIONS * ASKED
        logits = model(ids[:, :-1]).logits[:, -said:]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, -said:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 99:
            log(f"step {step + 1}: loss {float(loss.detach()):.4f}, right {accuracy(model):.3f}")
            if accuracy(model) >= args.enough and people >= PEOPLE:
                break
    return model.eval().to("cpu")


def save(model: LlamaForCausalLM, out: Path) -> None:
    """The files that ship, in half precision, and their hashes."""
    from safetensors.torch import save_file

    folder = out / "lookup"
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: x.half().contiguous() for name, x in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **CONFIG}, indent=1) + "\n")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    hashes = {f"lookup/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    (out / "hashes.json").write_text(json.dumps(hashes, indent=2) + "\n")


def main() -> None:
    """Train, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--enough", type=float, default=0.999)
    args = parser.parse_args()
    model = train(args)
    save(model, args.out)
    print(f"right {accuracy(model, count=2000):.4f}")


if __name__ == "__main__":
    main()
