"""The words around a picture: titles, targets, line breaks."""

import re
from collections.abc import Sequence
from dataclasses import replace

from vitrail.attribution import Attribution
from vitrail.errors import OptionError
from vitrail.targets import Classes, Target


def check_index(attribution: Attribution, index: int) -> int:
    """The index counted from the front, after checking that there is such a sample."""
    batch = len(attribution)
    if not -batch <= index < batch:
        raise OptionError(f"there is no sample {index}: the attribution holds {batch}, counted from 0 to {batch - 1}.")
    return index % batch


def sample_target(attribution: Attribution, index: int) -> Target:
    """The target of one sample: its own class where every sample has one."""

    def own(classes: Classes) -> Classes:
        return classes[index] if isinstance(classes, tuple) and index < len(classes) else classes

    target = attribution.target
    return replace(target, first=own(target.first), second=own(target.second))


def common_target(attributions: Sequence[Attribution], index: int) -> str:
    """What all attributions of a row explain: the target if it is one, the class if only the scalars differ."""
    found = {sample_target(attribution, index) for attribution in attributions}
    classes = {(target.first, target.second) for target in found}
    if len(found) > 1 and len(classes) == 1 and all(t.second is None and t.first is not None for t in found):
        return f"class {next(iter(found)).first}"
    return " / ".join(sorted({str(target) for target in found}))


def wrap(text: str, width: int) -> str:
    """The text in lines of at most this many characters, broken after spaces, commas, brackets and underscores."""
    lines = [""]
    for part in re.findall(r"[^\s,(_]*[\s,(_]?", text):
        for chunk in (part[i : i + width] for i in range(0, len(part), width)):
            if lines[-1] and len(lines[-1]) + len(chunk.rstrip()) > width:
                lines.append("")
            lines[-1] += chunk
    return "\n".join(line.rstrip() for line in lines)
