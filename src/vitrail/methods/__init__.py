"""The table of methods: one line each, with its paper and its presets."""

from vitrail.methods import (
    attcat,
    attention_and_gradient,
    attention_gradients,
    gae,
    grad_cam,
    gradtoken,
    raw_attention,
    rollout,
    tokentm,
)
from vitrail.methods.special_tokens import mask_special_tokens
from vitrail.methods.table import ByKind, Method, Preset

_TEXT_OWN = ByKind(image=False, text=True)
_SAME: Preset = {}

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "raw_attention", raw_attention.build, "last layer's attention, no paper of its own",
            {"paper": _SAME, "official": {"zero_readout": _TEXT_OWN}}, class_specific=False, backward=0,
        ),
        Method(
            "rollout", rollout.build, "Abnar & Zuidema, ACL 2020, arXiv:2005.00928",
            {"paper": _SAME, "official": {"start_layer": ByKind(image=1, text=0), "zero_readout": _TEXT_OWN}},
            class_specific=False, backward=0,
        ),
        Method(
            "grad_cam", grad_cam.build, "Selvaraju et al., ICCV 2017; on attention: Chefer et al., CVPR 2021",
            {"paper": _SAME, "official": {"zero_readout": _TEXT_OWN}},
        ),
        Method(
            "gae", gae.build, "Chefer, Gur & Wolf, ICCV 2021, arXiv:2103.15679",
            {"paper": _SAME, "official": _SAME},
        ),
        Method(
            "complete_gradient", attention_and_gradient.build_complete, "Cui, Fan & Chen, arXiv:2605.11392",
            {"paper": _SAME}, signed=True,
        ),
        Method(
            "absolute_gradient", attention_and_gradient.build_absolute, "Cui, Fan & Chen, arXiv:2605.11392",
            {"paper": _SAME},
        ),
        Method(
            "tokentm", tokentm.build, "Wu et al. (VTranM / TokenTM), CVPR 2024, arXiv:2403.14552",
            {"paper": _SAME},
        ),
        Method(
            "gradtoken", gradtoken.build, "Cheng et al., Neural Networks 2024",
            {"paper": _SAME}, signed_by={"heads": "mean"},
        ),
        Method(
            "attcat", attcat.build, "Qiang et al., NeurIPS 2022",
            {"paper": {"states": "output"}, "official": {"states": "input"}},
            signed=True, prepare=mask_special_tokens,
        ),
        Method(
            "cat", attcat.build_cat, "Qiang et al., NeurIPS 2022",
            {"paper": {"states": "output"}}, signed=True,
        ),
        Method(
            "grads", attention_gradients.build_grads, "baseline of Qiang et al., NeurIPS 2022",
            {"paper": _SAME}, signed=True,
        ),
        Method(
            "att_grads", attention_gradients.build_att_grads, "Barkan et al. (Grad-SAM), CIKM 2021, arXiv:2204.11073",
            {"paper": _SAME},
        ),
    )
}  # fmt: skip

__all__ = ["METHODS", "ByKind", "Method", "Preset"]
