"""The result of a method: scores, what they belong to, how they were made; several results together."""

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail import __version__
from vitrail.errors import (
    InputError,
    MethodError,
    MissingExtraError,
    NoSampleError,
    VitrailError,
    is_whole,
    shortened,
    suggest,
)
from vitrail.targets import FORMULAS, Classes, Target, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from vitrail.apps.web.downloads import Page
    from vitrail.plots.tables import RankedToken

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
        photographs: what the user gave for each sample: a path, a picture or an array.
        rows: the sample of the call that each sample is, where some were chosen.
    """

    pictures: tuple[Any, ...] | None = None
    borrowed: weakref.ref[Tensor] | None = None
    signal: bool = False
    preprocess: Callable[[Any], tuple[Tensor | None, Any]] | None = None
    photographs: tuple[Any, ...] | None = None
    rows: tuple[int, ...] | None = None

    def take(self, rows: Sequence[int]) -> "SeenPictures":
        """Return the pictures of some samples, in the order given."""
        return replace(self, rows=tuple(rows if self.rows is None else (self.rows[row] for row in rows)))

    def photograph(self, index: int) -> Any:  # noqa: ANN401
        """Return what the user gave for one sample, or None."""
        index = index if self.rows is None else self.rows[index]
        return None if self.photographs is None else self.photographs[index]

    def __call__(self, index: int) -> Any:  # noqa: ANN401
        """The picture of one sample; None where it is gone."""
        index = index if self.rows is None else self.rows[index]
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
    """Return what is explained of each sample in the names of the classes; None where they are not known.

    A configuration of transformers calls a class `LABEL_3` that has no name.
    """
    if target.first is None or target.position is not None:
        return None
    columns = [_each(classes, samples) for classes in (target.first, target.second) if classes is not None]
    held = names if isinstance(names, Mapping) else range(len(names))
    used = {index for column in columns for index in column}
    if any(index not in held or names[index] == f"LABEL_{index}" for index in used):
        return None
    return [" rather than ".join(_first_name(str(names[i])) for i in pair) for pair in zip(*columns, strict=True)]


def _first_name(name: str) -> str:
    """Return the first of a class's names, which are separated by commas; a token in quotes may be a comma."""
    return name if name.startswith(("'", '"')) else name.split(",")[0]


def _each(classes: Classes, samples: int) -> list[int]:
    return list(classes) if isinstance(classes, tuple) and len(classes) == samples else [only(classes)] * samples


def sample_target(attribution: "Attribution", index: int) -> Target:
    """The target of one sample: its own class where every sample has one."""

    def own(classes: Classes) -> Classes:
        return classes[index] if isinstance(classes, tuple) and index < len(classes) else classes

    target = attribution.target
    return replace(target, first=own(target.first), second=own(target.second))


NOUNS = {"next_token": "token", "next_token_probability": "token"}
"""What the indices of a target count, if not classes."""


