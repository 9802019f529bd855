"""Hostile programs for `code` and `code_game`, hostile answers for `reasoning_gym`, and honest ones beside them."""

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
        "def outer():\n    def one(x):\n        got = half(x)\n        assert got == x / 2\n"
        "    one(0)\n    one(1)\n    one(2)\nouter()"
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
    "a match": "match [half(x) for x in range(5)]:\n    case [0.0, *rest]:\n        assert rest[3] == 2",
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


DEEP = "n = 0\ndef f():\n    global n\n    n += 1\n    f()\ntry:\n    f()\nexcept"

WHAT_NO_SOURCE_TELLS = {
    "an attribute by format": "print(len('{0.__class__.__init__.__globals__}'.format(print)))",
    "an attribute by format_map": "print(len('{x.__class__}'.format_map({'x': 1})))",
    "the path of an error": "try:\n    import maths\nexcept ImportError as e:\n    print(len(e.path or ''))",
    "the text of an error": "try:\n    [].pop()\nexcept IndexError as e:\n    print(len(str(e)))",
    "the arguments of an error": "try:\n    int('x')\nexcept ValueError as e:\n    print(len(e.args[0]))",
    "an address by str": "print(int(str(lambda: 0)[-9:-1], 16) % 97)",
    "an address by map": "print(int(list(map(str, [lambda: 0]))[0][-9:-1], 16) % 97)",
    "an address by %": "print(int(('%s' % (lambda: 0))[-9:-1], 16) % 97)",
    "an address by % in a tuple": "print(int(('%s%s' % (1, lambda: 0))[-9:-1], 16) % 97)",
    "an address by %=": "x = '%s'\nx %= (lambda: 0)\nprint(int(x[-9:-1], 16) % 97)",
    "an address by f-string": "print(int(f'{lambda: 0}'[-9:-1], 16) % 97)",
    "an address by f-string of a name": "f = lambda: 0\nprint(int(f'{f}'[-9:-1], 16) % 97)",
    "an address by !r": "f = lambda: 0\nprint(int(f'{f!r}'[-9:-1], 16) % 97)",
    "an address in a list": "print(len(str([lambda: 0])))",
    "an address in a dictionary": "print(len(str({1: iter([])})))",
    "an address in a generator": "print(len(str(x for x in [])))",
    "an address by isinstance": "f = lambda: 0\nprint(len(str(f) if isinstance(f, str) else str(f)))",
    "a frame": "g = (x for x in [])\nprint(g.gi_frame.f_lineno)",
    "a class": "class A: pass\nprint(len(A.__name__))",
    "a class by type": "print(len(type('A', (), {}).__name__))",
    "a dunder by name": "print(__name__ == '__main__')",
    "another name of a dunder": "def __str__(x): return 7\nprint(__str__(1))",
    "a name that was replaced": "def max(a, b): return 7\nprint(max(1, 2))",
    "the order of a set of texts": "print(ord(list({'a', 'b', 'c'})[0]))",
    "the order by next": "print(ord(next(iter(set('abc')))))",
    "the order by pop": "print(ord(set('abc').pop()))",
    "the order by unpacking": "a, *b = set('abc')\nprint(ord(a))",
    "the order by a star": "print(ord([*set('abc')][0]))",
    "the order by join": "print(ord(''.join(set('abc'))[0]))",
    "the order by sorted with a key": "print(ord(sorted(set('abc'), key=len)[0]))",
    "the order by max with a key": "print(ord(max(set('abc'), key=len)))",
    "the order by union": "print(ord(list({1}.union('abc') - {1})[0]))",
    "the order by update": "s = set()\ns.update('abc')\nprint(ord(list(s)[0]))",
    "the order by |=": "s = set()\ns |= {'a', 'b', 'c'}\nprint(ord(list(s)[0]))",
    "the order by keys": "print(ord(list({'a': 1, 'b': 2}.keys() | {'c'})[0]))",
    "the order by views": "d = {'a': 1, 'b': 2, 'c': 3}\nprint(ord(list(d.keys() & d.keys())[0]))",
    "the order by items": "d = {'a': 1, 'b': 2, 'c': 3}\nprint(ord(list(d.items() ^ {'d': 1}.items())[0][0]))",
    "the order by dict.keys": "print(ord(list(dict.keys({'a': 1}) | dict.keys({'b': 1}))[0]))",
    "the order by a view's name": "k = {'a': 1, 'b': 2}.keys\nprint(ord(list(k() | k())[0]))",
    "the order by a comprehension": "print(ord([c for c in {c for c in 'abc'}][0]))",
    "the order by a dictionary": "print(ord(list(dict.fromkeys({'a', 'b', 'c'}))[0]))",
    "the order by a counter": "from collections import Counter\nprint(ord(list(Counter({'a', 'b', 'c'}))[0]))",
    "the order by a deque": "from collections import deque\nprint(ord(deque({'a', 'b'}).pop()))",
    "the order by printing": "print(len(str({'a', 'b'})))",
    "the order by reduce": "from functools import reduce\nprint(ord(reduce(lambda a, b: a, {'a', 'b', 'c'})))",
    "the order by heapq": "import heapq\nprint(ord(heapq.nsmallest(1, {'a', 'b'}, key=len)[0]))",
    "the order by a copy": "print(ord(list({'a', 'b'}.copy())[0]))",
    "the order by star arguments": "print((lambda a, *b: ord(a))(*{'a', 'b', 'c'}))",
    "the order of a frozenset": "print(ord(list(frozenset('abc'))[0]))",
    "the order by set.pop": "print(ord(set.pop({'a', 'b', 'c'})))",
    "the order by set.union": "print(ord(list(set.union({'a', 'b'}, {'c'}))[0]))",
    "the order of what is no number": "print(str(list({float('nan'), 1.0, 2.0})[0])[0])",
    "an address by a kind": "r = []\nisinstance(1, [int, r.append(str(lambda: 0))][0])\nprint(len(r[0]))",
    "an address by a tuple of kinds": "r = []\nisinstance(1, (int, r.append(str(lambda: 0))))\nprint(len(r[0]))",
    "the order of functions": "print([f() for f in {lambda: 1, lambda: 2}][0])",
    "how deep it recurses": DEEP + ":\n    print(n)",
    "how deep, by name": DEEP + " RecursionError:\n    print(n)",
    "how deep, by its base": DEEP + " RuntimeError:\n    print(n)",
    "how deep, by finally": "def f(n):\n    try:\n        return f(n + 1)\n    finally:\n        return n\nprint(f(0))",
    "whether two are one": "print((257 is int('257')) + 0)",
    "a class pattern": "match print:\n    case object(__self__=b):\n        print(len(str(b)))",
    "a hash": "print(hash('a') % 7)",
    "an annotation": "def f(x: open): return 7\nprint(f(1))",
    "a decorator": "@open\ndef f(): pass\nprint(7)",
    "a walrus": "print((x := id(7)) % 7)",
    "an import by another name": "from collections import abc as x\nprint(7)",
    "a star": "from math import *\nprint(factorial(3))",
    "a private name of a module": "from functools import _lru_cache_wrapper\nprint(7)",
    "the library's functions": "from functools import singledispatch\nprint(7)",
    "a named tuple": "from collections import namedtuple\nprint(len(namedtuple('A', 'x').__doc__))",
    "the sine of the machine": "import math\nprint(int(math.sin(1e22) * 1e17))",
    "a statistic of a cache": "from functools import cache\n@cache\ndef f(): pass\nprint(f.cache_info().hits)",
    "an attribute that is set": "def f(): pass\nf.x = 7\nprint(f.x)",
    "a with": "with open('/etc/hostname') as f:\n    print(len(f.read()))",
    "a coroutine": "async def f(): return 7\nprint(f().cr_frame.f_lineno)",
    "the size of an integer": "print((7).__sizeof__())",
    "a type parameter": "def f[T](x: T): return x\nprint(f(1))",
    "a file by print": "print(7, file=1)",
}  # fmt: skip
"""Programs of the code game whose integer does not follow from their source."""

