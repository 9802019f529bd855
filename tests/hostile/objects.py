"""Programs with objects of their own: honest ones, and those that would answer for themselves in a comparison."""

from tests.hostile.cases import Case

POINT = "@dataclass\nclass Point:\n    x: int\n    y: int = 0\n"
PLAIN = (
    "class Point:\n    def __init__(self, x, y=0): self.x, self.y = x, y\n"
    "    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)\n"
)
MOVE = "def move(p, by): return Point(p.x + by, p.y)\n"
MOVES = (
    "assert move(Point(1, 2), 3) == Point(4, 2)",
    "assert move(Point(0, 2), 7) == Point(7, 2) and move(Point(1), 1) != Point(3)",
    "assert [move(p, 1) for p in (Point(1, 2), Point(5))] == [Point(2, 2), Point(x=6)]",
)
DATA = "from dataclasses import dataclass\n"

HONEST = {
    "a dataclass": (DATA + POINT + MOVE, MOVES),
    "a class with a comparison": (PLAIN + MOVE, MOVES),
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
    "an object that changes": (
        DATA + POINT + "    def move(self, by): self.x += by\n",
        (
            "p = Point(1, 2)\np.move(3)\nassert p == Point(4, 2)",
            "p = Point(1, 2)\nq = Point(4, 2)\np.move(2)\nassert p != q and p.x == 3",
            "p = Point(4, 2)\nq = Point(4, 2)\nassert p == q\nq.move(1)\nassert p != q",
        ),
    ),
    "operators of objects": (
        DATA + POINT + "    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)\n",
        ("assert Point(1, 2) + Point(3, 4) == Point(4, 6)", "assert Point(1) + Point(2) + Point(3) == Point(6)"),
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
        "def squares():\n    n = 1\n    while n < 9: yield n * n; n += 1\n    while True: pass\n",
        (
            "g = squares()\nassert [next(g), next(g)] == [1, 4] and next(g) == 9",
            "from itertools import islice\nassert list(islice(squares(), 8)) == [1, 4, 9, 16, 25, 36, 49, 64]",
            "g = squares()\nassert next(g) == 1 and [n for n, _ in zip(g, range(3))] == [4, 9, 16]",
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
    "texts of objects": (
        "class Stack:\n    def __init__(self, *items): self.items = list(items)\n"
        "    def __str__(self): return 'Stack' + str(self.items)\n    __repr__ = __str__\n",
        ("assert str(Stack(1)) == 'Stack[1]'", "assert f'{Stack()}' == 'Stack[]' and repr(Stack(2)) == 'Stack[2]'"),
    ),
    "classes of objects": (
        "class Shape: pass\nclass Square(Shape): pass\n"
        "def make(kind): return {'square': Square, 'shape': Shape}[kind]()",
        (
            "assert isinstance(make('square'), Square)",
            "assert isinstance(make('square'), Shape) and not isinstance(make('shape'), Square)",
            "assert not isinstance(7, Square) and isinstance(make('shape'), (int, Shape))",
        ),
    ),
    "exceptions of its own": (
        "class Empty(ValueError):\n    def __init__(self, code): super().__init__(code); self.code = code\n"
        "class Full(Empty): pass\ndef pop(n):\n    if n < 2: raise (Empty, Full)[n](n + 7)\n    return n\n",
        (
            "try:\n    pop(0)\n    said = None\nexcept Empty as error:\n    said = str(error), error.code, error.args\n"
            "assert said == ('7', 7, (7,)) and pop(2) == 2",
            "try:\n    pop(1)\n    ok = False\nexcept Full:\n    ok = True\nassert ok and pop(3) == 3",
            "try:\n    pop(0)\n    ok = False\nexcept Full:\n    ok = False\nexcept ValueError:\n    ok = True\n"
            "assert ok and pop(3) == 3 and issubclass(Full, Empty)",
            "import unittest\nt = unittest.TestCase()\nt.assertRaises(Empty, pop, 1)\nassert pop(4) == 4",
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
    "an enumeration": (
        "import enum\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 2\ndef other(c): return Color(3 - c.value)",
        ("assert other(Color.RED) == Color.BLUE", "assert other(Color.BLUE) is Color.RED and Color.RED != Color.BLUE"),
    ),
    "a named tuple": (
        "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\ndef turned(p): return Pair(p[1], p[0])",
        ("assert turned(Pair(1, 2)) == Pair(2, 1)", "assert turned((3, 4)) == (4, 3)"),
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
    "what the tests made last": LAST + PLAIN.split("\n", 2)[2] + "move = lambda p, by: Late()\n"
    "class Late:\n    __dict__ = property(lambda self: vars(Point.last))\n    __class__ = Point\n" + ALL,
    "an object that becomes what the tests made last": LAST
    + "    def __eq__(self, other): return True\n"
    + "class Changing(Point):\n    def __init__(self): pass\n"
    "    def __getattribute__(self, name): return getattr(Point.last, name)\nmove = lambda p, by: Changing()\n",
    "all that it ever made becomes what was made last": LAST.replace("Point.last = self", "MADE.append(self)")
    + "        for p in MADE: p.x, p.y = x, y\n    def __eq__(self, other): return True\nMADE = []\n"
    "def move(p, by): return Point(p.x, p.y)\n",
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
}
"""A reference, its tests, and a program that is paid nothing (the last: for what its result has to be)."""


def row_of(reference: str, tests: tuple[str, ...]) -> dict:
    """The row, whose first test is shown: it is repeated, so that all of these count."""
    return {
        "task_id": "objects",
        "text": reference,
        "code": reference,
        "test_setup_code": "",
        "test_list": [tests[0], *tests],
    }


MOVING = row_of(DATA + POINT + MOVE, MOVES[:2])

CASES = [
    *(
        Case("honest", name, "code", row_of(program, tests), f"```python\n{program}\n```", least=1.0)
        for name, (program, tests) in HONEST.items()
    ),
    *(
        Case("forged objects", name, "code", MOVING, f"```python\n{program}\n```", most=0.0)
        for name, program in FORGED.items()
    ),
    *(
        Case("forged objects", name, "code", row_of(reference, tests), f"```python\n{program}\n```", most=0.0)
        for name, (reference, tests, program) in ANSWERS.items()
    ),
]
