"""The table of methods: one line each, with its paper and its presets.

A method is built by the function `module:function` of this package. It is imported when the method first runs, so that
the table can be read without importing torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.errors import MethodError, shortened, suggest
from vitrail.methods.option_text import parse_call, read_options
from vitrail.methods.table import ByKind, Method, MethodTable, Preset

_SAME: Preset = {}
_TEXT_OWN = ByKind(image=False, text=True)
_RELEASED: Mapping[str, Preset] = {"paper": _SAME, "official": _SAME}
_ZEROED: Mapping[str, Preset] = {"paper": _SAME, "official": {"zero_readout": _TEXT_OWN}}
"""Presets of several methods: released code that computes the paper, or that drops the readout's own score of text."""


DEFAULT_METHOD = "auto"
"""The first of `DEFAULTS` that applies. `explain` and `compare` take this name; it is not an entry of `METHODS`."""
PREFERRED = "consensus"
"""The method that `auto` mostly is, whose options it takes."""
CONTRAST = "contrast"
"""The preset of `consensus` that explains by default why one class and not another: with signs."""
DEFAULTS = {
    "prediction": (PREFERRED, "gae", "integrated_gradients"),
    "contrast": (PREFERRED, "complete_gradient", "integrated_gradients"),
    "answer": ("soft_ablation", "gae", "integrated_gradients"),
    "several sequences": ("attn_lrp", "gae", "complete_gradient", "integrated_gradients"),
    "no attention": ("integrated_gradients",),
}
"""The methods that explain where none is named, best first, by what is explained and what is known of the model.

Contrasts of two classes are explained by methods with signs, so that evidence for the other class is seen.
`consensus` does not run on the long texts of answers. On several sequences of tokens `attn_lrp` found planted tokens
most often, see docs/streams.md. The last case is attention that cannot be followed.
"""
READABLE = {
    "image": (DEFAULT_METHOD, "gae", "tokentm", "attn_lrp", "grad_cam", "rollout"),
    "text": (DEFAULT_METHOD, "gae", "attn_lrp", "attcat", "integrated_gradients", "rollout"),
}
"""What `compare` shows where no method is named: the default first, then one method of each family."""

_BI_MODAL: Preset = {"cross": "normalised"}
_FORWARD = "1 forward"
_EMBEDS = ByKind(image="embedding_output", text="inputs_embeds")
_PATH = "steps forward, each with a backward of the last block"
_LEVEL: Preset = {"level": ByKind(image="pixels", text="embedding_output")}
_BEST: Preset = {
    "parts": ByKind(image="gae+0.5*attn_lrp+le_grad+0.5*att_grads", text="blanked_lrp"),
    "power": ByKind(image=0.5, text=1.0),
    "negative": ByKind(image="drop", text="keep"),
    "smooth": ByKind(image=0.4, text=0.0),
}
_FINE: Preset = {**_BEST, "parts": "lengths+0.5*attn_lrp+le_grad+0.5*att_grads", "detail": "pixels"}
_SPANS: Preset = {"parts": "attn_lrp+agcam", "power": 1.0, "negative": "keep", "smooth": 1.0}
_CONTRAST: Preset = {
    "parts": ByKind(image="attn_lrp", text="blanked_lrp"),
    "power": 1.0,
    "negative": "keep",
    "smooth": ByKind(image=1.0, text=0.0),
}