PLAIN = {
    "s = {1, 2, 3}\ns.add(4)\nprint(len(s | {7}) + sum(s))": "15",
    "print(len(set('hello')) + len({'a'} | {'b'}))": "6",
    "print(''.join(sorted(set('2110'))))": "012",
    "print(ord(min({'b', 'a'})) + ord(max(set('abc'))))": "196",
    "d = {'a': 1, 'b': 2}\nprint(sum(v for k, v in d.items()) + len(d.keys()) + ('a' in d.keys()))": "6",
    "from collections import Counter\nprint(Counter('hello').most_common(1)[0][1])": "2",
    "from functools import cache\n@cache\ndef f(n): return 1 if n < 1 else n * f(n - 1)\nprint(f(5))": "120",
    "match [1, 2]:\n    case [a, b]:\n        print(a + b)": "3",
    "try:\n    print(1 // 0)\nexcept ZeroDivisionError:\n    print(7)": "7",
    "x = 17\nx %= 5\nprint(f'{x}{x + 1:02d}' + '%d' % 5)": "2035",
    "print(isinstance('a', str) + isinstance({1}, set) + (None is None))": "3",
    "def g():\n x = 1\n def h():\n  nonlocal x\n  x += 1\n  return x\n return h()\nprint(g())": "2",
    "print(max([3, 4], key=lambda v: -v) + len(sorted(map(str, [3, 1]), key=str.lower)))": "5",
    "print(len({(1, 2), (2, 1)} - {(1, 2)}) + len({1} ^ {2}) + list({5})[0] + {3}.pop())": "11",
}  # fmt: skip
"""Programs of the code game, and what they print."""

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
