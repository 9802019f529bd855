"""What answers have left to compute, in problems that ask for the value and in those that name a form."""

import pytest
from test_worked_out import right

from minrl.tasks.math.leftovers import leftovers, read

WORKED_OUT = r"""
Expand $(3-x)(x+2)$. | 6+x-x^2 | -x^2+x+6
Simplify $-(x-3)(x+1)$. | 3+2x-x^2 | -x^2+2x+3
Expand $(p+q)(r-s)$. | pr+qr-ps-qs | -ps-qs+pr+qr
Rationalize $\frac{\sqrt{3}}{2\sqrt{2}}$. | \frac{\sqrt{6}}{4} | \frac{1}{4}\sqrt{6}
Compute $i(2-i)$. | 1+2i | 2i+1 ; 1+2\cdot i
Rationalize $\frac{1}{\sqrt{3}}$. | \frac{\sqrt{3}}{3} | \frac{1}{3}\sqrt{3} ; \frac13\sqrt3 ; \sqrt3/3
Simplify $\frac{1}{\sqrt3-1}$. | \frac{1+\sqrt{3}}{2} | \frac12(1+\sqrt3) ; \frac{1}{2}+\frac{\sqrt{3}}{2}
Rationalize $\frac{2}{\sqrt{7}-1}$. | \frac{\sqrt{7}+1}{3} | \frac{1}{3}(\sqrt{7}+1)
Find the cross product. | \begin{pmatrix} 1 \\ -2 \\ 3 \end{pmatrix} | \langle 1,-2,3\rangle
Find the vector. | (1,2,3) | \langle 1,2,3\rangle
Find the plane. | 5x - 7y + 11z + 4 = 0 | 0 = 5x - 7y + 11z + 4 ; 5x-7y+11z+4=0
Find the circle. | (x-1)^2+(y+2)^2=9 | 9=(x-1)^2+(y+2)^2
"""
LEFT = r"""
Rationalize the denominator of $\frac{5}{\sqrt{3}}$. | \frac{5\sqrt{3}}{3} | 5/\sqrt3 ; \frac5{\sqrt3} ; 5/sqrt(3)
Rationalize $\frac{1}{\sqrt2}$. | \frac{\sqrt{2}}{2} | 1/\sqrt2 ; \sqrt{1/2} ; \sqrt{\frac12}
Rationalize $\frac{2}{3+\sqrt{5}}$. | \frac{3-\sqrt{5}}{2} | 2/(3+\sqrt5) ; 2/(\sqrt5+3)
Rationalize $\sqrt{\frac{7}{5}}$. | \frac{\sqrt{35}}{5} | \sqrt{7/5}
Find $\tan 30^\circ$ in simplest form. | \frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}}
Simplify $(5x+1)-(3x-5)$. | 2x+6 | 6-2x+4x ; 3x+6-x
What is it? | 4x+3 | x+3+3x ; x + 3x + 3
Simplify. | 6a+4 | 4a+2a+4
Subtract $3x-2$ from $5x+1$. | 2x+3 | (5x+1)-(3x-2)
Simplify in simplest form: the root of 125. | 5\sqrt{5} | \sqrt{125} ; 25/\sqrt5
What is the length? | 6\sqrt{6} | \sqrt{216} ; 3\sqrt{24}
What is the distance? | 2\sqrt{10} | \sqrt{2^2+6^2} ; \sqrt{40} ; \sqrt{4+36}
Factor $4x^2-36$ completely. | 4(x-3)(x+3) | (2x-6)(2x+6) ; 4(x^2-9)
Factor $30x^3-8x^2+20x$. | 2x(15x^2-4x+10) | x(30x^2-8x+20) ; 2(15x^3-4x^2+10x)
Complete the square: $x^2+6x+5$. | (x+3)^2-4 | (x+1)(x+5) ; x(x+6)+5
Expand $(x+5)(x^2-5x+25)$. | x^3+125 | x^3+5^3
Find $(3-i)+(1-2i)$. | 4-3i | 3+1-3i ; 4+2i-5i
Write $9 \cdot 81$ as a power of 3. | 3^6 | 27^2 ; 9\cdot81 ; 729
Write 729 as a power of 3. | 3^6 | 27^2 ; 9\cdot81 ; 729
Write 0.00045 in scientific notation. | 4.5\times10^{-4} | 45\times10^{-5} ; 45/100000 ; 0.00045
Find the area in terms of $\pi$. | 9\pi | 3^2\pi ; \pi\cdot3\cdot3 ; 28.2743
Write $0.25$ as a fraction. | \frac14 | 0.25 ; 25/100 ; 25\%
Write 0.25 as a fraction. | \frac14 | 0.25 ; 25/100
Write $\frac38$ as a decimal. | 0.375 | \frac{375}{1000} ; 37.5\% ; 3/8
Express it as a common fraction. | \frac13 | 3/9
How many? | 7 | 21/3
How many? | 3 | 6/2
What is it? | \frac38 | 6/16 ; \frac{6}{16}
Factor $ab+5b+2a+10$. | (a+5)(b+2) | \log_2 2^{ab+5b+2a+10}
Simplify $\frac{5}{1-2i}$. | 1+2i | i(2-i) ; \frac{5i}{i+2} ; \frac{10}{2-4i} ; \frac{5}{1-2i}
Simplify $\frac{x^2-1}{x-1}$. | x+1 | x+\frac{x}{x} ; x+x^0 ; \sqrt{x}^2+1 ; \frac{x(x+1)}{x} ; \frac{x^2+x}{x}
Rationalize $\frac{1}{\sqrt2-1}$. | \sqrt2+1 | 2.414214 ; \frac{\sqrt2}{2-\sqrt2} ; \frac{-1}{1-\sqrt2}
Compute $(1+2i)6-3i$. | 6+9i | [1+2i]6-3i ; (\sqrt{1}+2i)6-3i
"""
SHORT = [
    "2x+6",
    r"\frac{\sqrt{3}}{2}",
    r"\frac{1}{2}+\frac{\sqrt{3}}{2}",
    r"10\frac23\pi",
    r"2\sin x\cos x",
    "(x+1)(x-1)",
    "x^3",
]


def cases(text):
    return [tuple(line.split(" | ")) for line in text.strip().splitlines()]


@pytest.mark.parametrize(("problem", "gold", "answers"), cases(WORKED_OUT))
def test_order_sign_and_spelling_cost_nothing(problem, gold, answers):
    assert [answer for answer in answers.split(" ; ") if not right(problem, gold, answer)] == []


@pytest.mark.parametrize(("problem", "gold", "answers"), cases(LEFT))
def test_what_leaves_more_to_compute_than_the_reference_is_not_paid(problem, gold, answers):
    assert right(problem, gold, gold)
    assert [answer for answer in answers.split(" ; ") if right(problem, gold, answer)] == []


@pytest.mark.parametrize("text", SHORT)
def test_what_is_worked_out_leaves_nothing(text):
    assert read(text) is not None
    assert not set(leftovers(read(text))) - {"common", "open"}


@pytest.mark.parametrize("text", ["(", ")", "1+", "^2", "", "2^", r"\frac", r"\sqrt[", "(" * 99, "[" * 500, "#", "_"])
def test_what_cannot_be_read_leaves_nothing(text):
    assert not leftovers(read(text))