METHODS = MethodTable(
    [
        Method(
            "consensus", "consensus:build", "our own: four published methods together, see docs/CONSENSUS.md",
            {"paper": _BEST, "fine": _FINE, "spans": _SPANS, CONTRAST: _CONTRAST}, signed_by={"negative": "keep"},
            kind="rules", cost="1 forward + 3 backward (text: 4 + 3; pixels: 5 + 12)",
        ),
        Method(
            "raw_attention", "rollout:build_raw", "last layer's attention, no paper of its own",
            _ZEROED, class_specific=False, cost=_FORWARD,
        ),
        Method(
            "rollout", "rollout:build", "Abnar & Zuidema, ACL 2020, arXiv:2005.00928",
            {"paper": _SAME, "official": {"start_layer": ByKind(image=1, text=0), "zero_readout": _TEXT_OWN}},
            class_specific=False, cost=_FORWARD,
        ),
        Method(
            "grad_cam", "grad_cam:build", "Selvaraju et al., ICCV 2017; on attention: Chefer et al., CVPR 2021",
            _ZEROED,
        ),
        Method(
            "gae", "gae:build", "Chefer, Gur & Wolf, ICCV 2021, arXiv:2103.15679",
            {"recommended": _SAME, "paper": _BI_MODAL, "official": _BI_MODAL},
        ),
        Method("complete_gradient", "gae:build_complete", "Cui, Fan & Chen, arXiv:2605.11392", signed=True),
        Method("absolute_gradient", "gae:build_absolute", "Cui, Fan & Chen, arXiv:2605.11392"),
        Method("tokentm", "tokentm:build", "Wu et al. (VTranM / TokenTM), CVPR 2024, arXiv:2403.14552"),
        Method("gradtoken", "gradtoken:build", "Cheng et al., Neural Networks 2024", signed_by={"heads": "mean"}),
        Method(
            "attcat", "attcat:build", "Qiang et al., NeurIPS 2022",
            {"paper": {"states": "output"}, "official": {"states": "input"}},
            signed=True, prepare_by="options:mask_special_tokens",
        ),
        Method("cat", "attcat:build_cat", "Qiang et al., NeurIPS 2022", {"paper": {"states": "output"}}, signed=True),
        Method("grads", "attcat:build_grads", "baseline of Qiang et al., NeurIPS 2022", signed=True),
        Method("att_grads", "grad_cam:build_att_grads", "Barkan et al. (Grad-SAM), CIKM 2021, arXiv:2204.11073"),
        Method(
            "lrp", "lrp:build", "Bach et al., PLoS ONE 2015; for Transformers: Chefer et al., CVPR 2021",
            {"paper": _LEVEL, "official": _LEVEL}, signed=True, kind="rules",
        ),
        Method("partial_lrp", "lrp:build_partial", "Voita et al., ACL 2019, arXiv:1905.09418", _ZEROED, kind="rules"),
        Method(
            "transformer_attribution", "transformer_attribution:build",
            "Chefer, Gur & Wolf, CVPR 2021, arXiv:2012.09838",
            {
                "paper": _SAME,
                "official": {
                    "start_layer": ByKind(image=0, text=-1),
                    "normalise": _TEXT_OWN,
                    "own": ByKind(image="keep", text="minimum"),
                },
            },
            kind="rules", cost="2 forward + 2 backward",
        ),
        Method(
            "bi_head", "bi:build_head", "Chen et al. (Beyond Intuition), TMLR 2023",
            _ZEROED, cost=f"{_PATH} + 1 backward", kind="rerun",
        ),
        Method(
            "bi_token", "bi:build_token", "Chen et al. (Beyond Intuition), TMLR 2023",
            _ZEROED, cost=_PATH, kind="rerun",
        ),
        Method(
            "tam", "tam:build", "Yuan et al., NeurIPS workshop XAI4Debugging 2021",
            _RELEASED, cost=_PATH, kind="rerun",
        ),
        Method(
            "integrated_gradients", "integrated_gradients:build", "Sundararajan et al., ICML 2017, arXiv:1703.01365",
            {"paper": _LEVEL}, signed=True, cost="steps + 2 forward + steps backward", kind="rerun",
        ),
        Method(
            "conservative_lrp", "conservative_lrp:build", "Ali et al., ICML 2022, arXiv:2202.07304",
            {"paper": _SAME, "official": _SAME, "lxt": {"rules": "lxt", "level": _EMBEDS}}, signed=True, kind="rules",
        ),
        Method(
            "attn_lrp", "attn_lrp:build", "Achtibat et al., ICML 2024, arXiv:2402.05602",
            {"paper": _SAME, "official": {"level": _EMBEDS}}, signed=True, kind="rules",
        ),
        Method(
            "libra_grad", "libra_grad:build", "Mehri et al. (LibraGrad), CVPR 2025, arXiv:2411.16760",
            signed=True, kind="rules",
        ),
        Method("gim", "gim:build", "Edin et al. (GIM), 2025, arXiv:2505.17630", signed=True, kind="rules"),
        Method(
            "abs_lrp", "abs_lrp:build", "Vukadin et al., 2024, arXiv:2412.09311",
            {"paper": _LEVEL, "official": _LEVEL}, signed=True, kind="rules", cost="2 forward + 2 backward",
        ),
        Method(
            "input_x_gradient", "integrated_gradients:build_input_x_gradient",
            "Shrikumar et al., 2016, arXiv:1605.01713", signed=True,
        ),
        Method(
            "grad_eclip", "grad_eclip:build", "Zhao et al., ICML 2024, arXiv:2502.18816",
            _RELEASED, kind="rerun", cost="2 forward + 1 backward", models="CLIP",
        ),
        Method(
            "grad_eclip_heads", "grad_eclip:build_heads", "our extension of Zhao et al., ICML 2024, arXiv:2502.18816",
        ),
        Method(
            "feature_grad_cam", "grad_cam:build_features", "Selvaraju et al., ICCV 2017, arXiv:1610.02391",
            _RELEASED,
        ),
        Method(
            "agcam", "agcam:build", "Leem & Seo, AAAI 2024, arXiv:2402.04563",
            {"paper": _SAME, "official": {"detach": True}},
        ),
        Method(
            "dix", "dix:build", "Barkan et al., CIKM 2023",
            {"paper": _SAME, "official": {"inject": "last"}},
            cost="1 forward, then 2 (steps + 1) forward + backward", kind="rerun",
        ),
        Method(
            "le_grad", "le_grad:build", "Bousselham et al., ICCV 2025, arXiv:2404.03214",
            {"paper": _SAME, "official": {"blocks": 2}},
            cost="1 forward + 1 backward, and the head once for each block",
        ),
        Method(
            "ifr", "ifr:build", "Ferrando & Voita, EMNLP 2024, arXiv:2403.00824",
            {"paper": _SAME, "official": {"rows": "tokens"}}, inputs=("text",), class_specific=False, cost=_FORWARD,
            models="blocks that normalise before attention",
        ),
        Method(
            "flashtrace", "ifr:build_flashtrace", "Pan et al. (FlashTrace), ICML 2026, arXiv:2602.01914",
            {"paper": _SAME, "official": {"rows": "tokens"}}, inputs=("text",), class_specific=False, cost=_FORWARD,
            models="blocks that normalise before attention",
        ),
        Method(
            "context_cite", "context_cite:build", "Cohen-Wang et al., NeurIPS 2024, arXiv:2409.00729",
            inputs=("text",), signed=True, kind="rerun", cost="2 + ablations forward",
        ),
        Method(
            "soft_ablation", "soft_ablation:build", "ours; the derivative of Owen's multilinear extension, 1972",
            inputs=("text",), signed=True, kind="rerun", cost="2 forward + 1 backward",
            models="causal language models",
        ),
        Method(
            "leave_one_out", "ablation:build_leave_one_out", "a reference: one token removed at a time",
            inputs=("text",), signed=True, kind="rerun", cost="2 forward + 1 for each token",
        ),
        Method(
            "sentence_drop", "ablation:build_sentence_drop", "a reference: one sentence removed at a time",
            inputs=("text",), signed=True, kind="rerun", cost="2 forward + 1 for each sentence",
        ),
        Method(
            "vit_cx", "vit_cx:build", "Xie et al. (ViT-CX), IJCAI 2023, arXiv:2211.03064",
            _RELEASED, inputs=("image",), kind="rerun",
            cost="1 forward, then 2 forward for each group of feature maps (1 if noise=0)",
        ),
        Method(
            "tis", "tis:build", "Englebert et al. (Transformer Input Sampling), ICCV Workshops 2023",
            _RELEASED, inputs=("image",), kind="rerun",
            cost="1 forward, then 1 forward on a part of the tokens for each mask (1024)",
        ),
    ]
)  # fmt: skip


