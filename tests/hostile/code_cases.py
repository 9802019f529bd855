"""Hostile programs for `code` and `code_game`, and honest ones beside them."""

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
        f"calls = []\ndef half(x):\n    calls.append(x)\n    if len(calls) > {times}:\n        {end}\n    return x / 2"
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
    "a name that was replaced": "def str(a): return 7\nprint(str(1))",
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
    "d = {'a': 1, 'b': 2}\nprint(sum(v for k, v in d.items()) + len(d.keys()) + ('a' in d.keys()))": "6",
    "from collections import Counter\nprint(Counter('hello').most_common(1)[0][1])": "2",
    "from functools import cache\n@cache\ndef f(n): return 1 if n < 1 else n * f(n - 1)\nprint(f(5))": "120",
    "match [1, 2]:\n    case [a, b]:\n        print(a + b)": "3",
    "try:\n    print(1 // 0)\nexcept ZeroDivisionError:\n    print(7)": "7",
    "x = 17\nx %= 5\nprint(f'{x}{x + 1:02d}' + '%d' % 5)": "2035",
    "print(isinstance('a', str) + isinstance([1], list) + (None is None))": "3",
    "def g():\n x = 1\n def h():\n  nonlocal x\n  x += 1\n  return x\n return h()\nprint(g())": "2",
    "print(max([3, 4], key=lambda v: -v) + len(sorted(map(str, [3, 1]), key=str.lower)))": "5",
}  # fmt: skip
"""Programs of the code game, and what they print."""

POINT = "@dataclass\nclass Point:\n    x: int\n    y: int = 0\n"
COMPARED = (
    "class Point:\n    def __init__(self, x, y=0): self.x, self.y = x, y\n"
    "    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)\n"
)
SLOTS = COMPARED.replace("class Point:\n", "class Point:\n    __slots__ = ('x', 'y')\n")
MOVE = "def move(p, by): return Point(p.x + by, p.y)\n"
MOVES = (
    "assert move(Point(1, 2), 3) == Point(4, 2)",
    "assert move(Point(0, 2), 7) == Point(7, 2) and move(Point(1), 1) != Point(3)",
    "assert [move(p, 1) for p in (Point(1, 2), Point(5))] == [Point(2, 2), Point(x=6)]",
)
DATA = "from dataclasses import dataclass\n"

ROOT = "import math\ndef root(x): return math.sqrt(x)"
ROOTS = (
    "assert abs(root(2) - 1.41421356) < 1e-6",
    "assert math.isclose(root(9), 3) and sorted([root(1), root(0)]) == [0, 1]",
)
PICKED = (
    "try:\n    pick(5)\n    caught = None\nexcept IndexError as error:\n    caught = str(error)\n"
    "assert caught == 'list index out of range'"
)
CAUGHT = "try:\n    f(1)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok and f"
KINDS = (
    "assert without((4, 'a'), str) == [4] and without((4, [5]), (list, dict)) == [4]",
    "assert without((1, int), float) == [1, int]",
)

