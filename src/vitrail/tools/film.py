"""What `transfer` gives back: the prediction and its explanation, step by step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OutputError, suggest
from vitrail.storage import finite, json_text
from vitrail.targets import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = 7


@dataclass(frozen=True, eq=False)
class Transfer:
    """One entry for the model as it is and one after each update of its attention maps.

    Args:
        target: one class for each sample, the same in all steps.
        logits: with the maps of each step put in place of the model's own.
        scalar: the target's value, which the updates follow.
        attributions: the explanation of each step.
        attention: the maps of every block after the last update, first block to last.
        clean: the logits of the model as it is, computed by its own attention.
        settings: eta, steps, direction, gradient, renormalise.
    """

    target: Target
    logits: Float[Tensor, "s b c"]
    scalar: Float[Tensor, "s b"]
    attributions: tuple[Attribution, ...]
    attention: tuple[Float[Tensor, "b h q k"], ...]
    clean: Float[Tensor, "b c"]
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        """How many pictures the film has: one more than updates."""
        return len(self.attributions)

    @property
    def maps(self) -> Float[Tensor, "s b n"]:
        """The scores of all steps."""
        return torch.stack([attribution.scores for attribution in self.attributions])

    @property
    def probabilities(self) -> Float[Tensor, "s b c"]:
        """The softmax over classes; of a single logit, its sigmoid."""
        return self.logits.sigmoid() if self.logits.shape[2] == 1 else self.logits.softmax(dim=2)

    @property
    def deviation(self) -> float:
        """How far the logits are from the model's own when its unchanged maps are put in: 0 where bit for bit."""
        return float((self.logits[0] - self.clean).abs().max())

    def plot(
        self,
        image: Any = None,  # noqa: ANN401
        *,
        index: int = 0,
        frames: int = FRAMES,
        title: str | None = None,
    ) -> "Figure":
        """A film strip of one sample: maps of evenly spaced steps, first and last among them.

        Args:
            image: what to draw the maps over; a sentence needs none.
            title: in place of the target.
        """
        from vitrail.plots.film import film_strip

        return film_strip(self, image, index=index, frames=frames, title=title)

    def gif(self, image: Any = None, *, index: int = 0, title: str | None = None) -> bytes:  # noqa: ANN401
        """All steps of one sample as an animated GIF."""
        from vitrail.plots.film import film_gif

        return film_gif(self, image, index=index, title=title)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of all steps, as JSON holds them."""
        return finite(
            {
                "format": "vitrail.transfer",
                "target": {"name": self.target.name, "first": self.target.first, "second": self.target.second},
                "settings": dict(self.settings),
                "deviation": self.deviation,
                "grid": self.attributions[0].grid,
                "tokens": self.attributions[0].tokens,
                "scalar": self.scalar.tolist(),
                "logits": self.logits.tolist(),
                "scores": self.maps.tolist(),
            }
        )

    def save(
        self,
        path: str | Path,
        image: Any = None,  # noqa: ANN401
        *,
        index: int = 0,
        title: str | None = None,
    ) -> Path:
        """Write the film strip as `.png`, `.pdf` or `.svg`, the film as `.gif`, the numbers as `.json`."""
        from vitrail.storage import write_bytes

        path = Path(path)
        if path.suffix.lower() not in WRITERS:
            raise OutputError(f"{path} has no known ending. {suggest(path.suffix, WRITERS)}")
        return write_bytes(path, WRITERS[path.suffix.lower()](self, image, index, title))


def _strip(film: Transfer, image: Any, index: int, title: str | None, *, form: str) -> bytes:  # noqa: ANN401
    from vitrail.plots.canvas import rendered

    return rendered(film.plot(image, index=index, title=title), form)


WRITERS: dict[str, Callable[[Transfer, Any, int, str | None], bytes]] = {
    ".png": partial(_strip, form="png"),
    ".pdf": partial(_strip, form="pdf"),
    ".svg": partial(_strip, form="svg"),
    ".gif": lambda film, image, index, title: film.gif(image, index=index, title=title),
    ".json": lambda film, image, index, title: json_text(film.to_dict()).encode(),
}
