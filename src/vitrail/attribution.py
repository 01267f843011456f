"""The result of a method: scores, what they belong to, and how they were made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.targets import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        own: what a score holds only because its token is read itself, where a method has such a part. It says nothing
            of what the model looked at and can dwarf what does, so pictures leave it out.
        readout: for text, the position the prediction is read from, -1 where it is not a single one. Its own entry
            says how much a token keeps of itself; it can dwarf the others, so pictures leave it out.
        pixels: a map of the image's own size, for methods that work on pixels.
        layers: one map per layer, first to last, where the method has them; for `consensus` one per part, by the
            names in `provenance["parts"]`.
        heads: one map per head, where the method has them.
        provenance: model, its fingerprint, library versions and backend; `seconds` spent on this result alone, and
            `shared_seconds` of what served several results of one `compare`, such as its forward pass; `residual`, for
            methods whose scores should add up, is what their sum lacks in each sample; `parts` and `disagreement`, of
            methods that add up others; `default`, why the best method did not apply where none was named.
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
        size = size or self.size
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

    def save(self, path: str | Path) -> Path:
        """Write the attribution as `.json` or `.npz`, or a picture of its first sample as `.png`, `.pdf` or `.html`."""
        from vitrail.storage import save

        return save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> "Attribution":
        """Read back what `save` wrote as `.json` or `.npz`; equal to what was saved."""
        from vitrail.storage import load

        return load(Path(path))

    def equals(self, other: "Attribution") -> bool:
        """Whether every field is the same, tensors entry by entry."""
        mine, theirs = vars(self), vars(other)
        return all(_same(mine[name], theirs[name]) for name in mine)

    def __repr__(self) -> str:
        """One line: what it is of, and how it was made."""
        what = f"{self.grid[0]}x{self.grid[1]} patches" if self.grid else f"{self.scores.shape[1]} tokens"
        return f"Attribution({self.label}, {self.target}, {len(self)} x {what}, preset={self.preset!r})"

    def _repr_html_(self) -> str:
        return self.to_html()


def _resize(maps: Float[Tensor, "b y x"], size: tuple[int, int]) -> Float[Tensor, "b h w"]:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    return a == b