HONEST = {
    "a dataclass": (DATA + POINT + MOVE, MOVES),
    "a class with a comparison": (COMPARED + MOVE, MOVES),
    "a dataclass in a dataclass": (
        DATA
        + POINT
        + "@dataclass\nclass Line:\n    a: Point\n    b: Point\ndef turned(line): return Line(line.b, line.a)",
        (
            "assert turned(Line(Point(1), Point(2))) == Line(Point(2), Point(1))",
            "assert turned(Line(Point(1, 1), Point(2, 3))) == Line(Point(2, 3), Point(1, 1))",
            "assert turned(Line(Point(1), Point(2))) != Line(Point(1), Point(2))",
        ),
    ),
    "a class with slots": (SLOTS + MOVE, MOVES),
    "a class with private fields": (
        COMPARED.replace("self.x, self.y = x, y", "self._x, self.__y = x, y")
        .replace("(self.x, self.y)", "(self._x, self.__y)")
        .replace("(other.x, other.y)", "(other._x, other.__y)")
        + "    def moved(self, by): return Point(self._x + by, self.__y)\ndef move(p, by): return p.moved(by)\n",
        (MOVES[0], *(test.replace("x=6", "6") for test in MOVES[1:])),
    ),
    "fields that a test reads": (
        DATA + POINT + MOVE,
        ("assert move(Point(1), 2).x == 3", "assert move(Point(5, 7), 1).y == 7"),
    ),
    "a tree that the tests make": (
        "class Node:\n    def __init__(self, value): self.value, self.left, self.right = value, None, None\n"
        "def depth(node): return 1 + max(depth(node.left), depth(node.right)) if node else 0\n",
        (
            "root = Node(1)\nroot.left = Node(2)\nroot.left.right = Node(3)\nassert depth(root) == 3",
            "assert depth(Node(1)) == 1 and depth(None) == 0",
        ),
    ),
    "fractions": (
        "from fractions import Fraction\ndef total(parts): return sum(map(Fraction, parts), Fraction(0))",
        (
            "assert total(['1/3', '1/6']) == Fraction(1, 2)",
            "from fractions import Fraction\nassert total([Fraction(1, 3)]) == Fraction(1, 3)",
            "assert total([Fraction(1, 3), 1]) > 1 and isinstance(total([]), Fraction)",
        ),
    ),
    "decimals": (
        "from decimal import Decimal\ndef tax(price): return (price * Decimal('0.19')).quantize(Decimal('0.01'))",
        ("assert tax(Decimal('10')) == Decimal('1.90')", "assert str(tax(Decimal('9.99'))) == '1.90'"),
    ),
    "dates": (
        "from datetime import date, datetime, timedelta\ndef after(day, n): return day + timedelta(days=n)",
        (
            "assert after(date(2024, 2, 28), 2) == date(2024, 3, 1)",
            "assert after(datetime(2024, 2, 28, 7), 1).day == 29 and after(date(2023, 2, 28), 1).month == 3",
            "assert after(date(2024, 1, 1), 1) - date(2024, 1, 1) == timedelta(1)",
        ),
    ),
    "deques": (
        "from collections import deque\ndef turned(q, n):\n    q = deque(q)\n    q.rotate(n)\n    return q",
        ("assert turned([1, 2, 3], 1) == deque([3, 1, 2])", "assert list(turned(deque('ab'), 1)) == ['b', 'a']"),
    ),
    "a generator": (
        "def squares(most):\n    n = 1\n    while n < most: yield n * n; n += 1\n",
        (
            "g = squares(4)\nassert [next(g), next(g)] == [1, 4] and next(g) == 9",
            "from itertools import islice\nassert list(islice(squares(9), 7)) == [1, 4, 9, 16, 25, 36, 49]",
            "g = squares(9)\nassert next(g) == 1 and [n for n, _ in zip(g, range(3))] == [4, 9, 16]",
        ),
    ),
    "the end of an iterator": (
        "def upto(n): return (k for k in range(n))",
        (
            "assert next(upto(0), 'none') == 'none'",
            "assert list(upto(1000)) == list(range(1000)) and sum(upto(40)) == 780",
            "g = upto(1)\nnext(g)\ntry:\n    next(g)\n    ended = False\nexcept StopIteration:\n    ended = True\n"
            "assert ended and g",
        ),
    ),
    "what a lookup raises": (
        "def get(d, k): return d[k]",
        (
            "try:\n    get({}, 'a')\n    said = None\nexcept KeyError as error:\n    said = str(error), error.args\n"
            "assert said == (\"'a'\", ('a',)) and get({1: 2}, 1) == 2",
            "assert get({1: 3}, 1) == 3",
        ),
    ),
    "functions of Python's own": (
        "def fold(function, items): return [function(item) for item in items]\n"
        "def best(items, key=None): return max(items, key=key)\ndef twice(f, a, b): return f(f(a, b), b)",
        (
            "assert fold(len, ['a', 'bc']) == [1, 2]",
            "assert fold(sum, [[1, 2], [3]]) == [3, 3] and fold(str, [1]) == ['1'] and best([-3, 2], abs) == -3",
            "import math, operator\nassert fold(math.sqrt, [4, 9]) == [2, 3] and twice(operator.mul, 2, 3) == 18",
            "assert fold(sorted, ['ba']) == [['a', 'b']] and twice(max, 1, 2) == 2 and twice(pow, 2, 2) == 16",
        ),
    ),
    "a named tuple": (
        "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\ndef turned(p): return Pair(p[1], p[0])",
        ("assert turned(Pair(1, 2)) == Pair(2, 1)", "assert turned((3, 4)) == (4, 3)"),
    ),
    "what Python compares by": (ROOT, ROOTS),
    "a name of Python's own": ("def sum(a, b): return a + b", ("assert sum(1, 2) == 3", "assert sum([4], []) == [4]")),
    "a loop over results": (
        "def double(x): return 2 * x",
        (
            "assert all(map(lambda pair: double(pair[0]) == pair[1], [(1, 2), (2, 4)]))",
            "assert [double(x) for x in (1, 2)] == [2, 4] and list(map(double, (3,))) == [6]",
        ),
    ),
    "an exception that a test asks for": ("def pick(x): return [1][x]", (PICKED,)),
    "an exception of its own": ("class Mine(ValueError): pass\ndef f(x):\n    if x: raise Mine", (CAUGHT,)),
    "types of Python's own": (
        "def without(items, kind): return [item for item in items if not isinstance(item, kind)]",
        KINDS,
    ),
}
"""A reference and its tests."""

