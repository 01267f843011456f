"""A prompt as tokens, and what a model writes after it.

A prompt is made of messages, documents and what the chat template adds, each with the columns it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from vitrail.errors import InputError, is_whole, one_line
from vitrail.models.inputs import position_limit
from vitrail.models.texts import Span, is_blank, sentences

Message = Mapping[str, Any]
TEMPLATE = "template"
"""The source of what no message wrote."""
MARKS = 0xF0000
"""The first of the private letters that mark where a message or document begins and ends while a template writes it."""
Part = tuple[str, str]
"""Which message or document a text is of, and the text."""
Place = tuple[str, int, int]
"""Which message or document wrote a stretch of the prompt, and its first letter and the one after its last."""


@dataclass(frozen=True)
class Passage:
    """A stretch of the context: its text, its columns, and which message or document it is of."""

    text: str
    start: int
    stop: int
    source: str


@dataclass(frozen=True)
class Prompt:
    """The prompt as the model reads it.

    Args:
        letters: of each token, where its first letter stands in the text and the one after its last.
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    passages: tuple[Passage, ...]
    letters: tuple[Span, ...]


def read_prompt(tokenizer: Any, prompt: str | Sequence[Message], documents: Sequence[str] | None) -> Prompt:  # noqa: ANN401
    """The text the model is given, its tokens, and its sentences by message and document."""
    _check(prompt, documents)
    text, places = _plain(prompt, documents) if isinstance(prompt, str) else _chat(tokenizer, prompt, documents)
    check_letters("prompt", text)
    encoded = tokenizer(text, add_special_tokens=isinstance(prompt, str), return_offsets_mapping=True)
    letters, ids = encoded["offset_mapping"], encoded["input_ids"]
    if not ids:
        raise InputError("the tokenizer makes no token of the prompt. Give a text that has words.")
    inside = [end > begin for begin, end in letters]  # tokens that stand for letters, or for bytes of one
    # White space that tokenizers leave out is counted to the token after it.
    offsets = list(pairwise(accumulate((end for _, end in letters), max, initial=0)))
    pieces = tuple(text[begin:end] for begin, end in offsets)
    return Prompt(text, tuple(ids), pieces, tuple(_passages(text, places, offsets, inside)), tuple(letters))


def check_letters(name: str, text: str) -> None:
    """Raise if a text holds half of a letter, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the {name} is no text: at letter {error.start} stands {text[error.start]!a}, half of a letter (a lone "
            "surrogate). Decode the bytes it came from as UTF-8."
        ) from error


def _check(prompt: object, documents: object) -> None:
    """Raise if these are no text or messages, and no texts."""
    if isinstance(documents, str):
        raise InputError("documents is a list of texts, but one text was given: put it into a list.")
    texts = documents if isinstance(documents, Sequence) and not isinstance(documents, bytes) else (None,)
    if documents is not None and not all(isinstance(one, str) for one in texts):
        raise InputError(f"documents is a list of texts, but {documents!r:.80} was given.")
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, Sequence) or not all(isinstance(one, Mapping) for one in prompt):
        raise InputError(
            f"a prompt is a text, or a list of messages {{'role': ..., 'content': text}}, but {prompt!r:.80} was given."
        )


def generate_ids(
    model: Any,  # noqa: ANN401
    prompt: Sequence[int],
    max_new_tokens: int,
    settings: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the tokens that a model continues a prompt with, without those that end the text.

    Args:
        settings: further arguments of `model.generate`, and a `seed` where it samples. Without any, it is greedy.
    """
    given = {"do_sample": False, **(settings or {})}
    seed = given.pop("seed", None)
    _check_generation(given, seed)
    limit = position_limit(model)
    if limit is not None and len(prompt) + max_new_tokens > limit:
        raise InputError(
            f"the prompt has {len(prompt)} tokens and {max_new_tokens} may be generated, but {type(model).__name__} "
            f"has {limit} positions. Shorten the prompt, or lower max_new_tokens."
        )
    if model.training:
        raise InputError("the model is in training mode, so dropout would change its answer. Call model.eval() first.")
    ends = _end_ids(model, given)
    if ends and getattr(model.generation_config, "pad_token_id", None) is None:
        given.setdefault("pad_token_id", ends[0])  # as transformers does, which writes a log line about it
    ids = torch.tensor([prompt], device=next(model.parameters()).device)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
        try:
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **given
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{type(model).__name__}.generate refused its arguments: {one_line(error)}") from error
    found = getattr(out, "sequences", out)[0, len(prompt) :].tolist()
    while found and found[-1] in ends:
        found.pop()
    return found


def _check_generation(given: Mapping[str, Any], seed: object) -> None:
    """Raise if the arguments of `model.generate` do not lead to one answer that can be had again."""
    if given["do_sample"] and seed is None:
        raise InputError(
            "sampling gives another answer each time: add a seed, generation={'do_sample': True, 'seed': 0}."
        )
    if seed is not None and not (is_whole(seed) and 0 <= seed < 2**63):
        raise InputError(f"the seed of generation is a whole number of at least 0, but {seed!r} was given.")
    if given.get("num_return_sequences", 1) != 1:
        raise InputError("one answer is explained: leave num_return_sequences out.")


def _end_ids(model: Any, given: Mapping[str, Any]) -> list[int]:  # noqa: ANN401
    """Return the tokens that end a text: those that were given, else those of the model's generation config."""
    ends = given.get("eos_token_id", getattr(model.generation_config, "eos_token_id", None))
    if ends is None:
        return []
    return [ends] if isinstance(ends, int) else list(ends)


