r"""Completions for math with the verdict of a careful teacher: each way to write a completion with each content.

A way says whether its answer counts. `A` is the answer, `B` another one, which is always wrong. A content is a problem
with its reference, answers that are right, answers that are wrong, and answers that leave undone what is asked for.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Content(NamedTuple):
    """A problem, its reference, and answers."""

    problem: str
    gold: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    undone: tuple[str, ...] = ()


CONTENTS = (
    Content(r"Compute $\binom{9}{4}$.", "126", ("126", "126.0"), ("125", "9"), (r"\binom{9}{5}", r"0+\binom{9}{4}")),
    Content(r"Simplify $\sqrt{72}$.", r"6\sqrt{2}", (r"6\sqrt2", r"6 \sqrt{2}"), (r"2\sqrt6", "8.5"), (r"\sqrt{72}",)),
    Content(
        r"Write $0.35$ as a fraction.", r"\frac{7}{20}", ("7/20", r"\dfrac{7}{20}"), ("7/2", "20/7"), ("0.35", "0.350")
    ),
    Content("A die is thrown. What is the chance of a 3?", r"\frac16", ("1/6", r"\frac{1}{6}"), ("1/3", "6")),
    Content(
        "Expand $(x+3)^2$.", "x^2+6x+9", ("x^2 + 6x + 9", "9+6x+x^2"), ("x^2+9", "x^2+6x+6"), ("(x+3)^2", "(3+x)(3+x)")
    ),
    Content("Factor $x^2-x-12$.", "(x-4)(x+3)", ("(x+3)(x-4)", "(x-4)(x+3)"), ("(x+4)(x-3)", "x-4"), ("x^2-x-12",)),
    Content("Solve $x^2=x+6$.", "-2,3", ("3,-2", r"-2 \text{ and } 3"), ("2,3", "3")),
    Content("Where do $y=x$ and $y=4-x$ meet?", "(2,2)", ("(2, 2)", r"\left(2,2\right)"), ("(2,-2)", "2")),
    Content("For which $x$ is $3x-6<0$?", r"(-\infty,2)", (r"(-\infty, 2)", "x<2"), ("x>2", r"(-\infty,2]")),
    Content("Who is the tallest, Ann, Bea or Cid?", r"\text{Bea}", ("Bea", r"\text{bea}"), ("Ann", r"\text{Cid}")),
    Content(r"Which is true? (A) $1>2$ (B) $2>1$", r"\text{(B)}", (r"\text{B}", "(B)"), ("(A)", r"\text{C}")),
    Content("What is $2^{12}$?", "4096", ("4096", "4,096"), ("4069", "24"), ("2^{12}", "64^2")),
    Content("A square has an area of 49 square metres. How long is a side?", "7", ("7", r"7\text{ m}"), ("49", "-7")),
    Content("What percent of 40 is 6?", r"15\%", (r"15\%", "15"), ("6", r"40\%")),
    Content(
        r"Compute $\frac{3}{4}+\frac{1}{6}$.",
        r"\frac{11}{12}",
        ("11/12", r"\frac{11}{12}"),
        ("4/10", r"\frac{12}{11}"),
        (r"\frac{1}{6}+\frac{3}{4}",),
    ),
    Content("A circle has radius 5. What is its area?", r"25\pi", (r"25 \pi", r"25\cdot\pi"), (r"10\pi", "25")),
    Content(
        r"Compute $\sin 30^\circ$.",
        r"\frac{1}{2}",
        ("1/2", "0.5"),
        (r"\frac{\sqrt3}{2}", "30"),
        (r"\sin 30^\circ", r"\cos 60^\circ"),
    ),
    Content(r"Evaluate $\log_3 81$.", "4", ("4", "4.0"), ("27", "3"), (r"\log_3 81", r"\log_3 3^4")),
    Content("Evaluate $(2+i)(2-i)$.", "5", ("5", "+5"), ("3", "4-i"), ("(2-i)(2+i)", "4-i^2")),
    Content("Find $f(3)$ if $f(x)=x^2-2$.", "7", ("7", "f(3)=7"), ("1", "9"), ("3^2-2", "9-2")),
    Content(
        r"Invert $\begin{pmatrix}2&0\\0&1\end{pmatrix}$ and multiply by 2.",
        r"\begin{pmatrix}1&0\\0&2\end{pmatrix}",
        (r"\begin{pmatrix} 1 & 0 \\ 0 & 2 \end{pmatrix}", r"\begin{bmatrix}1&0\\0&2\end{bmatrix}"),
        (r"\begin{pmatrix}2&0\\0&1\end{pmatrix}", "1"),
    ),
    Content("Write the line through $(0,1)$ with slope 3.", "y=3x+1", ("y = 3x + 1", "y=1+3x"), ("y=x+3", "y=3x")),
    Content("How many seconds has an hour?", "3600", ("3600", "3,600"), ("360", "60"), (r"60\cdot60", "60(60)")),
    Content(r"Compute $\sum_{k=1}^{4} k^2$.", "30", ("30", "30.0"), ("29", "16"), (r"\sum_{k=1}^{4} k^2", "1+4+9+16")),
)

BOXED = {
    r"So the answer is \boxed{A}.": True,
    r"Let us see. We get $$\boxed{A}$$ and that is all. I hope this helps!": True,
    "**Result:** $\\boxed{A}$": True,
    "## Step 1: Understand\nEasy.\n## Step 2: Solve\nDone.\n\n\\[\n\\boxed{A}\n\\]\n": True,
    r"<think>Maybe \boxed{B}? No.</think> It is \boxed{A}": True,
    "<think>\nFirst B, no.\n</think>\n\n**Final result**\n\\boxed{A}": True,
    r"Maybe \boxed{B}?</think>\boxed{A}": True,
    "\n\n</think>\n\nThe final answer is: $\\boxed{A}$": True,
    r"First \boxed{B}. Wait, that is wrong. So \boxed{A}": True,
    r"I think of B at first. But \boxed{A}, not B.": True,
    r"\boxed{A}<|im_end|>": True,
    r"<|start_header_id|>assistant<|end_header_id|> It is \boxed{A}<|eot_id|>": True,
    "```latex\n\\boxed{A}\n```": True,
    r"\boxed{\boxed{A}}": True,
    r"\boxed{ A }": True,
    r"\boxed{{A}}": True,
    r"\boxed {A}": True,
    r"\boxed{$A$}": True,
    r"\boxed{\displaystyle A}": True,
    r"\boxed{A.}": True,
    "\\boxed{A}\n\nLet me verify this: it holds. So it stands.": True,
    r"Therefore, $\boxed{A}$ is what is asked for, by the theorem of Vieta \cite{vieta}.": True,
    "1. Set up.\n2. Solve.\n\n| step | value |\n|---|---|\n| 1 | B |\n\n\\boxed{A}": True,
    r"\boxed{A} No, that is wrong. It is \boxed{B}": False,
    r"<think>It is \boxed{A}.</think> I am not sure.": False,
    r"<think>It is \boxed{A}.</think> It is \boxed{B}.": False,
    "The answer is A.": False,
    "**A**": False,
    r"boxed{A}": False,
    r"\boxed{A": False,
    r"\boxed{A, B}": False,
    r"It is \boxed{B} or \boxed{A}": False,
    r"\boxed{A \text{ or } B}": False,
    "It is A\n\n\\boxed{B}": False,
    r"\boxed{}": False,
    "": False,
    "I cannot solve this problem.": False,
}
"""Completions of the prompt that asks for a box, and whether the answer counts."""

R1_ZERO = {
    "so it is </think> <answer> A </answer>": True,
    "<think> so it is </think>\n<answer>\nA\n</answer>": True,
    "</think><answer>A</answer>": True,
    r"easy </think> <answer> \boxed{A} </answer>": True,
    "easy </think> <answer> $A$ </answer>": True,
    r"easy </think> <answer> \(A\) </answer>": True,
    "I first have B, no, A </think>\n\n<answer> A </answer>\n": True,
    r"I first have \boxed{B} </think> <answer> A </answer>": True,
    "easy </think> <answer> A. </answer>": True,
    "it is A </think> <answer> B </answer>": False,
    "it is A </think> A": False,
    "<answer> A </answer>": False,
    "<think> it is <answer> A </answer>": False,
    "maybe <answer> A </answer> </think> <answer> B </answer>": False,
    "so </think> <answer> A </answer> <answer> A </answer>": False,
    "so </think> <answer> A </answer> That is all.": False,
    "so </think> <answer> A": False,
    "so </think> <answer> A or B </answer>": False,
    "so </think> <answer> </answer>": False,
    "so </think> <answer></answer> <answer> A </answer>": False,
    "so </think> <answer> First B. Final Answer: The final answer is A. I hope it is correct. </answer>": True,
    r"so it is \boxed{A}": False,
}
"""Completions of the prompt that opens the thoughts."""


class Case(NamedTuple):
    """A completion and whether it is right."""

    prompt: str
    content: Content
    completion: str
    right: bool


def cases() -> Iterator[Case]:
    """Each way with each content, a right answer in one half of them, in turns with the others."""
    for prompt, ways in (("boxed", BOXED), ("r1_zero", R1_ZERO)):
        for row, (way, counts) in enumerate(ways.items()):
            for column, content in enumerate(CONTENTS):
                turn, good = divmod(row + column, 2)
                answers = content.right if good else (*content.wrong, *content.undone)
                answer = answers[(turn + column) % len(answers)]
                other = next(one for one in content.wrong if one != answer)
                completion = way.replace("A", "\0").replace("B", other).replace("\0", answer) if way else ""
                yield Case(prompt, content, completion, bool(good and counts))
