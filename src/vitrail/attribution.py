"""The result of a method: scores, what they belong to, how they were made; several results together."""

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail import __version__
from vitrail.errors import InputError, MethodError, VitrailError, suggest
from vitrail.targets import Classes, Target, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.apps.web.downloads import Page

PACKAGES = ("torch", "transformers", "timm")


@cache
def versions(further: tuple[str, ...] = ()) -> dict[str, str]:
    """The versions of the libraries a result depends on, and of further ones."""
    found = {"vitrail": __version__}  # of the code that runs; an installation notes the version it was installed with
    for package in (*PACKAGES, *further):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@dataclass(frozen=True, eq=False)
class SeenPictures:
    """The pictures that maps belong to, for drawing only. They are never saved.

    Args:
        pictures: one for each sample, kept.
        borrowed: the user's own tensor, which is drawn over as long as the user keeps it.
        signal: whether it is audio, a spectrum, a table or a video, and no batch of pictures.
        preprocess: what makes of a photograph the inputs of the model and the picture it sees, where that is known.
    """

    pictures: tuple[Any, ...] | None = None
    borrowed: weakref.ref[Tensor] | None = None
    signal: bool = False
    preprocess: Callable[[Any], tuple[Tensor | None, Any]] | None = None

    def __call__(self, index: int) -> Any:  # noqa: ANN401
        """The picture of one sample; None where it is gone."""
        if self.pictures is not None:
            return self.pictures[index] if index < len(self.pictures) else None
        held = None if self.borrowed is None else self.borrowed()
        if held is None or index >= len(held) or not (self.signal or (held.ndim == 4 and held.shape[1] == 3)):
            return None
        return held[index]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes get none."""
        return SeenPictures, ()


def class_titles(target: Target, names: Sequence[str] | Mapping[int, str], samples: int) -> list[str] | None:
    """What is explained of each sample in the names of the classes; None where they are not known.

    A configuration of transformers calls a class `LABEL_3` that has no name.
    """
    if target.first is None or target.position is not None:
        return None
    columns = [_each(classes, samples) for classes in (target.first, target.second) if classes is not None]
    held = names if isinstance(names, Mapping) else range(len(names))
    used = {index for column in columns for index in column}
    if any(index not in held or names[index] == f"LABEL_{index}" for index in used):
        return None
    return [" rather than ".join(str(names[i]).split(",")[0] for i in pair) for pair in zip(*columns, strict=True)]


def _each(classes: Classes, samples: int) -> list[int]:
    return list(classes) if isinstance(classes, tuple) and len(classes) == samples else [only(classes)] * samples


def sample_target(attribution: "Attribution", index: int) -> Target:
    """The target of one sample: its own class where every sample has one."""

    def own(classes: Classes) -> Classes:
        return classes[index] if isinstance(classes, tuple) and index < len(classes) else classes

    target = attribution.target
    return replace(target, first=own(target.first), second=own(target.second))


@dataclass(frozen=True, eq=False)
class Attribution:
    """One score per patch or token, for every sample of a batch.

    Args:
        scores: patches without prefix tokens, or all tokens with padding at zero.
        kind: `"image"` or `"text"`.
        signed: whether scores below zero mean evidence against the target.
        grid: rows and columns of patches.
        size: height and width of the image the model saw.
        tokens: the tokens as text, padding included.
        valid: which tokens are real; None if all are.
        own: the token's own share of its score, carried down by skip connections, where a method has one. Pictures
            subtract it.
        readout: for text, the position the prediction is read from, -1 where it is not a single one. Pictures leave
            out its score, which is mostly its own share.
        pixels: a map of the image's own size, for methods that work on pixels.
        layers: one map per layer, first to last, where the method has them; for `consensus` one per part, by the
            names in `provenance["parts"]`.
        heads: one map per head, where the method has them.
        provenance: model, its fingerprint, library versions and backend; `seconds` spent on this result alone, and
            `shared_seconds` of what served several results of one `compare`, such as its forward pass; `residual`, for
            methods whose scores should add up, is what their sum lacks in each sample; `parts` and `disagreement`, of
            methods that add up others; `default`, why the best method did not apply where none was named; `classes`,
            the name of what is explained of each sample, and `probability`, that of its class, where they are known.
        streams: where a model has several sequences of tokens, an attribution for each of them by its name: `encoder`
            and `decoder`, `image` and `text`, `audio`, `queries`. `scores` is that of the sequence the user gave.
        seen: the pictures that maps are drawn over where none is given; not saved.
    """

    scores: Float[Tensor, "b n"]
    method: str
    target: Target
    kind: str
    signed: bool = False
    preset: str = "recommended"
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None
    valid: Bool[Tensor, "b n"] | None = None
    own: Float[Tensor, "b n"] | None = None
    readout: Int[Tensor, " b"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    layers: Float[Tensor, "b l n"] | None = None
    heads: Float[Tensor, "b h n"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    streams: Mapping[str, "Attribution"] = field(default_factory=dict)
    seen: SeenPictures | None = None

    def __len__(self) -> int:
        """How many samples the batch has."""
        return self.scores.shape[0]

    @property
    def label(self) -> str:
        """The method with the options that differ from what it usually takes for such inputs, for titles."""
        from vitrail.methods import METHODS

        if (entry := METHODS.get(self.method)) is not None:
            return entry.label(self.preset, self.options, self.kind)
        said = ", ".join(f"{n}={v}" for n, v in self.options.items())
        return f"{self.method}({said})" if said else self.method

    @property
    def magnitude(self) -> Float[Tensor, "b n"]:
        """AttCAT's Eq. 6: how much impact each token has."""
        return self.scores.abs()

    @property
    def direction(self) -> Float[Tensor, "b n"]:
        """AttCAT's Eq. 6: whether the impact is for (1) or against (-1) the target."""
        return self.scores.sign()

    @property
    def shown(self) -> Float[Tensor, "b n"]:
        """The scores as pictures show them: without the tokens' own part, and for text without the readout's entry."""
        shown = self.scores if self.own is None else self.scores - self.own
        if self.kind != "text" or self.readout is None:
            return shown
        columns = torch.arange(self.scores.shape[1], device=self.scores.device)
        return shown.masked_fill(columns == self.readout[:, None], 0.0)

    def heatmap(self, size: tuple[int, int] | None = None) -> Float[Tensor, "b h w"]:
        """The map at the image's size: bilinear with half-pixel centres, not normalised."""
        size = self.size if size is None else _checked_size(size)
        if self.pixels is not None:
            return self.pixels if size in (None, tuple(self.pixels.shape[1:])) else _resize(self.pixels, size)
        if self.grid is None or size is None:
            raise InputError(f"{self.method} on text has no image to fill: use .scores, .plot() or .to_html().")
        return _resize(self.scores.reshape(-1, *self.grid), size)

    def plot(self, image: Any = None, *, index: int = 0, **style: Any) -> "Figure":  # noqa: ANN401
        """A figure of one sample: the map over the image, or the sentence with its tokens shaded."""
        from vitrail.plots import plot_attribution

        return plot_attribution(self, image, index=index, **style)

    def to_html(self, image: Any = None, *, index: int | None = None, merge: bool = False) -> str:  # noqa: ANN401
        """The sentences as HTML with tokens shaded; images as an embedded picture.

        Args:
            image: the picture to lay the map over.
            index: one sample only.
            merge: join word pieces into words.
        """
        from vitrail.plots.page import to_html

        return to_html(self, image, index=index, merge=merge)

    def explore(self, image: Any = None, *, index: int = 0) -> "Page":  # noqa: ANN401
        """One sample as a page to point into and recolour, shown by notebooks; it needs no server.

        Args:
            image: the picture to lay the map over; see `overlay`.
        """
        from vitrail.apps.web.downloads import explore

        return explore([self], image, index=index)

    def save(self, path: str | Path) -> Path:
        """Write the attribution as `.json` or `.npz`, or a picture of its first sample as `.png`, `.pdf` or `.html`."""
        from vitrail.storage import save

        return save(self, path)

    @staticmethod
    def load(path: str | Path) -> "Attribution":
        """Read back what `save` wrote as `.json` or `.npz`; equal to what was saved."""
        from vitrail.storage import load

        return load(path)

    def equals(self, other: "Attribution") -> bool:
        """Whether every field is the same, tensors entry by entry."""
        mine, theirs = vars(self), vars(other)
        return all(_same(mine[name], theirs[name]) for name in mine if name != "seen")

    def title(self, index: int = 0) -> str:
        """What is explained of one sample: its class by name and probability where they are known, else the target."""
        names, likely = self.provenance.get("classes"), self.provenance.get("probability")
        own = f", {likely[index]:.1%}" if likely and index < len(likely) else ""
        if names and index < len(names):
            return f"{names[index]}{own}"
        return f"{sample_target(self, index)}{own}"

    def __repr__(self) -> str:
        """One line: what it is of, and how it was made."""
        what = f"{self.grid[0]}x{self.grid[1]} patches" if self.grid else f"{self.scores.shape[1]} tokens"
        return f"Attribution({self.label}, {self.target}, {len(self)} x {what}, preset={self.preset!r})"

    def _repr_html_(self) -> str:
        return self.to_html()