def check_answer(tokenizer: Any, prompt: str | Sequence[Message], ids: Sequence[int]) -> None:  # noqa: ANN401
    """Raise if an answer has no token."""
    if ids:
        return
    hint = ""
    if isinstance(prompt, str) and getattr(tokenizer, "chat_template", None) is not None:
        hint = " The tokenizer has a chat template: give the prompt as [{'role': 'user', 'content': ...}]."
    raise InputError(f"the answer is empty: the model ended at once, or the text given has no token.{hint}")


def decoded(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:  # noqa: ANN401
    """The tokens of a short text as pieces that together give it as the tokenizer writes it."""
    pieces, before = [], ""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False)
        if text.endswith("\ufffd") and count < len(ids):  # a letter of several tokens is not complete yet
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        before = text
    return tuple(pieces)


def _documents(documents: Sequence[str] | None, name: str, question: str) -> list[Part]:
    """Documents before the question, each under its number."""
    found = [(f"document {number}", f"{document.strip()}\n\n") for number, document in enumerate(documents or (), 1)]
    return [*found, (name, question)]


def _plain(prompt: str, documents: Sequence[str] | None) -> tuple[str, list[Place]]:
    """Documents and prompt as one text, and where each stands in it."""
    parts = _documents(documents, "prompt", prompt)
    _check_content(parts)
    text, places = "", []
    for name, part in parts:
        begin = len(text) + len(part) - len(part.lstrip())
        places.append((name, begin, begin + len(part.strip())))
        text += part
    return text, places


def _chat(
    tokenizer: Any,  # noqa: ANN401
    messages: Sequence[Message],
    documents: Sequence[str] | None,
) -> tuple[str, list[Place]]:
    """The chat as its template writes it, and where each message and document stands; these go before the last."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            "the tokenizer has no chat template, so messages cannot be written. Give the prompt as a text."
        )
    # A call of a tool may be all that a message has.
    texts = [one.get("content") if one.get("content") or not one.get("tool_calls") else "" for one in messages]
    if not messages or not all(isinstance(x, str) for x in (*texts, *(one.get("role") for one in messages))):
        raise InputError(
            "messages are a list of {'role': name, 'content': text}, and at least one is needed. Write content of "
            "several parts as one text."
        )
    names = [f"{one['role']} {number}" for number, one in enumerate(messages, 1)]
    parts = [[(name, one.get("content") or "")] for name, one in zip(names, messages, strict=True)]
    parts[-1] = _documents(documents, *parts[-1][0])
    every = [part for some in parts for part in some]
    _check_content(every)
    text = _written(tokenizer, messages, ["".join(part for _, part in some) for some in parts])
    marks = iter(range(MARKS, MARKS + 2 * len(every), 2))
    marked = _written(tokenizer, messages, ["".join(_marked(part, next(marks)) for _, part in some) for some in parts])
    return text, _places(text, marked, every)


def _written(tokenizer: Any, messages: Sequence[Message], contents: Sequence[str]) -> str:  # noqa: ANN401
    """Return the text that the template makes of the messages with these contents."""
    given = [{**one, "content": new} if new else one for one, new in zip(messages, contents, strict=True)]
    try:
        return tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs, and raise what they like
        raise InputError(f"the chat template refuses these messages: {one_line(error)}") from error


def _marked(part: str, mark: int) -> str:
    """A part with marks around it, inside its white space, which templates may remove."""
    inner = part.strip()
    return part.replace(inner, f"{chr(mark)}{inner}{chr(mark + 1)}", 1) if inner else part


def _places(text: str, marked: str, parts: Sequence[Part]) -> list[Place]:
    """Return the place of each part in the text.

    Where the template writes another text because of the marks, parts are found that stand in the text exactly once. A
    part that is not found has no place, and its words count as the template's.
    """
    last = MARKS + 2 * len(parts)
    letters = [letter for letter in marked if not MARKS <= ord(letter) < last]
    if "".join(letters) != text:
        found = [(name, text.find(part.strip()), part.strip()) for name, part in parts if part.strip()]
        return [(name, at, at + len(part)) for name, at, part in found if text.count(part) == 1]
    open_at, places, place = {}, [], 0
    for letter in marked:
        number = ord(letter) - MARKS
        if not 0 <= number < 2 * len(parts):
            place += 1
        elif number % 2 == 0:
            open_at[number] = place
        elif number - 1 in open_at:
            places.append((parts[number // 2][0], open_at.pop(number - 1), place))
    return places


def _check_content(parts: Sequence[Part]) -> None:
    """Raise if nothing of the prompt can be seen."""
    if all(is_blank(part) for _, part in parts):
        raise InputError("the prompt is empty. Give a text, or messages with content.")


def _passages(
    text: str, places: Sequence[Place], offsets: Sequence[tuple[int, int]], inside: Sequence[bool]
) -> list[Passage]:
    """The sentences of each message or document; what no message wrote is the template's.

    Args:
        inside: tokens that belong to the text. The further tokens of a letter of several bytes have no letter left, and
            belong where the first one does.
    """
    owners = [TEMPLATE] * len(offsets)
    for name, begin, end in places:
        for index, (_, last) in enumerate(offsets):
            if inside[index] and begin < last <= end:
                owners[index] = name
    found: list[Passage] = []
    start = 0
    for index in range(1, len(owners) + 1):
        if index == len(owners) or owners[index] != owners[start]:
            pieces = [text[a:b] for a, b in offsets[start:index]]
            cut = [(0, len(pieces))] if owners[start] == TEMPLATE else sentences(pieces)
            found += [Passage("".join(pieces[a:b]), start + a, start + b, owners[start]) for a, b in cut]
            start = index
    return found
