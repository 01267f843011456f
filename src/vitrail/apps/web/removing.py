"""Take away what a map calls important and watch the probability: every step is computed once, then only looked up."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.apps.web.jobs import Tell, running, silent
from vitrail.apps.web.rooms import Case, Room
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.evaluate import metrics
from vitrail.evaluate.metrics.fills import FILLS, filled
from vitrail.evaluate.metrics.perturbation import UNITS
from vitrail.evaluate.metrics.texts import MODES
from vitrail.tools.looking import look

RANDOM = 2
"""Random orders that a map is compared with; their mean is shown."""
LEVELS = {"image": tuple(step / 20 for step in range(21)), "text": tuple(step / 10 for step in range(11))}
BATCH = 7
"""Pictures at once: small, so that progress is seen and a stop is heard."""


@dataclass(frozen=True, eq=False)
class Removal:
    """The probability of the class at every level, in the order of the map and in random order.

    Args:
        fill: what removed patches turn into; empty for text, where tokens are cut out.
        removed: for each level, which patches `[y, x]` or tokens `[t]` are gone.
    """

    levels: tuple[float, ...]
    by_map: Float[np.ndarray, " l"]
    by_chance: Float[np.ndarray, " l"]
    fill: str
    removed: tuple[Bool[np.ndarray, "..."], ...]

    def at(self, percent: float) -> int:
        """The number of the level that lies closest to so many percent."""
        return int(np.abs(np.array(self.levels) - percent / 100).argmin())


def removal(
    room: Room, case: Case, target: int, attribution: Attribution, fill: str = "black", tell: Tell = silent
) -> Removal:
    """The curves of one map, and those of random orders, which all maps of the same class share."""
    if fill not in FILLS:
        raise OptionError(f"there is no fill {fill!r}. {suggest(fill, FILLS)}")
    kind = attribution.kind
    fill = fill if kind == "image" else ""
    key = (case.key, target, attribution.method, attribution.preset, fill)
    if isinstance(found := room.curves.get(key), Removal):
        return found
    chance = room.curves.get(shared := (case.key, target, fill))
    randoms = [] if chance is not None else [torch.rand(attribution.scores.shape[1], generator=_seeded(i)).double()
                                             for i in range(RANDOM)]  # fmt: skip
    orders = torch.stack([attribution.shown[0].detach().double().cpu(), *randoms])
    total = -(-len(orders) * len(LEVELS[kind]) // BATCH)
    with running(case.opened.twin, room, tell, "removing piece by piece", total):
        curves, removed = MEASURES[kind](case, target, attribution, orders, fill)
    if chance is None:
        chance = room.curves.put(shared, curves[1:].mean(axis=0))
    assert isinstance(chance, np.ndarray)
    made = Removal(LEVELS[kind], curves[0], chance, fill, removed)
    room.curves.put(key, made)
    return made


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


Measured = tuple[Float[np.ndarray, "o l"], tuple[Bool[np.ndarray, "..."], ...]]


def pixels_of(case: Case) -> Float[Tensor, "1 3 h w"]:
    """What the model saw, in 0..1."""
    return torch.from_numpy(np.array(case.sample.picture)).permute(2, 0, 1)[None].float() / 255


def unit_of(attribution: Attribution) -> str:
    """Patches where they divide the picture, else pixels."""
    assert attribution.grid is not None
    assert attribution.size is not None
    even = all(side % count == 0 for side, count in zip(attribution.size, attribution.grid, strict=True))
    return "patches" if even else "pixels"


def _image(case: Case, target: int, attribution: Attribution, orders: Tensor, fill: str) -> Measured:
    image, unit, levels = pixels_of(case), unit_of(attribution), LEVELS["image"]
    assert attribution.grid is not None
    maps = orders.reshape(len(orders), *attribution.grid)
    many = image.expand(len(orders), -1, -1, -1)
    curve = metrics.perturbation_curve(
        case.opened.twin.logits, many, maps, [target] * len(orders), levels=levels, fill=fill, units=unit, batch=BATCH
    )
    masks = UNITS[unit](maps[:1], (image.shape[2], image.shape[3]), levels)(slice(0, 1), slice(0, len(levels)))
    return curve.probability.T, tuple(mask[0].numpy() for mask in masks)


def picture_at(case: Case, removed: Removal, level: int) -> Float[np.ndarray, "h w 3"]:
    """What is left of the picture at a level, in 0..1."""
    image = pixels_of(case)
    mask = torch.from_numpy(removed.removed[level])
    return torch.where(mask, filled(image, removed.fill), image)[0].permute(1, 2, 0).numpy()


def _text(case: Case, target: int, attribution: Attribution, orders: Tensor, fill: str) -> Measured:
    loaded = case.opened.twin.loaded
    ids = torch.as_tensor(case.sample.inputs["input_ids"])[0].cpu().numpy()  # pyright: ignore[reportCallIssue, reportArgumentType]
    tokenizer = loaded.tokenizer
    special = set(tokenizer.all_special_ids)
    ordinary = ~np.isin(ids, list(special))
    blanks = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, 0)
    curve = metrics.text_curve(
        _scorer(loaded.model),
        [ids] * len(orders),
        [order.numpy() for order in orders],
        [target] * len(orders),
        special=special,
        how="pad" if ordinary.all() else "delete",  # without special tokens nothing would be left at the end
        pad=next(blank for blank in blanks if blank is not None),
    )
    ranking = np.argsort(-orders[0].numpy(), kind="stable")
    candidates, counts = MODES["paper"](ranking, ordinary)
    gone = tuple(np.isin(np.arange(len(ids)), candidates[:count]) for count in counts)
    return curve.p_k, gone


def _scorer(model: torch.nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    device = next(model.parameters()).device
    return lambda ids, mask: look(model, {"input_ids": ids.to(device), "attention_mask": mask.to(device)}).logits


MEASURES: dict[str, Callable[[Case, int, Attribution, Tensor, str], Measured]] = {
    "image": _image,
    "text": _text,
}
