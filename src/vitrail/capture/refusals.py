"""Messages for a model whose attention cannot be recorded: what was found in it, and what to do."""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from vitrail.capture.seams import AttentionCall
from vitrail.capture.shadow import memory_of
from vitrail.capture.torch_private import current_transform
from vitrail.errors import CutGraphError, ModelError, NoAttentionError, OtherBlocksError, RuleError, SeamError
from vitrail.models.taking import every_module

SEEN = (
    "Attention is seen in scaled_dot_product_attention, nn.MultiheadAttention, and a softmax over one of the last "
    "two axes, or powers of e divided by their sum over the last axis, followed by a product with the values."
)
AT_THE_INPUTS = (
    "Methods that read the gradient at the inputs need no attention: integrated_gradients, input_x_gradient."
)
COUPLED = (
    "the answer to one sample depends on the tokens of others: the model compares the samples of a batch, or changes "
    "their order, and a map of one of them would hold parts of the others. Explain one sample at a time: gradients at "
    "the inputs, such as those of integrated_gradients, would mix the samples too."
)
SHOWN = 6
"""How many classes of modules a message names."""


def implementations(model: nn.Module) -> set[str]:
    """The ways of computing attention that the configurations inside a model ask for."""
    configs = {id(c): c for module in every_module(model) if (c := vars(module).get("config")) is not None}
    found = (getattr(config, "_attn_implementation", None) for config in configs.values())
    return {name for name in found if isinstance(name, str)}


def is_unseen(implementation: str) -> bool:
    """Return True if attention computed in this way never appears as a function of torch."""
    return "flash" in implementation or "flex" in implementation or "/" in implementation


def check_model(model: nn.Module) -> None:
    """Refuse a shadow whose attention or weights cannot be read; checked once, as long as it is used as it is."""
    known = memory_of(model).known
    if "readable" not in known:
        check_implementation(model)
        check_weights(model)
        known["readable"] = True


def check_differentiable(model: nn.Module) -> None:
    """Refuse a shadow that has no gradient."""
    if (reason := why_not_differentiable(model)) is not None:
        raise CutGraphError(reason)


def why_not_differentiable(model: nn.Module) -> str | None:
    """Return why there is no gradient: results of torch's own 8-bit modules seem to have one, but none arrives."""
    for module in every_module(model):
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            return (
                f"the model has a quantized {type(module).__name__}: torch's 8-bit kernels have no gradient, and this "
                "explanation needs one. Explain the model as it was before quantization."
            )
    return None


def check_implementation(model: nn.Module) -> None:
    """Refuse a model all of whose attention is computed by kernels that cannot be seen, before it runs."""
    found = implementations(model)
    if found and all(map(is_unseen, found)):
        raise NoAttentionError(
            f"{type(model).__name__} is configured with attn_implementation={' and '.join(map(repr, sorted(found)))}, "
            "whose kernels keep attention to themselves. Load it with attn_implementation='sdpa' or 'eager', or call "
            "model.set_attn_implementation('sdpa')."
        )


def check_weights(model: nn.Module) -> None:
    """Refuse weights without values, and plain linear layers whose weights are whole numbers.

    Quantised layers have classes of their own, of the layer or of the weight, and are left alone.
    """
    empty = [module for module in every_module(model) if _is_empty(module)]
    if empty:
        raise ModelError(
            f"the weights of {type(empty[0]).__name__} and {len(empty) - 1} other modules are on the meta device and "
            "hold no values. Load them, for example with from_pretrained or load_state_dict(..., assign=True)."
        )
    if any(map(_whole_weight, every_module(model))):
        name, module = next(one for one in model.named_modules() if _whole_weight(one[1]))
        raise ModelError(
            f"the weight of {name or type(model).__name__} is a plain parameter of {module.weight.dtype}, which "
            "torch cannot multiply with real numbers. Convert it to a floating type, or load the model with its "
            "quantisation library."
        )


def _is_empty(module: nn.Module) -> bool:
    """Return True if a module has weights without values that no hook of an offloading library loads when it runs."""
    if not any(x is not None and x.is_meta for x in module._parameters.values()):
        return False
    return not module._forward_pre_hooks and "forward" not in vars(module) and not hasattr(module, "_hf_hook")


def _whole_weight(module: nn.Module) -> bool:
    if type(module) is not nn.Linear:
        return False
    weight = module._parameters.get("weight")
    return type(weight) is nn.Parameter and not weight.is_floating_point() and not weight.is_complex()


