"""The families of attacks: what each tries, and what mends a reward that falls for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """`tries` is what is done, `mend` what to do about a fault. `of_answers`: it needs answers that are right."""

    tries: str
    mend: str
    of_answers: bool = False


FAMILIES = {
    "empty": Family("no text at all", "pay nothing where nothing is said"),
    "whitespace": Family("blanks and line ends", "strip a completion before it is read"),
    "nonsense": Family("words that answer nothing", "pay for an answer, and not for whatever is written"),
    "prompt": Family("the prompt copied", "read the answer where it is asked for, and not anywhere in the text"),
    "format": Family(
        "the form with no answer in it", "pay less than half for the form, or pay for it only beside a right answer"
    ),
    "candidates": Family(
        "every candidate in one answer", "compare the whole answer, and refuse several that differ", of_answers=True
    ),
    "place": Family(
        "the right answer in a thought, beside a wrong one, or within a longer number",
        "read one place, whole: after_thoughts, then the last or the only marked answer",
        of_answers=True,
    ),
    "long": Family(
        "a hundred thousand words, brackets, digits", "bound the length that is read, and use patterns in linear time"
    ),
    "scripts": Family(
        "digits and letters of other scripts, look-alikes, control characters",
        "int() raises for some of what isdigit() takes, and NFKC makes 12 of 1 squared: match [0-9], catch ValueError",
    ),
    "gold": Family("the right answer", "compare values and not spellings, and pay it the maximum", of_answers=True),
    "other": Family(
        "the right answer of another example", "compare with the example's own answer, whole", of_answers=True
    ),
    "twice": Family(
        "the same texts in two processes",
        "no random numbers, clocks, or hash() and the order of sets, which a process has of its own",
    ),
    "order": Family("the same texts in another order, and again", "keep nothing from one call to the next"),
    "parallel": Family("the same texts in four processes at once", "use files of tempfile, and none of a fixed name"),
    "batch": Family("one text among others, and alone", "pay a completion for what it says, whatever stands beside it"),
    "slow": Family(
        "the deadline", "bound the work by the length of the text (minrl.tasks.bounded), or raise the deadline"
    ),
    "crash": Family("memory, recursion, the end of the process", "bound the depth and the size of what is parsed"),
    "raises": Family(
        "exceptions", "catch what reading a text can raise, and pay for it: an unscorable text is not wrong"
    ),
    "prints": Family("what is printed", "print nothing: name what you want to see in Reward(value, {'part': number})"),
    "example": Family("the example before and after", "change a copy, such as copy.deepcopy(example.fields)"),
    "nan": Family("numbers that are none", "return finite numbers, at most Reward's maximum, from every branch"),
    "types": Family("what is returned", "return a number or a Reward, from every branch"),
}
"""By name, in the order of the table. From `twice` on it is not what is paid that is judged."""
