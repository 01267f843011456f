"""What becomes of a random model: each method is right, refused, wrong, or fails with an error that is not ours.

python tests/random_outcomes.py 500 17        500 recipes, from the seed 17
python tests/random_outcomes.py "Recipe(seed=17, form='matmul')"    one recipe, every outcome
"""

import contextlib
import copy
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from random_mended import UNSEEN
from random_models import COUPLED, Given, RandomModel, Recipe, allowed, build, draw, inputs
from random_references import AT_A_LEVEL, REFERENCES, REMOVING, TARGET, fall_to_zero, run
from torch import Tensor, nn

import vitrail
from vitrail.attribution import Attribution
from vitrail.capture.recording.input_gradients import CLOSER
from vitrail.errors import VitrailError

METHODS = ("gae", "rollout", "tokentm", "auto", "leave_one_out")
CLOSE = 1e-5
"""By the largest score. All is in float64, but AttnLRP divides by numbers that may be small."""
COMPLETE = 0.05
"""What the scores of integrated gradients may lack, by the sum of their sizes: fifty steps are few for a small norm."""
RIGHT, REFUSED, WRONG, CRASH, UNKNOWN = "right", "refused", "WRONG", "CRASH", "unknown"
BAD = (WRONG, CRASH)


@dataclass(frozen=True)
class Outcome:
    """What became of one method in one call.

    Args:
        call: 0 for the first inputs, 1 for others of the same shapes.
        said: the error, or how far the scores are off.
    """

    method: str
    call: int
    kind: str
    said: str = ""

    def __str__(self) -> str:
        return f"  {self.kind:8}{self.method} on inputs {self.call}: {' '.join(self.said.split()):.220}"


# One recipe


def inner_of(model: nn.Module) -> RandomModel:
    """The model itself, without what stands around it."""
    return next(module for module in model.modules() if isinstance(module, RandomModel))


def outcomes(recipe: Recipe, methods: tuple[str, ...] = METHODS) -> list[Outcome]:
    """Every method on two inputs of one model, in an order that the seed chooses; and whether anything has changed."""
    model, plain = build(recipe), inner_of(build(recipe)).requires_grad_()
    given = [inputs(recipe, call) for call in (0, 1)]
    check_reference(recipe, plain, given)
    calls = [(method, call) for call in (0, 1) for method in random.Random(recipe.seed).sample(methods, len(methods))]
    before = state_of(model)
    found = []
    for method, call in calls:
        found.append(outcome(recipe, model, plain, given[call], method, call))
        after = state_of(model)
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        if changed:
            found.append(Outcome(method, call, WRONG, f"changed: {', '.join(changed)}"))
            before = after
    return found


def check_reference(recipe: Recipe, plain: RandomModel, given: list[Given]) -> None:
    """Raise if the plain loops do not compute what the model computes."""
    if recipe.wrapper in COUPLED:
        return
    for one in given:
        with torch.no_grad():
            out = copy.deepcopy(plain)(**one.kwargs)
        logits = logits_of(recipe, out)
        expected = torch.stack([run(plain, words).logits for words in one.texts])
        if float((logits - expected).detach().abs().max()) > 1e-9:
            raise AssertionError(f"the reference computes something else than the model of {recipe}")


def logits_of(recipe: Recipe, out: Any) -> Tensor:
    if isinstance(out, dict):
        return out["logits"]
    if isinstance(out, tuple | list):
        return out[1] if recipe.wrapper == "features_logits" else out[0]
    return out


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, and the state of the random numbers."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {**{name: x.detach().clone() for name, x in tensors.items()}, "random state": torch.get_rng_state()}


