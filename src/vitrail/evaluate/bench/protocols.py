"""Protocols: under which conventions an explanation is measured. Numbers of two protocols cannot be compared.

`chefer`: Chefer, Gur and Wolf, CVPR 2021, arXiv:2012.09838, with the authors' evaluation code.
`vtranm`: Wu et al. (TokenTM), CVPR 2024, arXiv:2403.14552; its area rule is open, here a trapezoid over 0..1.
`gradtoken`: Cheng et al., Neural Networks 2024; the best of ten thresholds for each method.
`attcat`: Qiang et al., NeurIPS 2022, as the released code measures: |p - p_k|, nine levels, class of the data set.
`cui`: Cui, Fan and Chen, arXiv:2605.11392; whole patches, class of the data set, a guide of another class beside each
picture. Theirs is a zebra, ours a golf ball unless `guide` names a file.
`vitrail`: ours, small and without labels, for `bench recommend` and first looks.
`sanity`: does the map depend on the weights (Adebayo et al., NeurIPS 2018, arXiv:1810.03292) and on the class?
`agreement`: how like each other are the maps of two methods?
`answers`: does an explanation of a language model's answer name the sentences of the context that it came from?
"""

from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import OptionError, suggest
from vitrail.methods.option_text import kinds_of, parse_call, read_options
from vitrail.targets import SPAN_SCALARS

Levels = tuple[float, ...]
TENTHS: Levels = tuple(k / 10 for k in range(10))
TWENTIETHS: Levels = tuple(k / 20 for k in range(21))
CLASSES = ("predicted", "label")


@dataclass(frozen=True)
class Protocol:
    """One table of conventions; every table of results names it.

    Args:
        metrics: what is measured, as far as a data set allows it.
        target: the explained class, `predicted` or the `label` of the data set; its probability is watched.
        judged: the class that counts as a hit, likewise; what is predicted where a set has no labels.
        view: `squash` resizes pictures to the model's size, as the papers do; `crop` cuts as the model's own
            preprocessing does, so masks and boxes no longer fit.
        threshold: of segmentation, the `mean` of each map or the `best` of 0, 0.1, ..., 0.9.
        levels: removed fractions, the clean image first.
        units: `pixels` or `patches`.
        area: the rule for the area under a curve.
        drops: whether AOPC and LOdds of pictures are reported.
        text_mode: how many tokens go at which level.
        absolute: whether AOPC takes absolute differences.
        kendall: between which lists tau is taken.
        ks: of token F1; of answers, how many sentences are removed, or kept alone.
        k: of Precision@K; of answers, the best so many per cent of the tokens that recall looks among.
        text_target: the explained class of texts.
        guide: a picture beside each, by its name in the package (`golf_ball`, `temple`) or its path; pictures of the
            class that the model sees in it are left out. Empty for none.
        ablations: of answers, how many random subsets of the sentences the linear datamodeling score is taken over.
        pool: how the scores of a sentence's tokens become one: their `sum`, `mean` or `max`.
        new_tokens: how long an answer may be.
        scalar: what is explained of an answer, its `log_probability` or its `log_odds`; measured is the former.
    """

    name: str
    metrics: tuple[str, ...]
    target: str = "predicted"
    judged: str = "label"
    view: str = "squash"
    threshold: str = "mean"
    levels: Levels = TENTHS
    fill: str = "black"
    units: str = "pixels"
    area: str = "chefer"
    drops: bool = False
    text_mode: str = "paper"
    absolute: bool = False
    kendall: str = "scores"
    ks: tuple[int, ...] = tuple(range(5, 85, 5))
    k: int = 20
    text_target: str = "label"
    guide: str = ""
    ablations: int = 64
    pool: str = "sum"
    new_tokens: int = 24
    scalar: str = "log_probability"

    def __post_init__(self) -> None:
        for name, table in CHOICES.items():
            if getattr(self, name) not in table:
                raise OptionError(
                    f"protocol {self.name}: {name}={getattr(self, name)!r} is not a choice. "
                    f"{suggest(getattr(self, name), table)}"
                )
        if len(self.levels) < 2 or self.levels[0] != 0 or list(self.levels) != sorted(set(self.levels)):
            raise OptionError(f"protocol {self.name}: levels must rise from 0 to at most 1, not be {self.levels}.")
        for name in ("ablations", "new_tokens"):
            if getattr(self, name) < LEAST[name]:
                raise OptionError(f"protocol {self.name}: {name}={getattr(self, name)}; it is at least {LEAST[name]}.")

    def table(self) -> dict[str, Any]:
        """The conventions as plain data; what is measured decides no number, so it is not among them."""
        known = {name: x for name, x in asdict(self).items() if name not in ("metrics", "guide")}
        if not self.guide:
            return known
        from vitrail.evaluate.bench.pictures import guide_identity

        return {**known, "guide": guide_identity(self.guide)}

    @property
    def shown_as(self) -> str:
        """The settings that decide how pictures are shown, how long answers are, and what is explained."""
        view = f"{self.view} beside {self.guide}" if self.guide else self.view
        return f"{view}, {self.scalar} of {self.new_tokens} new tokens"

    def target_of(self, kind: str) -> str:
        """The explained class of this kind of data."""
        return self.target if kind == "image" else self.text_target

    def with_(self, **changes: Any) -> "Protocol":  # noqa: ANN401
        """The protocol with other conventions, which then stand in its name."""
        known = {field.name for field in fields(self)} - {"name", "metrics"}
        for name in changes:
            if name not in known:
                raise OptionError(f"a protocol has no convention {name!r}. {suggest(name, known)}")
        tuples = {name: tuple(x) if isinstance(x, list) else x for name, x in changes.items()}
        if "levels" in tuples:
            tuples["levels"] = tuple(map(float, tuples["levels"]))  # 0 and 0.0 are one level
        real = {name: x for name, x in tuples.items() if getattr(self, name) != x}
        listed = []
        for name, x in real.items():
            brief = "+".join(map(str, x)) if isinstance(x, tuple) else Path(x).name if name == "guide" else x
            listed.append(f"{name}={brief}")
        return replace(self, **real, name=f"{self.name}({', '.join(listed)})") if real else self


