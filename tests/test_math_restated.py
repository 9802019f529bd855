r"""Sentences of the problem, or its expressions among words, are no answer."""

import pytest

from tests.test_math_claims import paid

FRACTIONS = r"\frac{4+6a}{5}-\frac{1+3a}{4}"
JOIN = rf"Write the expression \[{FRACTIONS}\] as a single fraction."
JOINED = r"\frac{11+9a}{20}"
"""4(4+6a) - 5(1+3a) = 16 + 24a - 5 - 15a = 11 + 9a."""
DIGIT = "Let $N$ be the last digit of $2142N$. Which nonzero value of $N$ makes this number divisible by $6$?"
"""2+1+4+2 = 9, so N is a multiple of 3, and even: 6."""
WAYS = "In how many ways can 5 students be selected from a group of 6 students?"
ROOT = r"What is $\sqrt{53}$ in simplest radical form?"
"""53 is prime."""
RESTATED = [
    (JOIN, JOINED, JOIN),
    (JOIN, r"\frac{9a+11}{20}", JOIN),
    *(
        (JOIN, JOINED, words.format(FRACTIONS))
        for words in (
            "{}",
            "{} as a single fraction",
            "${}$ for all a",
            "It is ${}$ as a fraction",
            "The answer is {} simplified",
        )
    ),
    (DIGIT, "6", DIGIT),
    (DIGIT, "6", DIGIT.partition(". ")[2]),
    (DIGIT, "6", "Problem: " + DIGIT),
    (WAYS, "6", WAYS.replace(" ", "  ")),
]
ANSWERED = [
    (ROOT, r"\sqrt{53}", ROOT),
    (JOIN, JOINED, rf"The expression ${FRACTIONS}$ is ${JOINED}$"),
    (JOIN, JOINED, rf"${JOINED}$ as a single fraction"),
    (WAYS, "6", WAYS + " The answer is 6."),
    (WAYS, "6", "There are 6 ways."),
    ("Simplify $4a-3a$.", "a", "It is $a$"),
]


@pytest.mark.parametrize("prompt", ["boxed", "r1_zero"])
@pytest.mark.parametrize(("problem", "gold", "answer"), RESTATED)
def test_what_the_problem_says_is_not_paid(problem, gold, answer, prompt):
    assert not paid(problem, gold, answer, prompt)


@pytest.mark.parametrize("prompt", ["boxed", "r1_zero"])
@pytest.mark.parametrize(("problem", "gold", "answer"), ANSWERED)
def test_what_is_worked_out_is_paid(problem, gold, answer, prompt):
    assert paid(problem, gold, answer, prompt)
