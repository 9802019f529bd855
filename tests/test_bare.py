r"""What dresses an answer, and other spellings of it, change nothing: `\text{The answer is } 52₈` is `52_8`."""

import time

import pytest

from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math.agreement import is_near
from minrl.tasks.math.bare import bare
from minrl.types import Example

RIGHT = {
    "labels": r"""
9 <- \text{The answer is } 9
9 <- = 9
9 <- \therefore 9
3\sqrt{13} <- The answer is 3\sqrt{13}.
(3,4) <- \text{Final answer: }(3,4)
p - q <- Answer: p - q
\text{Evelyn} <- \text{The answer is Evelyn}
(3,4) <- \text{So } (3,4)
9 <- \text{There are }9\text{ ways}
2,3 <- \text{The solutions are } 2\text{ and }3
2,3 <- x equals 2 or 3
(1,2) <- \text{Point } (1, 2)
(-\infty,2] <- \text{Range: } (-\infty, 2]
\text{(C)} <- \text{Option C}
\text{(C)} <- Choice (C)
""",
    "emphasis, size, colour": r"""
9 <- *9*
9 <- <b>9</b>
9 <- ### 9
52_8 <- **52_8**
(3,4) <- "(3,4)"
\frac{14}{3} <- \color{blue}{\frac{14}{3}}
\frac{14}{3} <- \mathbf{\frac{14}{3}}
x^2+1 <- \bm{x^2+1}
x^2+1 <- \textstyle x^2+1
\text{Evelyn} <- \textbf{\text{Evelyn}}
9 <- \large 9
9 <- 9 \checkmark
x^2+1 <- x^2+1 \quad \blacksquare
p - q <- p - q \tag{1}
x=5 <- \begin{aligned} x &= 5 \end{aligned}
2,3 <- \begin{cases} x = 2 \\ x = 3 \end{cases}
""",
    "numbers in words": r"""
9 <- nine
42 <- \text{forty-two}
107 <- one hundred and seven
9 <- \text{nine ways}
9 <- 9 (nine)
9 <- nine (9)
-50 <- negative 50
-50 <- minus fifty
""",
    "fractions and ratios in words": r"""
\frac{1}{2} <- one half
\frac{1}{2} <- \text{a half}
-\frac{3}{4} <- negative three-quarters
\frac{2}{9} <- two ninths
3:2 <- 3 to 2
3:2 <- 3\text{ to }2
""",
    "signs before and conditions behind": r"""
9 <- => 9
9 <- -> 9
9 <- \text{The remainder is }9
(3,4) <- \text{The point is } (3, 4)
\frac{14}{3} <- \text{The sum of all is }\frac{14}{3}.
9 <- 2^{5} \equiv 9 \pmod{7}
9 <- 9 \text{ mod } 7
(-\infty,2)\cup(2,\infty) <- x\ne2
x+1 <- x+1, x \ne 1
x+1 <- x+1 \text{ for } x \neq 1
x+1 <- x+1 \quad (x \neq \pm 1)
9 <- 4+\dots+2 = 9
\frac{1}{6} <- \mathbb{P}(A) = \frac16
""",
    "a decimal beside an exact value": r"""
\frac{14}{3} <- \frac{14}{3} \approx 4.67
\frac{14}{3} <- x = \frac{14}{3} \approx 4.666
3\sqrt{13} <- 3\sqrt{13} (\approx 10.82)
10.82 <- 3\sqrt{13} \approx 10.82
3\sqrt{13} <- 3\sqrt{13}\text{ cm} \approx 10.8\text{ cm}
\frac{1}{3} <- \frac{1}{3} \approx 33.3\%
11.5 <- x \approx 11.5
\frac{14}{3} <- \frac{14}{3} \approx 5.67
x = 10 <- x = 5 + 5 = 10
7\pi <- 7\pi ≈ 21.99
""",
    "units": r"""
9 <- 9\text{ cm$^2$}
9 <- 9\;\mathrm{m/s}
9\text{ m per s} <- 9\ \frac{\text{m}}{\text{s}}
9 <- 9\ (\text{square units})
9 <- \SI{9}{cm}
9 <- \text{\$9}
18.90 <- $\$18.90$
90^\circ <- 90\degree
90^\circ <- 90º
9 <- 9 \pmod{7}
""",
    "spellings": r"""
52_8 <- 52₈
52_8 <- 52_{\text{base }8}
x^3+x <- x³+x
(1,2) <- \lparen 1,2\rparen
[1,2] <- \lbrack 1, 2 \rbrack
\frac{9}{256} <- {9 \over 256}
-\frac{35}{9} <- -3 8/9
13535 <- 13'535
3\sqrt{2} <- 3\surd 2
3\sqrt{2} <- \sqrt{2} \times 3
\frac{1}{2} <- \nicefrac{1}{2}
\frac{1}{2} <- 1 \over 2
(1,2) <- x=1 \quad y=2
6.02\times10^{23} <- 6.02 x 10^23
120 <- 5! = 120
120 <- 5!=120
1234567 <- 1{,}234{,}567
""",
    "intervals": r"""
(2,\infty) <- ]2, \infty[
(2,3] <- ]2;3]
(2,\infty) <- (2, inf)
(3,5] <- x > 3 \text{ and } x \le 5
[3,5) <- x < 5 \text{ and } x \geq 3
(3,5] <- \{x \mid 3 < x \le 5\}
(3,5] <- \left\{x \,\middle|\, 3 < x \leqslant 5\right\}
(5,\infty) <- \text{all } x > 5
(0,9) \cup (9,36) <- (0,9) U (9,36)
""",
    "matrices": r"""
\begin{pmatrix} 1 & 3\\ 2& 4 \end{pmatrix} <- \left[\begin{array}{cc} 1&3 \\ 2&4\end{array}\right]
\begin{pmatrix} 1 & 3\\ 2& 4 \end{pmatrix} <- [[1, 3], [2, 4]]
\begin{pmatrix} 1 \\ 2 \end{pmatrix} <- \left(\begin{smallmatrix} 1 \\ 2\end{smallmatrix}\right)
\begin{pmatrix} 1 \\ 2 \end{pmatrix} <- \begin{pmatrix} 1 & 2\end{pmatrix}^T
""",
}
WRONG = r"""
9 <- \text{The answer is } 8
9 <- The answer is not 9
9 <- \text{There are at least }9
9 <- \text{Answer: } 9 \text{ or } 8
\text{(C)} <- \text{Option B}
\text{(C)} <- Option C or B
9 <- nine tenths
\frac{1}{2} <- one third
\frac{3}{4} <- three fourteenths
3:2 <- 2 to 3
3:2 <- 3:2:1
3:2 <- 6:4
(1,2) <- 1 or 2
9 <- \text{Area} > 9
9 <- \text{The remainder is }8
9 <- \text{The remainder is }9\text{ or }8
9 <- \text{It is wrong that the sum is }9
9 <- 2^{5} \equiv 8 \pmod{7}
(-\infty,2)\cup(2,\infty) <- x\ne3
9 <- \text{Area} \geq 9
9 <- n <= 9
9 <- => 8
9 <- 3 \text{ times } 3
x+1 <- x+2, x \ne 1
x \ne 3 <- x+1, x \ne 3
9 <- 4+\dots+9 = 10
120 <- 5!=121
9 <- \text{nine dozen}
9 <- ninety
9 <- minus nine
-9 <- nine
9 <- 9 (eight)
9 <- eight (9)
9 <- four five
42 <- forty two hundred
5 <- \frac{14}{3} \approx 5
4.67 <- \frac{13}{3} \approx 4.67
5.67 <- \frac{14}{3} \approx 5.67
3\sqrt{13} <- 10.82
9\text{ m/s} <- 9\text{ m/h}
18.90 <- $\$18.09$
90^\circ <- 9º
9 <- 8 \pmod{7}
9 <- 9 \pmod{11}
52_8 <- 52₇
0.12_3 <- 0.\overline{12}_3
x^3+x <- x²+x
-\frac{35}{9} <- 3 8/9
(2,3] <- ]2,3[
(2,3] <- [2,3]
(3,5] <- x > 3 \text{ or } x \le 5
(3,5] <- x \ge 3 \text{ and } x \le 5
(3,5] <- x > 3 \text{ and } y \le 5
(3,5] <- \{x \mid 3 \le x \le 5\}
(0,9) \cup (9,36) <- (0,9) U (8,36)
\begin{pmatrix} 1 & 3\\ 2& 4 \end{pmatrix} <- [[1, 2], [3, 4]]
\begin{pmatrix} 1 \\ 2 \end{pmatrix} <- \begin{pmatrix} 2 & 1\end{pmatrix}^T
"""
WIDE = "\uff08{}\uff0c{}\uff09"
PAIRS = ["(6,31) <- " + WIDE.format(6, 31), *(pair for family in RIGHT.values() for pair in family.strip().split("\n"))]


