"""Hostile programs for `code`: right once, then an end; what an assert around which something broke off is worth."""

from tests.hostile.cases import Case

HALF = {
    "task_id": "hostile/half",
    "prompt": 'def half(x):\n    """Half of x."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
}

TESTS = {
    "for": "for x in range(5):\n    got = half(x)\n    assert got == x / 2",
    "assert alone in the loop": "for x in range(5):\n    assert half(x) == x / 2",
    "while": "x = 0\nwhile x < 5:\n    got = half(x)\n    assert got == x / 2\n    x += 1",
    "for else": "for x in range(5):\n    got = half(x)\n    assert got == x / 2\nelse:\n    assert half(5) == 2.5",
    "nested loops": "for x in range(5):\n    for y in [half(x)]:\n        assert y == x / 2",
    "the loop raises itself": "for x in map(half, range(5)):\n    assert x * 2 in range(5)",
    "called in a loop": "def one(x):\n    assert half(x) == x / 2\n    half(x + 1)\nfor x in range(5):\n    one(x)",
    "called twice": "def one(x):\n    got = half(x)\n    assert got == x / 2\none(0)\none(1)\none(2)",
    "called in a comprehension": "def one(x):\n    assert x in (0.0, 0.5, 1.0)\n[one(half(x)) for x in range(3)]",
    "called by map": "def one(x):\n    assert x in (0.0, 0.5, 1.0)\nlist(map(one, map(half, range(3))))",
    "called by an assert": (
        "def one(x):\n    assert x in (0.0, 0.5, 1.0)\n    return True\n"
        "names = [1]\nassert all(one(half(x)) for x in range(3)) and names"
    ),
    "nested functions": (
        "def outer():\n    def one(x):\n        got = half(x)\n        assert got == x / 2\n    one(0)\n    one(1)\n    one(2)\nouter()"
    ),
    "in a with block": (
        "from contextlib import suppress\nwith suppress(Exception):\n    for x in range(5):\n"
        "        got = half(x)\n        assert got == x / 2"
    ),
    "in a try block": (
        "try:\n    for x in range(5):\n        got = half(x)\n        assert got == x / 2\nexcept Exception:\n    pass"
    ),
    "in a generator": (
        "def cases():\n    for x in range(5):\n        got = half(x)\n        assert got == x / 2\n        yield x\n"
        "assert len(list(cases())) == 5"
    ),
    "an early return": (
        "def one(xs):\n    for x in xs:\n        got = half(x)\n        assert got == x / 2\n        if x == 4:\n"
        "            return True\none(range(9))"
    ),
    "a method": (
        "class Tests:\n    def one(self, x):\n        got = half(x)\n        assert got == x / 2\n"
        "for x in range(5):\n    Tests().one(x)"
    ),
    "recursion": (
        "def one(x):\n    got = half(x)\n    assert got == x / 2\n    if x < 4:\n        one(x + 1)\none(0)"
    ),
    "a coroutine": (
        "import asyncio\nasync def one():\n    for x in range(5):\n        got = half(x)\n        assert got == x / 2\n"
        "asyncio.run(one())"
    ),
    "a match": "match [half(x) for x in range(5)]:\n    case [0.0, *rest]:\n        assert rest == [0.5, 1.0, 1.5, 2.0]",
}  # fmt: skip
"""Statements of a `check` function, whose asserts a program that is right once and then ends does not pass."""

ENDS = {
    "raises": "raise ValueError",
    "raises AssertionError": "raise AssertionError",
    "raises StopIteration": "raise StopIteration",
    "exits": "import os; os._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "closes the channel": "import os; os.close(3)",
    "takes all the memory": "return [bytes(2**20) for _ in range(2**20)]",
    "hangs": "while True: pass",
    "sleeps": "import time; time.sleep(600)",
}


def row(test: str) -> dict:
    """A row in the shape of HumanEval with these statements in its check function."""
    body = "\n".join(f"    {line}" for line in test.splitlines())
    return {**HALF, "test": f"def check(half):\n{body}\n"}


def right_once(end: str, times: int = 1) -> str:
    """A program that is right at first, then ends."""
    return (
        f"```python\ncalls = []\ndef half(x):\n    calls.append(x)\n    if len(calls) > {times}:\n        {end}\n"
        "    return x / 2\n```"
    )


CASES = [
    *(
        Case("right once", f"{shape}, raises", "code", row(test), right_once(ENDS["raises"]), most=0.0)
        for shape, test in TESTS.items()
    ),
    *(
        Case(
            "right once",
            f"for, {name} after {times}",
            "code",
            row(TESTS["for"]),
            right_once(end, times),
            most=0.0,
            options={"timeout_s": 1.0, "memory_mib": 256},
        )
        for name, end in ENDS.items()
        for times in (1, 3)
    ),
    *(
        Case("honest", f"right, {shape}", "code", row(test), HALF["canonical_solution"], least=1.0)
        for shape, test in TESTS.items()
    ),
]
