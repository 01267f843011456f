"""What an audit finds: pictures whose label a model doubts, the pairs of classes they fall into, and all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """A picture whose label the model doubts.

    Args:
        apart: how far the evidence for the label lies from that for the rival, see `distance`.
        picture: what the model saw, and the contrast over it, as bytes of a JPEG.
    """

    path: Path
    label: int
    rival: int
    label_probability: float
    rival_probability: float
    apart: float
    picture: bytes = field(repr=False, default=b"")
    contrast: bytes = field(repr=False, default=b"")

    @property
    def gap(self) -> float:
        """What pictures are ranked by: how much likelier the model finds the rival, from -1 to 1."""
        return self.rival_probability - self.label_probability


@dataclass(frozen=True)
class Pair:
    """Two classes, and the pictures of the first whose rival is the second."""

    label: int
    rival: int
    findings: tuple[Finding, ...]

    @property
    def weight(self) -> float:
        """What pairs are ranked by: the rival's probability times how far apart the evidence lies, summed."""
        return sum(finding.rival_probability * finding.apart for finding in self.findings)


@dataclass(frozen=True)
class Audit:
    """What was found, the most suspicious first.

    Args:
        agreed: in how many of the pictures the label is what the model predicts.
        broken: files that could not be read, and why.
        left_out: folders that are named after no class, and why.
    """

    folder: Path
    names: tuple[str, ...]
    method: str
    images: int
    agreed: int
    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[str, str]

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of classes, by weight."""
        ordered = sorted(self.findings, key=lambda found: (found.label, found.rival))
        grouped = groupby(ordered, key=lambda found: (found.label, found.rival))
        return sorted((Pair(*key, tuple(some)) for key, some in grouped), key=lambda pair: -pair.weight)

    def name(self, index: int) -> str:
        """The first name of a class."""
        return self.names[index].split(",")[0]

    def to_html(self, *, most: int = 60) -> str:
        """A page with everything in it, at most so many pictures."""
        from vitrail.tools.audit_page import to_page

        return to_page(self, most=most)

    def save(self, path: str | Path, *, most: int = 60) -> Path:
        """Write the page; it needs no other file."""
        from vitrail.storage import write_bytes

        return write_bytes(Path(path), self.to_html(most=most).encode())


def distance(scores: Float[Tensor, "y x"]) -> float:
    """How far the centre of what is positive lies from the centre of what is negative, as a share of the diagonal.

    0 where one of the two is missing; 1 from corner to corner.
    """
    places = torch.cartesian_prod(*((torch.arange(n, dtype=scores.dtype) + 0.5) / n for n in scores.shape))
    weights = torch.stack([scores.clamp(min=0).flatten(), (-scores).clamp(min=0).flatten()])
    if not bool((weights.sum(dim=1) > 0).all()):
        return 0.0
    centres = weights @ places / weights.sum(dim=1, keepdim=True)
    return float((centres[0] - centres[1]).norm() / 2**0.5)