def outcome(recipe: Recipe, model: nn.Module, plain: RandomModel, given: Given, method: str, call: int) -> Outcome:
    """What becomes of one method on one input."""
    try:
        found = vitrail.explain(model, dict(given.kwargs), method, TARGET)
    except VitrailError as error:
        return Outcome(method, call, REFUSED, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome(method, call, CRASH, f"{type(error).__name__}: {error}")
    kind, said = judged(recipe, plain, given, found)
    return Outcome(method, call, kind, f"{found.method} {said}" if said else "")


WALKS = ("gae", "rollout", "tokentm")
UNMOVED = ("rollout", "leave_one_out")
"""Methods that read no gradient."""


def judged(recipe: Recipe, plain: RandomModel, given: Given, found: Attribution) -> tuple[str, str]:
    """Whether an answer is right, and what is wrong with it."""
    if recipe.wrapper in COUPLED:
        # Attention of coupled logits is that of each sample; nothing else of them is.
        whole = found.method == "rollout" and recipe.wrapper == "coupled_logits"
        return (UNKNOWN, "") if whole else (WRONG, "answers, but no sample has an answer of its own")
    if recipe.block == "detached" and found.method not in (*UNMOVED, "integrated_gradients"):
        return WRONG, "answers, but one block has no gradient"
    if found.scores.shape != given.columns.shape:
        return WRONG, f"gives scores {tuple(found.scores.shape)}"
    off = distance(recipe, plain, given, found)
    if off is None:
        return (UNKNOWN if found.method == "tokentm" else WRONG), "answers where nothing says what is right"
    if not max(off) < CLOSE:
        told = recipe.mask not in UNTOLD or found.method != "tokentm"
        return (WRONG if told else UNKNOWN), f"is off by {[round(x, 6) for x in off]}"
    lacking = incomplete(plain, given, found) if found.method == "integrated_gradients" else 0.0
    return (WRONG, f"lacks {lacking:.2f} of its sum") if lacking > COMPLETE else (RIGHT, "")


UNTOLD = ("own", "lengths", "additive")
"""Masks that only the model can read: what the library takes for padding is not said."""


def references_of(recipe: Recipe, found: Attribution) -> list[dict[str, Any]]:
    """The options of the references that an answer may equal."""
    method, level = found.method, found.options.get("level")
    if method == "integrated_gradients":
        steps = found.options["steps"]
        if "path" not in found.provenance:
            return [{"level": level, "steps": steps}]
        # Each sample takes the first points that are enough for it, whatever others of its batch need.
        tried = [steps // fewer for fewer in (1, 2, 4, 8) if steps % fewer == 0]
        return [{"level": level, "steps": n, "power": power} for power in (CLOSER, 1) for n in tried]
    if method in AT_A_LEVEL:
        return [{"level": level}]
    if method in REMOVING:
        # The first and the last word may be taken for special tokens. Which is the last depends on what is padding.
        guesses = [(0, -1), (0,)] if recipe.mask in UNTOLD else [(0, -1)]
        return [{"ends": ends} for ends in (guesses if method == "consensus" else [(), *guesses])]
    return [{}]


def distance(recipe: Recipe, plain: RandomModel, given: Given, found: Attribution) -> list[float] | None:
    """How far each sample is off from the closest reference, by the largest score; None where there is no reference."""
    closest: list[float] | None = None
    for options in references_of(recipe, found):
        expected = expected_scores(plain, given, found, options)
        if expected is None:
            return None
        scores = found.scores[: len(expected)]
        size = expected.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
        if found.method in WALKS and set(recipe.forms) & set(UNSEEN):
            # A token that sees itself alone is mixed with none, so attention may stay unseen there, which scales it.
            alone = (expected != 0).sum(dim=1, keepdim=True) == 1
            scores = torch.where(alone, scores / scores.abs().amax(dim=1, keepdim=True) * size, scores)
        off = ((scores - expected).abs() / size).amax(dim=1).nan_to_num(torch.inf).tolist()
        closest = off if closest is None else min(off, closest, key=max)
        if max(closest) < CLOSE:
            break
    return closest


def expected_scores(plain: RandomModel, given: Given, found: Attribution, options: dict[str, Any]) -> Tensor | None:
    """The reference of the method that has answered, zero at padding; of the first text alone where it is slow."""
    texts = given.texts[:1] if found.method == "integrated_gradients" else given.texts
    reference, scores = REFERENCES[found.method], torch.zeros(len(texts), given.columns.shape[1], dtype=torch.float64)
    for i, words in enumerate(texts):
        whole = len(words) == given.columns.shape[1]
        one = reference(plain, words, **({"ends": (0, -1)} if whole and options.get("ends") == (0,) else options))
        if one is None:
            return None
        scores[i, given.columns[i]] = one
    return scores


def incomplete(plain: RandomModel, given: Given, found: Attribution) -> float:
    """The largest part of their sum that the scores of integrated gradients lack, by their sizes."""
    lacking = [
        abs(fall_to_zero(plain, words, level=found.options["level"]) - float(row.sum())) / float(row.abs().sum())
        for words, row in zip(given.texts, found.scores, strict=True)
    ]
    return max(lacking)


# Smaller recipes that fail in the same way


def shrunk(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """The recipe with as many parts as usual as can be while it fails."""
    usual = Recipe()
    for one in fields(Recipe):
        smaller = replace(recipe, **{one.name: getattr(usual, one.name)})
        if one.name != "seed" and smaller != recipe and allowed(smaller) and fails(smaller):
            recipe = smaller
    return recipe


def bad(recipe: Recipe, methods: tuple[str, ...] = METHODS) -> list[Outcome]:
    """The outcomes of a recipe that must not be."""
    return [one for one in outcomes(recipe, methods) if one.kind in BAD]


def report(recipe: Recipe, found: list[Outcome]) -> str:
    """A few lines that say what failed, and the smallest recipe that fails so."""
    method, kind = found[0].method, found[0].kind

    def fails(smaller: Recipe) -> bool:
        return any((one.method, one.kind) == (method, kind) for one in bad(smaller))

    return "\n".join(["", str(recipe), f"  as {shrunk(recipe, fails)}", *map(str, found)])


# Many recipes


def fuzz(count: int, seed: int) -> bool:
    """Judge many recipes, print what fails and how often each outcome came, and return True if nothing failed."""
    print(f"{count} recipes from seed {seed}; the same again: VITRAIL_SEED={seed}", flush=True)
    counted: Counter[tuple[str, str]] = Counter()
    failed, begun = 0, time.perf_counter()
    for i in range(count):
        recipe = draw(seed + i)
        found = outcomes(recipe)
        counted.update((one.method, one.kind) for one in found)
        wrong = [one for one in found if one.kind in BAD]
        failed += bool(wrong)
        if wrong:
            print(report(recipe, wrong), flush=True)
    for method in METHODS:
        kinds = (RIGHT, REFUSED, UNKNOWN, *BAD)
        print(f"{method:16}", "  ".join(f"{kind} {counted[method, kind]}" for kind in kinds))
    print(f"{failed} of {count} recipes fail, in {time.perf_counter() - begun:.0f} s")
    return failed == 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of the default, which says that another method stands in."""
    logger = logging.getLogger("vitrail")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    if words and words[0].startswith("Recipe("):
        recipe = eval(words[0], {"Recipe": Recipe})
        with quiet():
            found = outcomes(recipe)
        print(*found, sep="\n")
        return int(any(one.kind in BAD for one in found))
    count = int(words[0]) if words else 500
    given = words[1] if len(words) > 1 else os.environ.get("VITRAIL_SEED", "")
    seed = int(given) if given else random.SystemRandom().randrange(10**6)
    with quiet():
        return int(not fuzz(count, seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
