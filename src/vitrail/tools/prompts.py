"""A prompt as tokens: messages, documents and what the chat template adds, each with the columns it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.errors import InputError
from vitrail.models.texts import sentences

Message = Mapping[str, Any]
TEMPLATE = "template"
"""The source of what no message wrote."""


@dataclass(frozen=True)
class Passage:
    """A stretch of the context: its text, its columns, and which message or document it is of."""

    text: str
    start: int
    stop: int
    source: str


@dataclass(frozen=True)
class Prompt:
    """The prompt as the model reads it."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    passages: tuple[Passage, ...]


def read_prompt(tokenizer: Any, prompt: str | Sequence[Message], documents: Sequence[str] | None) -> Prompt:  # noqa: ANN401
    """The text the model is given, its tokens, and its sentences by message and document."""
    _check(prompt, documents)
    if isinstance(prompt, str):
        parts = _documents(documents, prompt)
        text = "".join(part for _, part in parts)
        marked = [(name, part) for name, part in parts if part.strip()]
    else:
        text, marked = _chat(tokenizer, prompt, documents)
    if not text.strip() or not any(part.strip() for _, part in marked):
        raise InputError("the prompt is empty. Give a text, or messages with content.")
    check_letters("prompt", text)
    encoded = tokenizer(text, add_special_tokens=isinstance(prompt, str), return_offsets_mapping=True)
    offsets, ids = encoded["offset_mapping"], encoded["input_ids"]
    if not ids:
        raise InputError("the tokenizer makes no token of the prompt. Give a text that has words.")
    inside = [end > begin for begin, end in offsets]  # tokens that stand for letters, or for bytes of one
    offsets = _joined(offsets)
    pieces = tuple(text[begin:end] for begin, end in offsets)
    return Prompt(text, tuple(ids), pieces, tuple(_passages(text, marked, offsets, inside)))


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


def _joined(offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The letters of each token, white space that tokenizers leave out counted to the token after it."""
    found, place = [], 0
    for _, end in offsets:
        found.append((place, max(place, end)))
        place = max(place, end)
    return found


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


def _documents(documents: Sequence[str] | None, question: str) -> list[tuple[str, str]]:
    """Documents before the question, each under its number."""
    found = [(f"document {number}", f"{document.strip()}\n\n") for number, document in enumerate(documents or (), 1)]
    return [*found, ("prompt", question)]


def _chat(
    tokenizer: Any,  # noqa: ANN401
    messages: Sequence[Message],
    documents: Sequence[str] | None,
) -> tuple[str, list[tuple[str, str]]]:
    """The chat as its template writes it, and the content of each message by its role; documents go before the last."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            "the tokenizer has no chat template, so messages cannot be written. Give the prompt as a text."
        )
    if not messages or any(not isinstance(one.get(name), str) for one in messages for name in ("role", "content")):
        raise InputError(
            "messages are a list of {'role': name, 'content': text}, and at least one is needed. Write content of "
            "several parts as one text."
        )
    before = _documents(documents, messages[-1]["content"])
    rendered = [*messages[:-1], {**messages[-1], "content": "".join(part for _, part in before)}]
    try:
        text = tokenizer.apply_chat_template(rendered, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs, and raise what they like
        raise InputError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from error
    named = [(f"{one['role']} {number}", one["content"]) for number, one in enumerate(messages[:-1], 1)]
    last = f"{messages[-1]['role']} {len(messages)}"
    return text, [*named, *((last if name == "prompt" else name, part) for name, part in before)]


def _passages(
    text: str, marked: Sequence[tuple[str, str]], offsets: Sequence[tuple[int, int]], inside: Sequence[bool]
) -> list[Passage]:
    """The sentences of each message or document; what no message wrote is the template's.

    Args:
        inside: tokens that belong to the text. The further tokens of a letter of several bytes have no letter left, and
            belong where the first one does.
    """
    owners, place = [TEMPLATE] * len(offsets), 0
    for name, part in marked:
        begin = text.find(part.strip(), place)
        if begin < 0:  # the template changed the content, as some do with white space
            continue
        place = begin + len(part.strip())
        for index, (_, last) in enumerate(offsets):
            if inside[index] and begin < last <= place:
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
