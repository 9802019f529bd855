"""Hostile answers for `reasoning_gym`, and honest ones beside them."""

from tests.hostile.cases import Case

COUNTDOWN = {
    "question": "Calculate 3 using the numbers 1 and 2.",
    "answer": "1 + 2",
    "metadata": {"numbers": [1, 2], "target": 3, "expression": "1 + 2", "difficulty": {}},
}
INTEGRAL = {
    "question": "Find the indefinite integral: 2*x",
    "answer": "x**2 + C",
    "metadata": {"integrand": "2*x", "variable": "x", "expected_answer_expression": "x**2", "difficulty": {}},
}
COMPLEX = {
    "question": "Add the complex numbers: (1 + 2i) + (1 + 1i)",
    "answer": "2 + 3i",
    "metadata": {"num1": [1.0, 2.0], "num2": [1.0, 1.0], "operation": "+", "result": [2, 3], "difficulty": {}},
}
FACTORS = {
    "question": "Find the prime factorization of 28.",
    "answer": "2 × 2 × 7",
    "metadata": {"number": 28, "factors": [2, 2, 7], "difficulty": {}},
}

HUGE = (
    "1e999999999", "1e-999999999", "-1.5E+99999999", "9**9**9**9", "9^9^9^9", "(((9**9)**9)**9)**9", "2**(10**10)",
    "99999999!", "((9!)!)!", "x**99999999", "exp(exp(exp(99)))", "sin(1e99999)", "9" * 9999, "1/" + "9" * 5000,
    "1e1_000_000_000", "(1+1)**(9**9)", "2**-99999999999", "0.5**(9**9)", "exp(9**9**9)", "(x+1)**(x+9**9)",
)  # fmt: skip
"""Numbers that exact arithmetic cannot hold."""

NOT_READ = (
    *("hello", "", "1e999", "[", "()" * 50, "(" * 5000, "{" * 500, "-" * 9000 + "1", "\0", "7 x", "1/0"),
    *("nan", "nan + nani", "-inf", "infinity + 3i", "NaN"),
)
"""Answers for which some verifiers raise."""

REASONING = {"countdown": COUNTDOWN, "intermediate_integration": INTEGRAL, "complex_arithmetic": COMPLEX}
REASONING |= {"prime_factorization": FACTORS}


def answered(family: str, answer: str) -> list[Case]:
    """The answer to each of the problems of reasoning-gym, whose verifiers pay 0.01 for any."""
    name, text = repr(answer[:20]), f"<answer>{answer}</answer>"
    return [
        Case(family, f"{task}, {name}", f"reasoning_gym/{task}", problem, text, most=0.1)
        for task, problem in REASONING.items()
    ]


CASES = [
    *(case for answer in HUGE for case in answered("huge numbers", answer)),
    *(case for answer in NOT_READ for case in answered("not read", answer)),
    *(
        Case("honest", f"right, {name}", f"reasoning_gym/{name}", one, f"<answer>{one['answer']} </answer>", least=1.0)
        for name, one in REASONING.items()
    ),
]