MOST_PIXELS = 100_000_000
"""Of a map in pixels."""


def _checked_size(size: Any) -> tuple[int, int]:  # noqa: ANN401
    """Height and width of a map, refused where they are not two whole numbers of at least 1."""
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or height * width > MOST_PIXELS:
        raise InputError(
            f"the size of a map is (height, width), both at least 1 and at most {MOST_PIXELS:,} pixels together, but "
            f"{size!r} was given."
        )
    return height, width


def _resize(maps: Float[Tensor, "b y x"], size: tuple[int, int]) -> Float[Tensor, "b h w"]:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, Mapping) and isinstance(b, Mapping) and any(isinstance(x, Attribution) for x in a.values()):
        return a.keys() == b.keys() and all(a[name].equals(b[name]) for name in a)
    return a == b


class Comparison(Sequence[Attribution]):
    """Attributions of the same inputs by several methods, by position or by label.

    Args:
        failed: the errors of methods that gave none, by their position among those asked for.
    """

    def __init__(
        self, attributions: Sequence[Attribution], failed: Mapping[int, VitrailError] = MappingProxyType({})
    ) -> None:
        self.attributions, self.failed = tuple(attributions), dict(failed)

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods with the options that differ from their defaults."""
        return tuple(a.label for a in self.attributions)

    @overload
    def __getitem__(self, key: int | str) -> Attribution: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Attribution]: ...
    def __getitem__(self, key: int | str | slice) -> Attribution | Sequence[Attribution]:
        """By position, by label, or by a method that was run once: `comparison["gae"]`."""
        if not isinstance(key, str):
            return self.attributions[key]
        found = [a for a in self.attributions if a.label == key] or [a for a in self.attributions if a.method == key]
        if len(found) == 1:
            return found[0]
        if not found:
            raise MethodError(f"{key!r} is not in this comparison. {suggest(key, self.labels)}")
        labels = ", ".join(a.label for a in found)
        raise MethodError(f"{key!r} names {len(found)} results of this comparison: {labels}. Use a label or a number.")

    def __len__(self) -> int:
        """How many methods were compared."""
        return len(self.attributions)

    def __repr__(self) -> str:
        """One line: the methods, and what they explain."""
        found = self.attributions
        what = f"{found[0].target}, {len(found[0])} samples" if found else "nothing"
        return f"Comparison({', '.join(self.labels)}; {what})"

    def _repr_html_(self) -> str:
        """The first sample, every method side by side."""
        from vitrail.plots.page import comparison_html

        return comparison_html(self.attributions)

    def explore(self, image: Any = None, *, index: int = 0) -> "Page":  # noqa: ANN401
        """All methods as a page to point into and recolour, shown by notebooks; it needs no server."""
        from vitrail.apps.web.downloads import explore

        return explore(self.attributions, image, index=index)

    def plot(self, image: Any = None, *, index: int = 0) -> Any:  # noqa: ANN401
        """All methods side by side for one sample."""
        from vitrail.plots import comparison_sheet

        return comparison_sheet([list(self.attributions)], image, index=index)
