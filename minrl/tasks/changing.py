"""Numbers in words, and words behind a number that make it another one: `7 tenths`, `7 squared`, `7 and a half`."""

import re

ONES = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen"
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
CHANGES = re.compile(
    rf"\b(?:{ONES}|{TENS}|tens|lakhs?|crores?|hundreds?|thousands?|[a-z]*illi(?:on|ard)s?|dozens?|scores?|gross|grand|half|halves"
    r"|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]{3,5}teen|[a-z]{3,5}tie|hundred|thousand"
    r"|[a-z]*illion)ths?|squared|cubed|halved|doubled|tripled|quadrupled|factorial|negative|reciprocal|inverse"
    r"|plus|minus|divided|multiplied|modulo|mod|not|never|wrong|false|incorrect"
    r"|at (?:the )?(?:very )?(?:most|least)|(?:and|or) (?:up|over|under|above|below|more|less|fewer))\b",
    re.IGNORECASE,
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
WORDS = {word: value for value, word in enumerate(_SMALL.split())}
WORDS |= {word: 20 + 10 * place for place, word in enumerate(TENS.split("|"))}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}
"""What the words for numbers are worth."""


def spoken(words: str) -> int | None:
    """The number in words; None if they are no number. A smaller number behind is added, a scale multiplies.

    >>> [spoken(words) for words in ("forty-two", "one hundred and seven", "two thousand five hundred", "two three")]
    [42, 107, 2500, None]
    """
    whole, part, last = 0, 0, 10**9
    for word in re.findall("[a-z]+", words.lower()):
        if word in WORDS:
            value = WORDS[word]
            if value >= last or (last < 20) or (last < 100 and value >= 10):
                return None
            part, last = part + value, value
        elif word in SCALES and part:
            part *= SCALES[word]
            last = SCALES[word]
            if last >= 1000:
                whole, part = whole + part, 0
        elif word != "and":
            return None
    return whole + part if last < 10**9 else None
