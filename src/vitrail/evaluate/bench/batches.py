"""A batch of examples as a model takes it; an example that cannot be read is kept with the reason, the others go on."""

from collections.abc import Callable, Sequence
from typing import Any

from vitrail.evaluate.bench.opened import Opened
from vitrail.evaluate.bench.pictures import Pictures, read_pictures
from vitrail.evaluate.bench.settings import Broken, Settings
from vitrail.evaluate.bench.texts import Texts, read_questions, read_texts

Batch = Pictures | Texts
READERS: dict[str, Callable[[Opened, Settings, Sequence[Any], str], tuple[Batch, Broken]]] = {
    "image": read_pictures,
    "text": read_texts,
    "question": read_questions,
}