register_method = METHODS.register


def find_method(name: object, kind: str | None = None) -> Method:
    """Return the method of this name; raise if there is none, or if it does not explain this kind of input."""
    if not isinstance(name, str) or name not in METHODS:
        raise MethodError(f"unknown method {shortened(name)}. {suggest(name, METHODS)}")
    entry = METHODS[name]
    if kind is not None:
        check_kind(entry, kind)
    return entry


def check_kind(entry: Method, kind: str) -> None:
    """Refuse inputs of a kind that a method does not explain."""
    if kind not in entry.inputs:
        raise MethodError(f"{entry.name} explains {' and '.join(entry.inputs)} inputs, but these are {kind}.")


Spec = tuple[str, dict[str, Any]]
"""A method as a user writes it, `gradtoken(scheme=none, depth=2)`: its name and its options."""


def parse_spec(text: str, *, auto: bool = False) -> Spec:
    """The method and its options, each of the option's type.

    Args:
        auto: whether `auto` may be named, which stands for the best method that applies and takes its options.
    """
    name, texts = parse_call(text, "a method")
    if name == DEFAULT_METHOD and not auto:
        raise MethodError(f"{DEFAULT_METHOD} is for vitrail explain, compare and report: name a method here.")
    entry = find_method(PREFERRED if name == DEFAULT_METHOD else name)

    def kinds(option: str) -> Sequence[type]:
        return (str,) if option == "preset" else entry.kinds_of(option)

    return name, read_options(texts, kinds, [*entry.options, "preset"], name)
