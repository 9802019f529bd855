"""Sentences: one sentence that contains two given words.

    Write one sentence of 4 to 20 words that contains the words "garden" and "letter".
    ->    She read the letter in the garden.

It is for models that speak English already. The reward sees form and words, not sense: it reads a line that begins with
a capital letter, ends with its only full stop, question or exclamation mark, has at least two function words such as
`the`, and has no longer word twice. A sentence about words or sentences, such as the prompt copied back, is none.

Held out are words: no word of a held-out problem stands in any training problem.
"""

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, Prompt, Reward, require
from minrl.tasks.answers import plain_characters
from minrl.tasks.task import Dataset, TaskOptions, in_hash_order, is_held_out
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound

INSTRUCTION = 'Write one sentence of {least} to {most} words that contains the words "{first}" and "{second}".'
PROGRESS_REWARD = 0.2
"""Paid for a sentence that lacks a word, in proportion to those it has."""
MOST_CHARACTERS = 1000
_NOUNS = """
anchor apple arrow balcony banana basket beach bell bicycle blanket boat bottle bridge bucket butter cabin
camera candle carpet castle ceiling chair cheese cherry clock coat coffee coin corner curtain desert diamond
dinner doctor donkey door dragon drawer dream engine farmer feather fence field finger fire flag flower forest
fountain garden ghost glass glove goat grass guitar hammer harbor hat hill honey horse hotel island jacket jar
journey jungle kettle key kitchen kitten ladder lake lamp leaf lemon letter library lion magnet map market medal
mirror money monkey moon morning mountain mouse museum music needle night ocean onion orange oven owl painter
palace paper parrot pepper piano pillow pirate planet pocket potato prince puzzle queen rabbit radio rain ribbon
ring river road rocket roof rope salt school shadow sheep shell ship shoe silver sister snow soldier soup spider
spoon square stable star station stone storm street sugar summer sun table teacher temple tent ticket tiger
tower train tree turtle uncle valley village violin wagon wall water whale wheel whistle wind window winter wolf
wood yard zebra
"""
_FUNCTION_WORDS = """
a an the and or but so of to in on at by for from with into over under near as is are was were be has have had
he she it they we you i his her its their our my your this that who when while not
"""
WORDS = tuple(_NOUNS.split())
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
SELF_REFERENCE = frozenset({"word", "words", "sentence", "sentences"})
_SENTENCE = re.compile(r"[A-Z][A-Za-z ,;'-]*[A-Za-z][.!?]")
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*")


@dataclass(frozen=True, kw_only=True)
class SentencesOptions(TaskOptions):
    """Which sentences are asked for."""

    prefix = "sentences."
    min_words: Annotated[int, Bound(least=4)] = 4
    """Fewest words of a sentence."""
    max_words: Annotated[int, Bound(most=50)] = 20
    """Most words of a sentence."""
    held_out_share: Annotated[float, Bound(least=0.05, most=0.95)] = 0.3
    """Share of the words that are held out, with all problems that name one of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest, most = self.min_words, self.max_words
        require(fewest <= most, f"sentences.min_words must be at most max_words, got {fewest} and {most}")


def sentence_words(text: str) -> list[str]:
    """The words of a text that is one sentence, in lower case; none if it is not.

    >>> sentence_words("The queen's goat ran, and it was night!")
    ['the', "queen's", 'goat', 'ran', 'and', 'it', 'was', 'night']
    >>> sentence_words("Goat. Night."), sentence_words("Goat, night, hill, river."), sentence_words("the goat sat.")
    ([], [], [])
    """
    text = plain_characters(text[: MOST_CHARACTERS + 1]).strip()
    if len(text) > 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if len(text) > MOST_CHARACTERS or not _SENTENCE.fullmatch(text):
        return []
    words = _WORD.findall(text.lower())
    repeated = any(count > 1 and len(word) > 3 for word, count in Counter(words).items())
    is_language = sum(word in FUNCTION_WORDS for word in words) >= 2 and not SELF_REFERENCE.intersection(words)
    return words if is_language and not repeated else []


def reward(completion: str, example: Example) -> Reward:
    """1 for one sentence of the right length with both words, up to 0.1 for one that lacks a word, else 0.

    >>> example = Example("goat,hill", "", {"words": ["goat", "hill"], "least": 4, "most": 20})
    >>> [reward(text, example).value for text in ("The goat ran up the hill.", "The goat ran to it.", "goat hill")]
    [1.0, 0.1, 0.0]
    """
    words = sentence_words(after_thoughts(completion))
    is_sentence = example["least"] <= len(words) <= example["most"]
    contained = sum(word in words for word in example["words"]) / len(example["words"]) if is_sentence else 0.0
    value = 1.0 if contained == 1.0 else PROGRESS_REWARD * contained
    return Reward(value, {"sentence": float(is_sentence), "words": contained})


def dataset(options: SentencesOptions) -> Dataset:
    """All pairs of training words, and all pairs of held-out words."""
    options.require_no_data("problems")
    held_out = [word for word in WORDS if is_held_out(word, options.held_out_share)]
    train = [word for word in WORDS if word not in held_out]
    return Dataset(_examples(train, options), _examples(held_out, options))


def more(_: SentencesOptions) -> dict[str, Any]:
    """What else the task has."""
    return {"solution": lambda example: "The {} is near the {}.".format(*example["words"]), "cheap": True}


def _examples(words: list[str], options: SentencesOptions) -> list[Example]:
    least, most = options.min_words, options.max_words
    examples = []
    for first, second in itertools.combinations(words, 2):
        question = INSTRUCTION.format(least=least, most=most, first=first, second=second)
        prompt: Prompt = [{"role": "user", "content": question}]
        examples.append(Example(f"{first},{second}", prompt, {"words": [first, second], "least": least, "most": most}))
    return in_hash_order(examples)