def target_title(target: Target) -> str:
    """Return what a target of one sample is called where its class has no name: `class 3 rather than class 5`."""
    if target.first is None or target.name not in FORMULAS:
        return str(target)
    noun = NOUNS.get(target.name, "class")
    where = "" if target.position is None else f" at token {target.position}"
    found = (f"{noun} {index}" for index in (target.first, target.second) if index is not None)
    return f"{' rather than '.join(found)}{where}"


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
        """Return the number of samples in the batch."""
        return self.scores.shape[0]

    def __getitem__(self, key: SupportsIndex | slice) -> "Attribution":
        """Return one sample or some samples of the batch. The batch axis stays: one sample is a batch of one.

        Args:
            key: a number, from the end if it is negative, or a slice.

        Returns:
            An attribution of these samples, with their tokens, targets, pictures and streams.

        Raises:
            NoSampleError: where there is no such sample.

        Example:
            >>> import vitrail
            >>> both = vitrail.explain("sentiment", ["a small miracle of a film", "endless and dull"], "attcat")
            >>> both[1].title(probable=False), len(both[1])
            ('negative', 1)
        """
        count = len(self)
        if isinstance(key, slice):
            rows = range(count)[key]
        elif is_whole(key) and -count <= key < count:
            start = int(key) % count
            rows = range(start, start + 1)
        else:
            raise NoSampleError(f"there is no sample {shortened(key)}: {count} samples are numbered from 0.")
        if not rows:
            raise NoSampleError(f"{shortened(key)} chooses none of {count} samples.")
        return _take(self, rows)

    def __iter__(self) -> Iterator["Attribution"]:
        """Yield the samples one by one, each as a batch of one."""
        return (self[index] for index in range(len(self)))

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

    def numpy(self) -> np.ndarray:
        """Return the scores as an array of NumPy.

        Returns:
            An array `[b, n]`, one score per patch or token; padding is zero.

        Example:
            >>> import vitrail
            >>> vitrail.explain("sentiment", "a small miracle of a film", "attcat").numpy().shape
            (1, 8)
        """
        return self.scores.detach().cpu().numpy()

    def top(self, k: int = 5, *, index: int = 0) -> "list[RankedToken]":
        """Return the tokens or patches of one sample that count most, the strongest first.

        Signed scores are ranked by their magnitude and keep their sign. What tokens carry to themselves is left out,
        as in pictures: `own` and the score of the token that the prediction is read from.

        Args:
            k: how many, at most.
            index: the sample of the batch.

        Returns:
            A list of `(text, score, position)`: the token as text, or the row and column of a patch.

        Raises:
            OptionError: where `k` is below 1, or there is no such sample.

        Example:
            >>> import vitrail
            >>> found = vitrail.explain("sentiment", "a small miracle of a film", "attcat")
            >>> [token.text for token in found.top(2)]
            ['miracle', 'small']
        """
        from vitrail.plots.tables import rank

        return rank(self, k, index)

    def to_dataframe(self) -> "DataFrame":
        """Return a table of pandas with a row for each sample and token or patch, without padding.

        Returns:
            Columns `sample`, `target` (by name where it is known), `position`, `token` (text) or `row` and `column`
            (patches), `score` as pictures show it, and `own`, what the token carries to itself and pictures leave
            out. Their sum is the entry of `scores`. A model with several streams has a column `stream` too.

        Raises:
            MissingExtraError: where pandas is not installed.

        Example:
            >>> import vitrail
            >>> table = vitrail.explain("sentiment", "a small miracle of a film", "attcat").to_dataframe()
            >>> table.nlargest(1, "score")["token"].item()
            'miracle'
        """
        from vitrail.plots.tables import data_frame

        return data_frame([self])

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
        return _explore([self], image, index)

    def show(self, image: Any = None, *, index: int = 0, **style: Any) -> None:  # noqa: ANN401
        """Show one sample: in a notebook below the cell, a text in a terminal as shaded words, else in a window.

        Args:
            image: the picture to lay the map over; None takes the one that was explained.
            index: the sample of the batch.
            **style: as for `plot`.

        Raises:
            MissingExtraError: where matplotlib or rich is not installed.
            OutputError: where there is no screen.

        Example:
            >>> import vitrail
            >>> vitrail.explain("sentiment", "a small miracle of a film", "attcat").show()
            [CLS] a small miracle of a film [SEP]
        """
        from vitrail.plots.screen import show

        show(self, image, index=index, **style)

    def save(
        self,
        path: str | Path,
        image: Any = None,  # noqa: ANN401
        *,
        index: int = 0,
        map_only: bool = False,
        **style: Any,  # noqa: ANN401
    ) -> Path:
        """Write the attribution as `.json` or `.npz`, or a picture of one sample as `.png`, `.svg`, `.pdf` or `.html`.

        `.json` and `.npz` hold everything and can be read back with `load`.

        Args:
            path: the file; its suffix says what is written.
            image: the picture to lay the map over; None takes the one that was explained.
            index: the sample that is drawn.
            map_only: write the map alone, transparent where it is weak, to lay over the picture in another program.
                Only `.png`.
            **style: as for `plot`, such as `colorbar=False` or `title=""`.

        Returns:
            The path.

        Raises:
            OutputError: where the suffix is not known or the file cannot be written.
            MissingExtraError: where a picture is asked for and matplotlib is not installed.

        Example:
            >>> import vitrail
            >>> found = vitrail.explain("photo", vitrail.zoo.example(), "gae")
            >>> found.save("map.svg", colorbar=False).name
            'map.svg'
        """
        from vitrail.storage import save

        return save(self, path, image, index=index, map_only=map_only, **style)

    @staticmethod
    def load(path: str | Path) -> "Attribution":
        """Read back what `save` wrote as `.json` or `.npz`; equal to what was saved."""
        from vitrail.storage import load

        return load(path)

    def equals(self, other: "Attribution") -> bool:
        """Return True if every field is the same, tensors entry by entry."""
        mine, theirs = vars(self), vars(other)
        return all(_same(mine[name], theirs[name]) for name in mine if name != "seen")

    @property
    def titles(self) -> str:
        """The explained targets of all samples, in a few words: `golf ball`, or `tabby / class 7 / 3 more`.

        Example:
            >>> import vitrail
            >>> vitrail.explain("sentiment", "a small miracle of a film", "attcat").titles
            'positive'
        """
        found = list(dict.fromkeys(self.title(index, probable=False) for index in range(len(self))))
        rest = [f"{len(found) - TITLES} more"] if len(found) > TITLES + 1 else found[TITLES:]
        return " / ".join([*found[:TITLES], *rest])

    def title(self, index: int = 0, *, probable: bool = True) -> str:
        """Return what is explained of one sample: its class by name where that is known, else the target.

        Args:
            index: the sample of the batch.
            probable: add the probability of the class, where it is known.
        """
        names, likely = self.provenance.get("classes"), self.provenance.get("probability")
        own = f", {likely[index]:.1%}" if probable and likely and index < len(likely) else ""
        if names and index < len(names):
            return f"{names[index]}{own}"
        return f"{target_title(sample_target(self, index))}{own}"

    def __repr__(self) -> str:
        """One line: what it is of, and how it was made."""
        what = f"{self.grid[0]}x{self.grid[1]} patches" if self.grid else f"{self.scores.shape[1]} tokens"
        return f"Attribution({self.label}, {self.titles}, {len(self)} x {what}, preset={self.preset!r})"

    def _repr_html_(self) -> str | None:
        """For notebooks; None, where matplotlib is not installed, shows the text."""
        with suppress(MissingExtraError):
            return self.to_html()
        return None