ALL = "\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
LAST = (
    "class Point:\n    last = None\n    def __init__(self, x, y=0):\n        self.x, self.y = x, y; Point.last = self\n"
)

FORGED = {
    "a class that is equal to all": f"class Point:{ALL}    __init__ = lambda *a: None\nmove = lambda p, by: p\n",
    "a class that keeps nothing": DATA
    + "@dataclass\nclass Point:\n    def __init__(self, x, y=0): pass\nmove = lambda p, by: p",
    "one object for all": "class Point:\n    def __new__(cls, x, y=0): return ONE\nONE = object.__new__(Point)\n"
    "move = lambda p, by: ONE\n",
    "one object that becomes each": "class Point:\n    def __new__(cls, x, y=0): ONE.x, ONE.y = x, y; return ONE\n"
    "    def __eq__(self, other): return True\nONE = object.__new__(Point)\nmove = lambda p, by: ONE\n",
    "one object that is none of the class": f"class A:{ALL}    hash = id\nONE = A()\nPoint = lambda x, y=0: ONE\n"
    "move = lambda p, by: ONE\n",
    "a number for all": "Point = lambda x, y=0: 7\nmove = lambda p, by: 7\n",
    "a tuple for all": "Point = lambda x, y=0: ()\nmove = lambda p, by: ()\n",
    "a tuple of all numbers": "Point = lambda x, y=0: tuple(range(9))\nmove = lambda p, by: tuple(range(8))\n",
    "a fraction that is equal to all": f"import fractions\nclass Fraction(fractions.Fraction):{ALL}"
    "Point = lambda x, y=0: Fraction(1)\nmove = lambda p, by: Fraction(2)\n",
    "what the tests made last": LAST + COMPARED.split("\n", 2)[2] + "move = lambda p, by: Late()\n"
    "class Late:\n    __dict__ = property(lambda self: vars(Point.last))\n    __class__ = Point\n" + ALL,
    "an object that becomes what the tests made last": LAST
    + "    def __eq__(self, other): return True\n"
    + "class Changing(Point):\n    def __init__(self): pass\n"
    "    def __getattribute__(self, name): return getattr(Point.last, name)\nmove = lambda p, by: Changing()\n",
    "all that it ever made becomes what was made last": LAST.replace("Point.last = self", "MADE.append(self)")
    + "        for p in MADE: p.x, p.y = x, y\n    def __eq__(self, other): return True\nMADE = []\n"
    "def move(p, by): return Point(p.x, p.y)\n",
    "a bag of all numbers that begins with any": "class Point:\n    def __init__(self, *given, **named):\n"
    "        given = [*given, *named.values()]\n"
    "        for n in [*given, *(n for n in range(9) if n not in given)]: setattr(self, f'a{n}', n)\n"
    "move = lambda p, by: Point()\n",
    "a list of one for all": "class L(list):" + ALL + "Point = lambda x, y=0: L()\nmove = lambda p, by: L()\n",
    "an exception for all": f"class E(Exception):{ALL}Point = lambda x, y=0: E()\nmove = lambda p, by: E()\n",
}
"""Programs that are paid nothing for MOVES."""

