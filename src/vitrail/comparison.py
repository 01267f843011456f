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
        """By position, or by label: `comparison["gae"]`."""
        if not isinstance(key, str):
            return self.attributions[key]
        for name, attribution in zip(self.labels, self.attributions, strict=True):
            if key in (name, attribution.method):
                return attribution
        raise MethodError(f"{key!r} is not in this comparison. {suggest(key, self.labels)}")

    def __len__(self) -> int:
        """How many methods were compared."""
        return len(self.attributions)

    def plot(self, image: Any = None, *, index: int = 0) -> Any:  # noqa: ANN401
        """All methods side by side for one sample."""
        from vitrail.plots import comparison_sheet

        return comparison_sheet([list(self.attributions)], image, index=index)