WITHOUT_ATTENTION = (
    "Methods that read no attention explain it: vitrail.explain(model, inputs, 'integrated_gradients'), or "
    "'input_x_gradient'."
)


def no_attention(model: nn.Module) -> NoAttentionError:
    """A model in which no attention was seen."""
    found = implementations(model)
    hidden = sorted(filter(is_unseen, found))
    unapplied = memory_of(model).known.get("unapplied", ())
    if unapplied:
        why = (
            f"It has {len(unapplied)} kinds of softmax over products of two tensors, of shapes "
            f"{', '.join(map(str, unapplied[:SHOWN]))}, but none is multiplied with one value for each key, as where "
            "every pair of tokens has a value of its own, or products are written as sums. Such attention cannot be "
            "followed."
        )
    elif hidden:
        why = (
            f"Parts of it are configured with attn_implementation={' and '.join(map(repr, hidden))}, whose kernels "
            "keep attention to themselves: load it with 'sdpa' or 'eager'."
        )
    else:
        asked = f"Its attn_implementation is {' and '.join(map(repr, sorted(found)))} already. " if found else ""
        why = (
            f"{asked}It consists of {_kinds(every_module(model)[1:])}: a model without softmax attention, such as a "
            "state-space, convolutional, Fourier or linear-attention model, has no attention to explain."
        )
    return NoAttentionError(f"no attention was seen in {type(model).__name__}. {SEEN} {why} {WITHOUT_ATTENTION}")


def softmax_in_parts(model: nn.Module) -> RuleError:
    """A model whose attention is not seen once rules take the place of the functions that make it up."""
    return RuleError(
        f"{type(model).__name__} writes the softmax of its attention in parts, as powers of e over their sum. There is "
        "a rule for a softmax, but none for its parts. Call torch.softmax, or take a method without rules, such as gae."
    )


def note_parts(model: nn.Module, call: AttentionCall) -> None:
    """Keep in mind that a shadow writes the softmax of some attention in parts."""
    if call.in_parts:
        memory_of(model).known["in parts"] = True


def note_unapplied(model: nn.Module, maps: Sequence[torch.Size]) -> None:
    """Keep in mind the shapes of what a shadow makes by a softmax over scores and applies in no way that is seen."""
    memory_of(model).known["unapplied"] = tuple(dict.fromkeys(map(tuple, maps)))


def check_parts(model: nn.Module) -> None:
    """Refuse rules for a shadow that was seen to write the softmax of some attention in parts."""
    if memory_of(model).known.get("in parts"):
        raise softmax_in_parts(model)


def uneven_attention(model: nn.Module, blocks: Sequence[nn.Module], counts: Sequence[int], outside: int) -> SeamError:
    """A model whose blocks do not attend once each."""
    name, total = type(model).__name__, len(counts)
    without = [index for index, count in enumerate(counts) if count == 0]
    several = {index: count for index, count in enumerate(counts) if count > 1}
    if not sum(counts):
        return SeamError(
            f"none of the {total} blocks named of {name} attends, but {outside} attention calls were seen outside of "
            f"them: these are not its Transformer blocks. Name the list that is: vitrail.Anatomy(blocks=...). Lists of "
            f"modules: {_lists(model)}."
        )
    if without and not several:
        return SeamError(
            f"no attention was seen in {len(without)} of the {total} blocks of {name}: {_ranges(without)} "
            f"({_kinds([blocks[index] for index in without if index < len(blocks)])}). {SEEN} What these blocks do to "
            f"the tokens is in no attention map, so a map of the other {total - len(without)} would be wrong. Models "
            "that mix attention with blocks of another kind cannot be explained yet."
        )
    return SeamError(
        f"each block of {name} should attend once, but the attention calls in its {total} blocks are {list(counts)}, "
        f"and {outside} outside of them. Name the list of blocks that hold one self-attention each: "
        f"vitrail.Anatomy(blocks=...). Lists of modules: {_lists(model)}."
    )


def other_order(model: nn.Module, entered: Sequence[int]) -> OtherBlocksError:
    """Return the error for blocks that run in another order than they were found in, or are listed in."""
    return OtherBlocksError(
        f"the blocks of {type(model).__name__} run in the order {list(entered)}, counted as they are listed or were "
        "found on earlier inputs: which block follows which depends on the content. Explain these inputs with "
        "copy.deepcopy(model), of which nothing is known yet, or use integrated_gradients, which needs no blocks."
    )