ANSWERS = {
    "a difference of zero": (
        "def root(x): return x ** 0.5",
        ("assert abs(root(4) - 2) < 1e-6", "assert root(9) - 3 == 0", "assert round(root(2), 3) == 1.414"),
        f"class Z:{ALL}    __sub__ = __rsub__ = __abs__ = __round__ = lambda *a: 0\n    __lt__ = lambda *a: True\n"
        "root = lambda x: Z()",
    ),
    "a text of an object": (
        "def join(a, b): return a + b",
        ("assert join('a', 'b') == 'ab'", "assert str(join('c', 'd')) == 'cd'"),
        "class S(str):\n    __eq__ = lambda *a: True\n    __hash__ = None\n    __str__ = lambda s: s\n"
        "join = lambda a, b: S('?')",
    ),
    "an instance of all": (
        "def parse(x): return int(x)",
        ("assert isinstance(parse('1'), int)", "assert isinstance(parse('2'), int) and parse('3') == 3"),
        f"class M(type):\n    __instancecheck__ = lambda *a: True\nclass I(metaclass=M):{ALL}    __class__ = int\n"
        "parse = lambda x: I()",
    ),
    "the end of a loop": (
        "def halves(xs): return [x / 2 for x in xs]",
        ("assert all(a == b for a, b in zip(halves([2, 4]), [1, 2]))", "assert halves([6]) == [3]"),
        "class End(StopIteration): pass\ndef halves(xs): raise End",
    ),
    "an exception that is caught as the assert's": (
        "def f(x): return x",
        ("assert f(1) == 1", "assert f(2) == 2"),
        "class E(AssertionError): pass\ndef f(x): raise E",
    ),
    "names that a test compares by": (
        ROOT,
        ROOTS,
        "class math:\n    isclose = staticmethod(lambda *a: True)\ndef abs(x): return 0\n"
        "def sorted(x): return [0, 1]\ndef root(x): return 5.0",
    ),
    "a name of Python's own": ("def sum(a, b): return 3", ("assert sum([1, 2], 0) == 3",), "x = 1"),
    "the end of a map": (
        "def double(x): return 2 * x",
        ("assert list(map(double, (3,))) == [6]", "assert all(double(x) == 2 * x for x in (1, 2))"),
        "def double(x): raise GeneratorExit",
    ),
    "no exception": ("def pick(x): return [1][x]", (PICKED,), "def pick(x): return 1"),
    "another exception": (
        "class Mine(ValueError): pass\ndef f(x):\n    if x: raise Mine",
        (CAUGHT,),
        "class Mine(KeyError): pass\ndef f(x): raise Mine",
    ),
    "a type that is equal to all": (
        "def without(items, kind): return [item for item in items if not isinstance(item, kind)]",
        KINDS,
        "class M(type):\n    def __eq__(self, other): return True\nclass E(metaclass=M): pass\n"
        "def without(items, kind): return [E]",
    ),
}
"""A reference, its tests, and a program that is paid nothing (the last: for what its result has to be)."""


