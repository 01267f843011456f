"""Several attributions of the same inputs."""

from collections.abc import Sequence
from typing import Any, overload

from vitrail.attribution import Attribution
from vitrail.errors import MethodError, suggest


class Comparison(Sequence[Attribution]):
    """Attributions of the same inputs by several methods, by position or by label."""

    def __init__(self, attributions: Sequence[Attribution]) -> None:
        self.attributions = tuple(attributions)

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
        return self._named(key) if isinstance(key, str) else self.attributions[key]

    def _named(self, name: str) -> Attribution:
        """The attribution of this label; where there is none, the only one of this method."""
        labelled = [a for a, label in zip(self.attributions, self.labels, strict=True) if label == name]
        found = labelled or [a for a in self.attributions if a.method == name]
        if len(found) == 1:
            return found[0]
        if not found:
            raise MethodError(f"{name!r} is not in this comparison. {suggest(name, self.labels)}")
        labels = ", ".join(a.label for a in found)
        raise MethodError(f"{name!r} names {len(found)} results of this comparison: {labels}. Use a label or a number.")

    def __len__(self) -> int:
        """How many methods were compared."""
        return len(self.attributions)

    def plot(self, image: Any = None, *, index: int = 0) -> Any:  # noqa: ANN401
        """All methods side by side for one sample."""
        from vitrail.plots import comparison_sheet

        return comparison_sheet([list(self.attributions)], image, index=index)
