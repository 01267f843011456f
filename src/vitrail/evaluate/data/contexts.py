"""Contexts with a question: sentences, what is asked of them, and which of them hold the answer.

Written by generators from a number, so no file is needed: `needle` (one sentence among others holds a number),
`variables` (a chain of assignments), `people` (facts about some people; which sentences an answer rests on is not
known) and `lookup` (the language of the embedded model `lookup`). `contexts` reads the user's own from a file with one
JSON object a line.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from vitrail.errors import InputError, OptionError
from vitrail.evaluate.data.examples import ContextExample, Dataset, DatasetEntry
from vitrail.evaluate.data.files import require_file
from vitrail.models.texts import read_text
from vitrail.models.texts import sentences as sentence_spans

NOUNS = ("river", "garden", "market", "tower", "bridge", "harbor", "library", "castle", "meadow", "station", "museum")
PLACES = ("Oslo", "Lima", "Cairo", "Dublin", "Hanoi", "Quito", "Tunis", "Riga", "Accra", "Sofia", "Perth", "Kyoto")
PEOPLE = ("painter", "baker", "sailor", "teacher", "farmer", "doctor", "singer", "tailor", "miner", "pilot", "writer")
DOINGS = ("walked past", "looked at", "wrote about", "talked about", "sat beside", "ran around", "dreamed of", "drew")
TIMES = ("in the morning", "at noon", "in the evening", "last week", "in spring", "after lunch", "on Monday")
ANIMALS = ("cat", "dog", "parrot", "horse", "rabbit", "turtle", "goat", "hamster")
NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Louis")
THINGS = ("ring", "key", "coin", "book", "lamp", "map", "clock", "cup", "drum", "kite", "rope", "bell", "pen", "hat")
VARIABLES = tuple(f"{a}{b}" for a in "BDFGHJKLMNPQRSTVWXZ" for b in "AEIOU")
Make = Callable[[int], ContextExample]


def _picked(random: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(random.integers(len(words)))]


def _shuffled(random: np.random.Generator, words: tuple[str, ...]) -> list[str]:
    return [words[i] for i in random.permutation(len(words))]


def _filler(random: np.random.Generator) -> str:
    who, did, what, when = (_picked(random, words) for words in (PEOPLE, DOINGS, NOUNS, TIMES))
    return f"The {who} {did} the {what} {when}."


def needle(seed: int, *, sentences: int, needles: int = 1) -> ContextExample:
    """Other sentences, and among them the numbers of some cities; the question is about one of them."""
    random = np.random.default_rng(seed)
    cities = _shuffled(random, PLACES)[:needles]
    numbers = [str(random.integers(1_000_000, 10_000_000)) for _ in cities]
    said = [_filler(random) for _ in range(sentences)]
    places = sorted(random.permutation(sentences)[:needles].tolist())
    for place, city, number in zip(places, cities, numbers, strict=True):
        said[place] = f"The magic number of {city} is {number}."
    asked = int(random.integers(needles))
    question = f"What is the magic number of {cities[asked]}? Answer with the number only."
    return ContextExample(f"needle-{seed}", tuple(said), question, (places[asked],), numbers[asked])


def variables(seed: int, *, sentences: int, steps: int = 2) -> ContextExample:
    """Chains of variables among other sentences; the question is about the last variable of one chain."""
    random = np.random.default_rng(seed)
    names = _shuffled(random, VARIABLES)[: 2 * steps]
    said = [_filler(random) for _ in range(sentences)]
    places = sorted(random.permutation(sentences)[: 2 * steps].tolist())
    chains = [names[:steps], names[steps:]]
    numbers = [str(random.integers(10_000, 100_000)) for _ in chains]
    gold: list[list[int]] = [[], []]
    for turn, place in enumerate(places):
        which, step = turn % 2, turn // 2
        chain = chains[which]
        given = numbers[which] if step == 0 else chain[step - 1]
        said[place] = f"VAR {chain[step]} = {given}."
        gold[which].append(place)
    question = f"What is the value of VAR {chains[0][-1]}? Answer with the number only."
    return ContextExample(f"variables-{seed}", tuple(said), question, tuple(gold[0]), numbers[0])


def people(seed: int, *, sentences: int) -> ContextExample:
    """People with a job, a city and an animal, and a question whose answer takes several sentences."""
    random = np.random.default_rng(seed)
    names = _shuffled(random, NAMES)[: sentences // 3]
    said = []
    for name in names:
        job, city, animal = (_picked(random, words) for words in (PEOPLE, PLACES, ANIMALS))
        said += [f"{name} works as a {job}.", f"{name} lives in {city}.", f"{name} has a {animal}."]
    said = [said[i] for i in random.permutation(len(said))]
    who = names[int(random.integers(len(names)))]
    return ContextExample(f"people-{seed}", tuple(said), f"What do you know about {who}? Answer in one sentence.")


def lookup(seed: int, *, sentences: int) -> ContextExample:
    """People with one thing each, and the name of one of them, in the words of the embedded model `lookup`."""
    random = np.random.default_rng(seed)
    names, things = _shuffled(random, NAMES)[:sentences], _shuffled(random, THINGS)[:sentences]
    asked = int(random.integers(sentences))
    said = tuple(f"{name}: {thing}." for name, thing in zip(names, things, strict=True))
    return ContextExample(f"lookup-{seed}", said, f"{names[asked]}:", (asked,), f"{things[asked]}.")


MANY = 100_000
"""Contexts in a set, and sentences in a context, at most."""


def _generated(name: str, make: Make, count: int, seed: int, **ranges: tuple[int, int, int]) -> Dataset[ContextExample]:
    """So many contexts, each from its own number, counted from the seed on.

    Args:
        ranges: other options with their least and their largest value.
    """
    for option, (value, least, most) in {"count": (count, 1, MANY), **ranges}.items():
        if not least <= value <= most:
            raise OptionError(f"{name}: {option}={value}, but it is a whole number from {least} to {most}.")
    if seed < 0:
        raise OptionError(f"{name}: seed={seed}, but a seed is at least 0.")
    return Dataset(name, "vitrail", range(seed, seed + count), lambda number: make(number).key, make)


def read_needle(
    source: str | Path = "", *, count: int = 100, sentences: int = 16, needles: int = 1, seed: int = 0
) -> Dataset[ContextExample]:
    """Numbers of cities among other sentences."""
    make = partial(needle, sentences=sentences, needles=needles)
    ranges = {"needles": (needles, 1, len(PLACES)), "sentences": (sentences, needles, MANY)}
    return _generated("needle", make, count, seed, **ranges)


def read_variables(
    source: str | Path = "", *, count: int = 100, sentences: int = 16, steps: int = 2, seed: int = 0
) -> Dataset[ContextExample]:
    """Two chains of variables among other sentences."""
    make = partial(variables, sentences=sentences, steps=steps)
    ranges = {"steps": (steps, 1, len(VARIABLES) // 2), "sentences": (sentences, 2 * steps, MANY)}
    return _generated("variables", make, count, seed, **ranges)


def read_people(
    source: str | Path = "", *, count: int = 100, sentences: int = 15, seed: int = 0
) -> Dataset[ContextExample]:
    """Three sentences about each of some people."""
    most = 3 * len(NAMES)
    return _generated("people", partial(people, sentences=sentences), count, seed, sentences=(sentences, 3, most))


def read_lookup(
    source: str | Path = "", *, count: int = 50, sentences: int = 8, seed: int = 0
) -> Dataset[ContextExample]:
    """Sentences of the embedded model `lookup`, which was trained on at most ten."""
    return _generated("lookup", partial(lookup, sentences=sentences), count, seed, sentences=(sentences, 1, 10))


def read_contexts(source: str | Path) -> Dataset[ContextExample]:
    """The user's own, one JSON object a line: `sentences` or `context`, `question`, and where known `gold` and `value`.

    `gold` are the places of the sentences that hold the answer, from 0; `value` the words in them that it repeats.
    """
    path = require_file(Path(source), "file of contexts")
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    return Dataset("contexts", str(path), range(len(lines)), _line_key, lambda number: _parsed(number, lines[number]))


def _line_key(number: int) -> str:
    return f"line-{number + 1}"


def _parsed(number: int, line: str) -> ContextExample:
    key = _line_key(number)
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{key} is no JSON object: {error}.") from error
    if not isinstance(found, dict) or ("sentences" in found) == ("context" in found):
        raise InputError(f"{key}: a context is a JSON object with either sentences or context, and a question.")
    said = found["sentences"] if "sentences" in found else _cut(key, found["context"])
    question, gold, value = found.get("question"), found.get("gold", []), found.get("value", "")
    texts = isinstance(said, list) and bool(said) and all(isinstance(x, str) and x.strip() for x in said)
    if not isinstance(question, str) or not texts or not isinstance(value, str):
        raise InputError(f"{key}: question and value are texts, sentences a list of texts that are not empty.")
    if not isinstance(gold, list) or not all(type(place) is int and 0 <= place < len(said) for place in gold):
        raise InputError(f"{key}: gold={gold!r}, but it lists places of the {len(said)} sentences, from 0.")
    if value and not any(value in said[place] for place in gold):
        raise InputError(f"{key}: the value {value!r} is in none of the gold sentences.")
    return ContextExample(key, tuple(said), question, tuple(gold), value)


def _cut(key: str, text: object) -> list[str]:
    if not isinstance(text, str):
        raise InputError(f"{key}: context is a text, but it is {type(text).__name__}.")
    found = (text[a:b].strip() for a, b in sentence_spans(list(text)))
    return [sentence for sentence in found if sentence]


_INSIDE = "nothing: it is written from a seed"
GENERATED = ("needle", "variables", "people", "lookup")
CONTEXTS: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry("needle", read_needle, "answer", ("gold",), _INSIDE, "vitrail"),
        DatasetEntry("variables", read_variables, "answer", ("gold",), _INSIDE, "vitrail"),
        DatasetEntry("people", read_people, "answer", (), _INSIDE, "vitrail"),
        DatasetEntry("lookup", read_lookup, "answer", ("gold",), _INSIDE, "vitrail"),
        DatasetEntry("contexts", read_contexts, "answer", ("gold",), "a file with one JSON object a line", "your own"),
    )
}