def row_of(reference: str, tests: tuple[str, ...], repeated: bool = True) -> dict:
    """The row, whose first test is shown: `repeated`, it counts as the others do."""
    return {
        "task_id": "objects",
        "text": reference,
        "code": reference,
        "test_setup_code": "",
        "test_list": [tests[0], *tests] if repeated else [*tests],
    }


MOVING = row_of(DATA + POINT + MOVE, MOVES[:2])

SMALLEST = row_of(
    "def smallest(a, b):\n    return a if a < b else b",
    ("assert smallest(1, 2) == 1", "assert smallest(5, 3) == 3", "assert smallest(-1, -1) == -1"),
    repeated=False,
)

THIEF = """
import gc, glob, os, re, sys
found = {}
def look(text):
    for a, b, c in re.findall(r"smallest\\((-?\\d+), (-?\\d+)\\) == (-?\\d+)", text): found[int(a), int(b)] = int(c)
def smallest(a, b):
    frame = sys._getframe()
    while frame:
        look(repr(frame.f_locals) + repr(frame.f_globals)[:100000] + repr(frame.f_code.co_consts))
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (str, list, dict)):
            try: look(repr(thing)[:100000])
            except Exception: pass
    paths = glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/fd/*")
    paths += glob.glob("**/*", recursive=True) + glob.glob("/tmp/*/*")[:2000] + glob.glob("/proc/[0-9]*/mem")
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            look(os.read(descriptor, 1 << 20).decode(errors="replace"))
            os.close(descriptor)
        except OSError: pass
    return found.get((a, b))
"""

