"""Formulas that a verifier may compute: arithmetic on numbers and variables of a size that it can hold."""

import ast
import keyword
import math
import re
from typing import Any

FUNCTIONS = frozenset(("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"))
"""The functions that a formula may call."""

MAX_BITS = 10_000
"""Of any number that a formula may give on its way."""

MAX_EXPONENT = 1000
MAX_FACTORIAL = 1000
_FACTORIAL = re.compile(r"(?<![0-9.A-Za-z])([0-9]+)\s*!")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)|(?P<word>[A-Za-z][A-Za-z0-9]*)|[-+*/^(),!])\s*"
)


def parse_formula(text: str, **options: Any) -> Any:  # noqa: ANN401 - a sympy expression
    """sympy's `parse_expr` for plain formulas; `ValueError` for anything that could do more than compute."""
    from sympy.parsing.sympy_parser import parse_expr

    if not is_formula(text):
        raise ValueError("not a plain formula")
    if not is_small(text):
        raise ValueError("its numbers are too large")
    return parse_expr(text, **options)


def is_formula(text: str) -> bool:
    """Whether a text holds only numbers, variables, operators and calls of known functions.

    >>> [is_formula(text) for text in ("2*x**2 + log(x)/3", "test()", "(x)(1)", "x.y", "__import__('os')", "[1]")]
    [True, False, False, False, False, False]
    """
    position, callable_before, known_function = 0, False, False
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or keyword.iskeyword(token["word"] or ""):
            return False
        opens = token.group().strip() == "("
        if opens and callable_before and not known_function:
            return False
        callable_before = bool(token["word"] or token["number"]) or token.group().strip() in (")", "!")
        known_function = token["word"] in FUNCTIONS
        position = token.end()
    return True


def is_small(text: str) -> bool:
    """Whether no number on the way to a plain formula's value is too large to compute.

    >>> [is_small(text) for text in ("2*x**2 + log(x)/3", "20!", "9**9**9", "99999!", "1e99999", "x**-5000")]
    [True, True, False, False, False, False]
    """
    try:
        tree = ast.parse(_FACTORIAL.sub(_bound, text).replace("^", "**").strip(), mode="eval")
        return _bits(tree.body) <= MAX_BITS
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return False


def _bound(factorial: re.Match[str]) -> str:
    """A power that is larger than the factorial of a literal."""
    if len(factorial[1]) > 4 or int(factorial[1]) > MAX_FACTORIAL:
        raise ValueError("a large factorial")
    return f"({factorial[1]}**{factorial[1]})"


def _bits(node: ast.expr) -> float:
    """A bound of the bits of a value, of its numerator and denominator together. A variable has one."""
    match node:
        case ast.Name():
            return 1.0
        case ast.Constant(int() as value):
            return float(value.bit_length())
        case ast.Constant(float() as value):
            return abs(math.log2(value)) + 53 if value else 1.0
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.BinOp(left, ast.Pow(), right):
            power = 2 ** min(_bits(right), 64)
            if power > 2 * MAX_EXPONENT:
                raise ValueError("a large exponent")
            return _bits(left) * power
        case ast.BinOp(left, _, right):
            return _bits(left) + _bits(right) + 1
        case ast.Call(ast.Name("exp"), [argument]):
            return 2.0 ** min(_bits(argument), 64) * math.log2(math.e)
        case ast.Call(ast.Name(), arguments):
            return 64 + max(map(_bits, arguments), default=0.0)
    raise ValueError("not a plain formula")