def paid(pair, prompt):
    gold, answer = pair.split(" <- ")
    completion = rf"\boxed{{{answer}}}" if prompt == "boxed" else f"so </think> <answer> {answer} </answer>"
    example = Example("", "", {"problem": "What is it, modulo 7 or not?", "answer": gold})
    return reward(completion, example, MathOptions(prompt=prompt, timeout_s=60.0)).parts["answer"] == 1


@pytest.mark.parametrize("prompt", ["boxed", "r1_zero"])
@pytest.mark.parametrize("pair", PAIRS)
def test_what_dresses_an_answer_changes_nothing(pair, prompt):
    assert paid(pair, prompt)


@pytest.mark.parametrize("prompt", ["boxed", "r1_zero"])
@pytest.mark.parametrize("pair", [*WRONG.strip().split("\n"), "(6,31) <- " + WIDE.format(31, 6)])
def test_another_answer_in_the_same_dress_is_not_paid(pair, prompt):
    assert not paid(pair, prompt)


@pytest.mark.parametrize("exact", ["x+1", "x=3", r"\begin{pmatrix}1\end{pmatrix}", "(1,2)", "(" * 300])
def test_what_is_no_number_has_no_decimal_to_be_near_to(exact):
    assert is_near(exact, "1.5")
    assert is_near(r"\sqrt{2}", "1.41") and is_near("2/3", "0.66") and not is_near(r"\sqrt{2}", "1.51")


def test_a_text_that_the_reference_has_too_is_no_label():
    assert bare(r"\text{So } 9", r"\text{So } 9") == r"\text{So } 9"
    assert bare("nine", r"\text{nine}") == "nine"


@pytest.mark.parametrize(
    "piece", [" ", "~", r"\bm{", "**", r"\begin{array}", "(", r"{\over", "x >", "So, ", "one ", "_", "]"]
)
def test_reading_takes_time_in_proportion(piece):
    started = time.process_time()
    bare("9" + piece * (4000 // len(piece)), "9")
    bare(piece * (4000 // len(piece)) + "9", "9")
    assert time.process_time() - started < 20  # a fraction of a second here; a search that runs away takes for ever