TITLES = 3
"""Targets that are named where a result is summed up in a line."""
PER_SAMPLE = ("residual", "disagreement", "probability", "classes")
"""Names of the provenance that hold a list with an entry for each sample."""


def _take(attribution: Attribution, rows: range) -> Attribution:
    """Return some samples of an attribution; tensors are views where samples are in a row."""
    chosen = slice(rows.start, rows.stop, rows.step) if rows.step > 0 else list(rows)
    provenance, count = dict(attribution.provenance), len(attribution)
    for name in PER_SAMPLE:
        if (found := provenance.get(name)) is not None and len(found) == count:
            provenance[name] = [found[row] for row in rows]
    tokens, seen = attribution.tokens, attribution.seen
    return replace(
        attribution,
        **{name: x[chosen] for name, x in vars(attribution).items() if isinstance(x, Tensor)},
        tokens=None if tokens is None else tuple(tokens[row] for row in rows),
        target=attribution.target.take(torch.tensor(rows)),
        provenance=provenance,
        streams={name: _take(one, rows) for name, one in attribution.streams.items()},
        seen=None if seen is None else seen.take(rows),
    )


def _explore(attributions: Sequence[Attribution], image: Any, index: int) -> "Page":  # noqa: ANN401
    """Return the page of attributions, or raise the error that says what to install for it."""
    try:
        from vitrail.apps.web.downloads import explore

        return explore(attributions, image, index=index)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the page needs {error.name}: pip install 'vitrail[app]'") from error


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
        """Return the number of methods that were compared."""
        return len(self.attributions)

    def __repr__(self) -> str:
        """One line: the methods, and what they explain."""
        found = self.attributions
        what = f"{found[0].titles}, {len(found[0])} samples" if found else "nothing"
        return f"Comparison({', '.join(self.labels)}; {what})"

    def _repr_html_(self) -> str | None:
        """The first sample, every method side by side; None, where matplotlib is not installed, shows the text."""
        from vitrail.plots.page import comparison_html

        with suppress(MissingExtraError):
            return comparison_html(self.attributions)
        return None

    def to_dataframe(self) -> "DataFrame":
        """Return the tables of all methods in one, see `Attribution.to_dataframe`; a column `method` tells them apart.

        Returns:
            A table of pandas, method after method.

        Raises:
            MissingExtraError: where pandas is not installed.

        Example:
            >>> import vitrail
            >>> maps = vitrail.compare("photo", vitrail.zoo.example(), ["gae", "rollout"])
            >>> maps.to_dataframe().groupby("method")["score"].count().to_dict()
            {'gae': 256, 'rollout': 256}
        """
        from vitrail.plots.tables import data_frame

        return data_frame(self.attributions, methods=self.labels)

    def explore(self, image: Any = None, *, index: int = 0) -> "Page":  # noqa: ANN401
        """All methods as a page to point into and recolour, shown by notebooks; it needs no server."""
        return _explore(self.attributions, image, index)

    def save(self, path: str | Path, image: Any = None, *, index: int = 0) -> Path:  # noqa: ANN401
        """Write the picture of all methods side by side as `.png`, `.svg` or `.pdf`.

        Args:
            path: the file; its suffix says what is written.
            image: the picture to lay the maps over; None takes the one that was explained.
            index: the sample that is drawn.

        Returns:
            The path.

        Raises:
            OutputError: where the suffix is not known or the file cannot be written.
            MissingExtraError: where matplotlib is not installed.

        Example:
            >>> import vitrail
            >>> vitrail.compare("photo", vitrail.zoo.example(), ["gae", "rollout"]).save("maps.pdf").name
            'maps.pdf'
        """
        from vitrail.storage import save_figure

        return save_figure(self.plot(image, index=index), path)

    def plot(self, image: Any = None, *, index: int = 0) -> "Figure":  # noqa: ANN401
        """All methods side by side for one sample."""
        from vitrail.plots import comparison_sheet

        return comparison_sheet([list(self.attributions)], image, index=index)