def more_blocks(used: int) -> OtherBlocksError:
    """Return the error for an answer that reads blocks after those which it read on earlier inputs."""
    return OtherBlocksError(
        f"the answer to these inputs depends on more than the {used} blocks that it was found to depend on: the model "
        f"reads its answer where the content says so. {AT_THE_INPUTS}"
    )


def hybrid(attending: int, idle: Sequence[nn.Module], why: str) -> SeamError:
    """A model whose blocks without attention mix tokens too."""
    return SeamError(
        f"{attending} of the {attending + len(idle)} blocks of this model attend; the other {len(idle)} "
        f"({_kinds(idle)}) mix tokens by something else, as recurrences, convolutions and linear attention do, and "
        f"what they mix is in no attention map: before the first block that attends, {why}. Methods that read the "
        "gradient at the inputs need no maps: integrated_gradients, input_x_gradient."
    )


REENTRANT = (
    "it runs under torch.utils.checkpoint with use_reentrant=True. Call checkpoint with use_reentrant=False, or not at "
    "all in evaluation mode"
)


def why_no_gradient() -> str:
    """Return the reason why autograd is off where an attention call was made."""
    if torch.is_inference_mode_enabled():
        return "it runs under torch.inference_mode inside the model"
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return REENTRANT
        frame = frame.f_back
    return "it runs under torch.no_grad inside the model"


def no_graph(where: str, why: str) -> CutGraphError:
    """Attention that was computed without a graph."""
    return CutGraphError(
        f"{where} has no gradient: {why}. An explanation needs it, and so does the check that its rows are the tokens "
        "in order. Explain a model whose attention can be differentiated."
    )


def detached(where: str) -> str:
    """Return why a part of a model has no whole gradient, where the model detaches what it computes there."""
    return (
        f"{where} is cut from the graph: the model takes a tensor that the answer depends on out of the graph, by "
        "detach or .data, so gradients leave out what goes that way. Explain the model without that: what it answers "
        "stays the same."
    )


def check_plain_call() -> None:
    """Refuse an attention call inside of a transform of torch.func."""
    if current_transform() is not None:
        raise SeamError(
            "the model attends inside of a transform of torch.func (vmap, grad, jvp), where neither the samples of a "
            f"call nor its graph are seen. Call the module on the whole batch. {AT_THE_INPUTS}"
        )


def _kinds(modules: Sequence[nn.Module]) -> str:
    """The classes of modules and how many of each there are, those of a model's own code first."""
    own = [m for m in modules if not type(m).__module__.startswith("torch.nn.modules.")]
    names = Counter(type(m).__name__ for m in own or modules)
    shown = [f"{count} {name}" for name, count in names.most_common(SHOWN)]
    return ", ".join(shown) + (" and others" if len(names) > SHOWN else "") if shown else "no modules"


def _lists(model: nn.Module) -> str:
    found = [name for name, m in model.named_modules() if name and isinstance(m, (nn.ModuleList, nn.Sequential))]
    return ", ".join(found[:SHOWN]) + (" and others" if len(found) > SHOWN else "") if found else "none"


def _ranges(indices: Sequence[int]) -> str:
    """Numbers in order, runs of them joined: 0-3, 5."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), lambda one: one[1] - one[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def asked_again(ids: Tensor) -> str:
    """Return why words are refused that the model asks for twice; of a single text a constant is not told apart."""
    said = "the table of words is asked for the words of the text, and again for some of them elsewhere"
    own = (
        f"; if these ids, {ids.flatten().tolist()[:4]}, are the model's own and stand in this text by chance, explain "
        "it in one batch with a text that does not hold them"
    )
    return said + (own if len(ids) == 1 else "")


def unequal(index: int, queries: int, keys: int) -> str:
    """Return the message for attention whose keys are not the tokens that ask."""
    if keys > queries:
        return (
            f"attention layer {index} has {keys} keys for {queries} queries: {keys - queries} keys belong to no token "
            "of the input, such as the virtual tokens of prefix tuning, a cache or an added bias. A method that reads "
            "attention maps cannot place them. Use a method that follows gradients to the embeddings, such as attn_lrp "
            "or integrated_gradients."
        )
    return (
        f"attention layer {index} has {keys} keys for {queries} queries, so its keys are not the tokens that ask: "
        "attention that thins out its keys, or reads another sequence, is not walked. Use a method that follows "
        "gradients to the embeddings, such as attn_lrp or integrated_gradients."
    )
