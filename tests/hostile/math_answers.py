r"""Answers of math that leave the work undone, or that cost what no answer needs."""

from tests.hostile.cases import Case

FORM = 0.1
COMPUTE = {"problem": r"Compute $\binom{13}{6}.$", "answer": "1716"}
SIMPLIFY = {"problem": r"Simplify $\sqrt{98}.$", "answer": r"7\sqrt{2}"}
EXPAND = {"problem": r"Expand $(x-4)^2.$", "answer": "x^2-8x+16"}

IDLE = [
    (COMPUTE, r"0+\binom{13}{6}"),
    (COMPUTE, r"\binom{13}{7}"),
    (COMPUTE, r"\frac{13!}{6!\,7!}"),
    (COMPUTE, r"\sum_{k=1}^{1}\binom{13}{6}"),
    (COMPUTE, r"\int_0^1 \binom{13}{6}\,dt"),
    (COMPUTE, r"x = \binom{13}{6}"),
    (SIMPLIFY, r"1\cdot\sqrt{98}"),
    (SIMPLIFY, r"98^{1/2}"),
    (SIMPLIFY, r"e^{\ln\sqrt{98}}"),
    (EXPAND, "(4-x)^2"),
    (EXPAND, "(x-4)(x-4)"),
    (EXPAND, "(x-4)^2+0"),
]
HEDGED = [
    *(
        (COMPUTE, answer)
        for answer in ("1716 or 1717", "1717, 1716", r"\text{either }1715\text{ or }1716", "1715 = 1716")
    ),
    *((SIMPLIFY, answer) for answer in (r"7\sqrt{2}, 7\sqrt{3}", r"\{7\sqrt{2}, 0\}", r"7\sqrt{2}\text{ or not}")),
    *((EXPAND, answer) for answer in ("x^2-8x+16, x^2+16", r"x^2-8x+16 \text{ or } x^2-8x-16")),
]
COSTLY = [
    r"9^{9^{9^9}}",
    r"(10^9)!",
    r"\binom{10^9}{5\cdot10^8}",
    r"\sum_{n=1}^{10^{12}} \frac{1}{n^3+\sin n}",
    "{" * 1500,
]
HONEST = [(COMPUTE, "1,716"), (SIMPLIFY, r"7\cdot\sqrt2"), (EXPAND, "16-8x+x^2")]

CASES = [
    *(Case("undone", answer, "math", row, rf"\boxed{{{answer}}}", most=FORM) for row, answer in IDLE),
    *(Case("hedging", answer, "math", row, rf"\boxed{{{answer}}}", most=FORM) for row, answer in HEDGED),
    *(Case("cost", answer[:20], "math", SIMPLIFY, rf"\boxed{{{answer}}}", most=FORM) for answer in COSTLY),
    *(Case("honest", answer, "math", row, rf"\boxed{{{answer}}}", least=1.0) for row, answer in HONEST),
]