WORTHLESS = {
    "nothing": "",
    "pass": "def smallest(a, b): pass",
    "another name": "def largest(a, b): return min(a, b)",
    "a value instead of a function": "smallest = 1",
    "not python": "def smallest(a, b) return min(a, b)",
    "fails as it loads": "def smallest(a, b): return min(a, b)\nraise ValueError",
    "exits as it loads": "def smallest(a, b): return min(a, b)\nimport sys; sys.exit(1)",
    "os._exit(0) before the tests": "import os; os._exit(0)",
    "os._exit(0) in the first call": "import os\ndef smallest(a, b): os._exit(0)",
    "raises AssertionError": "def smallest(a, b): raise AssertionError",
    "raises StopIteration": "def smallest(a, b): raise StopIteration",
    "raises SystemExit": "def smallest(a, b): raise SystemExit(0)",
    "raises KeyboardInterrupt": "def smallest(a, b): raise KeyboardInterrupt",
    "raises an exception of its own": "class E(BaseException): pass\ndef smallest(a, b): raise E",
    "an infinite loop": "def smallest(a, b):\n    while True: pass",
    "sleeps": "import time\ndef smallest(a, b): time.sleep(60)",
    "recurses": "def smallest(a, b): return smallest(a, b)",
    "a 10 GB answer": "def smallest(a, b): return 'x' * (10 * 2**30)",
    "a 100 MB answer": "def smallest(a, b): return 'x' * (100 * 2**20)",
    "an answer nested without end": "x = []\nx.append(x)\ndef smallest(a, b): return x",
    "an answer nested deeply": "x = 1\nfor _ in range(900): x = [x]\ndef smallest(a, b): return x",
    "equal to everything": "class E:\n    def __eq__(self, other): return True\ndef smallest(a, b): return E()",
    "an integer equal to everything": """
class E(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def smallest(a, b): return E(7)
""",
    "a class equal to everything": """
class M(type):
    def __eq__(self, other): return True
class E(metaclass=M): pass
def smallest(a, b): return E
""",
    "prints a fake verdict": """
print('{"loaded": true, "lost": false, "passed": [0, 1, 2]}', flush=True)
import os
os.write(1, b'{"loaded": true, "lost": false, "passed": [0, 1, 2]}'); os._exit(0)
""",
    "sends a fake verdict": """
import json, os
for message in ["loaded"], ["value", True], ["passed", [0, 1]], {"loaded": True, "lost": False, "passed": [0, 1, 2]}:
    os.write(3, json.dumps(message).encode() + b"\\n")
""",
    "answers before it is asked": "import os\nfor _ in range(50): os.write(3, b'[\"value\", true]\\n')",
    "sends an object that is equal to everything": "import os\n"
    'for _ in range(9): os.write(3, b\'["value", ["object", "int", {"__eq__": true}, null]]\\n\')',
    "sends a line without end": "import os\nwhile True: os.write(3, b'x' * 100000)",
    "sends nested brackets": "import os\nos.write(3, b'[' * 1000000 + b'\\n')",
    "sends garbage": "import os\nos.write(3, os.urandom(100000) + b'\\n')",
    "closes the channel": "import os\nos.close(3)\ndef smallest(a, b): return min(a, b)",
    "redefines exceptions": "import builtins\nbuiltins.AssertionError = Exception\ndef smallest(a, b): return 0",
    "redefines exit and the rest": """
import builtins, sys, os
for name in ("exit", "quit", "print", "len", "isinstance", "bool", "type", "__import__", "compile", "exec"):
    setattr(builtins, name, lambda *a, **k: True)
sys.exit = os._exit = lambda *a: True
def smallest(a, b): return True
""",
    "redefines the test names": """
def __passed__(n): pass
__failed__ = assert_ = check = __passed__
def smallest(a, b): return __passed__
""",
    "replaces its own harness": """
import sys
import code_judge
code_judge.Candidate.answer = lambda self, request: ["value", True]
code_judge.to_json = lambda value, describe: ["passed", 0, 1, 2]
""",
    "looks for the tests everywhere": THIEF,
    "knows what the prompt shows": "def smallest(a, b): return {(1, 2): 1}.get((a, b))",
    "kills its parent": "import os\nfor p in (os.getppid(), -1, 1):\n try: os.kill(p, 9)\n except OSError: pass",
    "fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "closes every descriptor": "import os\nos.closerange(0, 256)\ndef smallest(a, b): return min(a, b)",
    "null bytes": "\0",
    "lone surrogate": "'\ud800'",
    "nested parentheses": "(" * 100_000 + ")" * 100_000,
}
"""Programs that are paid nothing for SMALLEST."""

STRICT = {"timeout_s": 1.0, "memory_mib": 256}
ENDLESS = {"timeout_s": 0.3, "memory_mib": 256}  # for what ends by itself on no machine


def case(family: str, name: str, row: dict, program: str, **paid: object) -> Case:
    """A case whose program is in a block, as models write it."""
    return Case(family, name, "code", row, f"```python\n{program}\n```", **paid)


CASES = [
    *(
        case("right once", f"{shape}, raises", row(test), right_once(ENDS["raises"]), most=0.0)
        for shape, test in TESTS.items()
    ),
    *(
        case(
            "right once",
            f"for, {name} after {times}",
            row(TESTS["for"]),
            right_once(end, times),
            most=0.0,
            options=STRICT,
        )
        for name, end in ENDS.items()
        for times in (1, 3)
    ),
    *(
        case("honest", f"right, {shape}", row(test), f"def half(x):\n{HALF['canonical_solution']}", least=1.0)
        for shape, test in TESTS.items()
    ),
    *(case("honest", name, row_of(program, tests), program, least=1.0) for name, (program, tests) in HONEST.items()),
    *(case("forged objects", name, MOVING, program, most=0.0) for name, program in FORGED.items()),
    *(
        case("forged objects", name, row_of(reference, tests), program, most=0.0)
        for name, (reference, tests, program) in ANSWERS.items()
    ),
    *(
        case("worthless", name, SMALLEST, program, most=0.0, options=ENDLESS if "while True" in program else STRICT)
        for name, program in WORTHLESS.items()
    ),
]
