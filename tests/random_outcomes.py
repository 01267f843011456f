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
from random_models import COUPLED, RandomModel, Recipe, allowed, build, draw, inputs
from random_references import AT_A_LEVEL, REFERENCES, REMOVING, TARGET, fall_to_zero, run
from torch import Tensor, nn

import vitrail
from vitrail.errors import VitrailError

METHODS = ("gae", "rollout", "tokentm", "auto", "leave_one_out")
CLOSE = 1e-7
"""By the largest score: all is in float64, and no sum has more than some thousand terms."""
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


def check_reference(recipe: Recipe, plain: RandomModel, given: list[Any]) -> None:
    """Raise if the plain loops do not compute what the model computes."""
    if recipe.wrapper in COUPLED:
        return
    for one in given:
        with torch.no_grad():
            out = copy.deepcopy(plain)(**one.kwargs)
        logits = logits_of(recipe, out)
        expected = torch.stack([run(plain, words).logits for words in one.texts])
        if float((logits - expected).abs().max()) > 1e-9:
            raise AssertionError(f"the reference computes something else than the model of {recipe}")


def logits_of(recipe: Recipe, out: Any) -> Tensor:  # noqa: ANN401
    if isinstance(out, dict):
        return out["logits"]
    if isinstance(out, tuple | list):
        return out[1] if recipe.wrapper == "features_logits" else out[0]
    return out


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, and the state of the random numbers."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {**{name: x.detach().clone() for name, x in tensors.items()}, "random state": torch.get_rng_state()}


def outcome(recipe: Recipe, model: nn.Module, plain: RandomModel, given: Any, method: str, call: int) -> Outcome:  # noqa: ANN401, PLR0913
    try:
        found = vitrail.explain(model, dict(given.kwargs), method, TARGET)
    except VitrailError as error:
        return Outcome(method, call, REFUSED, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome(method, call, CRASH, f"{type(error).__name__}: {error}")
    if recipe.wrapper in COUPLED and found.method != "rollout":
        return Outcome(method, call, WRONG, f"{found.method} answered, but no sample has an answer of its own")
    if recipe.wrapper == "coupled_states" or (recipe.wrapper in COUPLED and recipe.readout == "max"):
        return Outcome(method, call, UNKNOWN)
    if recipe.block == "detached" and found.method not in ("rollout", "leave_one_out"):
        return Outcome(method, call, WRONG, f"{found.method} answered, but one block has no gradient")
    return compared(recipe, plain, given, found, Outcome(method, call, RIGHT))


def compared(recipe: Recipe, plain: RandomModel, given: Any, found: Any, so_far: Outcome) -> Outcome:  # noqa: ANN401
    """The outcome where a method has answered."""
    expected = expected_scores(recipe, plain, given, found)
    if expected is None:
        kind = UNKNOWN if found.method == "tokentm" else WRONG
        return replace(so_far, kind=kind, said=f"{found.method} answered where nothing says what is right")
    if found.scores.shape != expected.shape:
        return replace(so_far, kind=WRONG, said=f"{found.method}: scores {tuple(found.scores.shape)}")
    size = expected.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    off = ((found.scores - expected).abs() / size).amax(dim=1)
    if not bool((off < CLOSE).all()):
        return replace(so_far, kind=WRONG, said=f"{found.method} is off by {[round(float(x), 6) for x in off]}")
    if found.method == "integrated_gradients" and (lacking := incomplete(plain, given, found)):
        return replace(so_far, kind=WRONG, said=f"integrated_gradients lacks {lacking:.2f} of its sum")
    return so_far


def expected_scores(recipe: Recipe, plain: RandomModel, given: Any, found: Any) -> Tensor | None:  # noqa: ANN401
    """The reference of the method that has answered, zero at padding."""
    reference = REFERENCES[found.method]
    scores = torch.zeros(given.columns.shape, dtype=torch.float64)
    for i, words in enumerate(given.texts):
        more: dict[str, Any] = {"level": found.options["level"]} if found.method in AT_A_LEVEL else {}
        if found.method in REMOVING:
            # Where nothing tells padding from words, the last word is not the last column.
            unknown = recipe.mask in ("own", "lengths") and len(words) < recipe.length
            more = {"ends": (0,) if unknown else (0, -1)}
        one = reference(plain, words, **more)
        if one is None:
            return None
        scores[i, given.columns[i]] = one
    return scores


def incomplete(plain: RandomModel, given: Any, found: Any) -> float:  # noqa: ANN401
    """What the scores of integrated gradients lack, by their sizes, where it is too much; else zero."""
    lacking = [
        abs(fall_to_zero(plain, words, level=found.options["level"]) - float(row.sum())) / float(row.abs().sum())
        for words, row in zip(given.texts, found.scores, strict=True)
    ]
    return max(lacking) if max(lacking) > COMPLETE else 0.0


# Kinds of recipes that are known to fail


@dataclass(frozen=True)
class Known:
    """A kind of model that fails.

    Args:
        recipe: the smallest recipe of this kind.
        reason: what is wrong.
        also: other values of its parts that are of the same kind.
        methods: that fail.
    """

    recipe: Recipe
    reason: str
    methods: tuple[str, ...] = METHODS
    also: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def holds(self, recipe: Recipe) -> bool:
        """Return True if a recipe is of this kind."""
        also = dict(self.also)
        usual = Recipe()
        for one in fields(Recipe):
            wanted = getattr(self.recipe, one.name)
            among = also.get(one.name, () if wanted == getattr(usual, one.name) else (wanted,))
            if one.name != "seed" and among and getattr(recipe, one.name) not in (wanted, *among):
                return False
        return True


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
    first = found[0]

    def fails(smaller: Recipe) -> bool:
        return any((one.method, one.kind) == (first.method, first.kind) for one in bad(smaller))

    return "\n".join([str(recipe), f"  as {shrunk(recipe, fails)}", *map(str, found)])


# Many recipes


def fuzz(count: int, seed: int, accepts: Callable[[Recipe], bool] = lambda recipe: True) -> bool:
    """Judge many recipes, print what fails and how often each outcome came, and return True if nothing failed."""
    print(f"{count} recipes from seed {seed}; the same again: VITRAIL_SEED={seed}", flush=True)
    counted: Counter[tuple[str, str]] = Counter()
    failed, begun = 0, time.perf_counter()
    for i in range(count):
        recipe = draw(seed + i, accepts)
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
        recipe = eval(words[0], {"Recipe": Recipe})  # noqa: S307  (a line that this file has printed)
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