LEAST = {"ablations": 2, "new_tokens": 1}
CHOICES: dict[str, tuple[str, ...]] = {
    "pool": ("sum", "mean", "max"),
    "scalar": tuple(SPAN_SCALARS),
    "target": CLASSES,
    "text_target": CLASSES,
    "judged": CLASSES,
    "view": ("squash", "crop"),
    "threshold": ("mean", "best"),
    "fill": ("black", "grey", "mean", "blur", "noise"),
    "units": ("pixels", "patches"),
    "area": ("chefer", "bi", "unit", "mean"),
    "text_mode": ("paper", "attcat", "eraser"),
    "kendall": ("scores", "attcat"),
}

_CURVES = ("positive", "negative")
PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("chefer", ("segmentation", *_CURVES, "token_f1")),
        Protocol("vtranm", ("segmentation", *_CURVES), levels=TWENTIETHS, area="unit", drops=True),
        Protocol(
            "gradtoken", ("segmentation", "voc", *_CURVES, "token_f1"), threshold="best", ks=tuple(range(10, 90, 10)),
        ),
        Protocol(
            "attcat", ("text_deletion", "text_padding", "kendall", "precision_at_k"), target="label",
            text_mode="attcat", absolute=True, kendall="attcat",
        ),
        Protocol("cui", _CURVES, target="label", units="patches", guide="golf_ball"),
        Protocol(
            "vitrail", (*_CURVES, "text_deletion", "text_padding"), judged="predicted", text_target="predicted",
            levels=(0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), area="mean",
        ),
        Protocol("sanity", ("randomisation", "class_sensitivity"), judged="predicted", text_target="predicted"),
        Protocol("agreement", ("ranks",), judged="predicted", text_target="predicted"),
        Protocol(
            "answers", ("gold_recall", "gold_rank", "lds", "answer_drop", "answer_sufficiency"), judged="predicted",
            text_target="predicted", ks=(1, 3), k=10,
        ),
    )
}  # fmt: skip


def find_protocol(text: str) -> Protocol:
    """The protocol of this name, with conventions changed in brackets: `cui(guide=zebra.png)`."""
    name, texts = parse_call(text, "a protocol")
    if name not in PROTOCOLS:
        raise OptionError(f"there is no protocol {name!r}. {suggest(name, PROTOCOLS)}")
    known = [field.name for field in fields(Protocol) if field.name not in ("name", "metrics")]
    return PROTOCOLS[name].with_(**read_options(texts, partial(kinds_of, Protocol), known, f"protocol {name}"))
