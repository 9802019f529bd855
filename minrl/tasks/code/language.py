"""The language of the code game: the part of Python in which what a program prints follows from its source.

Everything in it is on a list: kinds of syntax, names, attributes, modules. A program has no way to see an address, a
hash, the order of a set of texts, the text of an exception, how deep the interpreter can recurse, or its own machine.
What depends on the type of a value is refused as the program runs: `guarded` puts the checks of GUARDS where a value
becomes text or a member of a set.
"""

import ast
import builtins
import itertools
from collections.abc import Iterator
from typing import TypeGuard

MODULES = {
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"),
    "collections": ("Counter", "defaultdict", "deque"),
    "functools": ("cache", "cmp_to_key", "lru_cache", "partial", "reduce"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "heapreplace", "merge", "nlargest", "nsmallest"),
    "itertools": (
        "accumulate", "chain", "combinations", "combinations_with_replacement", "compress", "count", "cycle",
        "dropwhile", "filterfalse", "groupby", "islice", "pairwise", "permutations", "product", "repeat", "starmap",
        "takewhile", "tee", "zip_longest",
    ),
    "math": (
        "ceil", "comb", "dist", "factorial", "floor", "fsum", "gcd", "inf", "isclose", "isqrt", "lcm", "perm", "pi",
        "prod", "sqrt", "trunc",
    ),
}  # fmt: skip
"""Each module with what a program may use of it."""
BUILTINS = frozenset((
    "abs", "all", "any", "bin", "bool", "chr", "dict", "divmod", "enumerate", "filter", "float", "hex", "int",
    "isinstance", "iter", "len", "list", "map", "max", "min", "next", "oct", "ord", "pow", "print", "range",
    "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
    "ArithmeticError", "AssertionError", "IndexError", "KeyError", "LookupError", "OverflowError", "StopIteration",
    "TypeError", "ValueError", "ZeroDivisionError",
))  # fmt: skip
METHODS = frozenset((
    "add", "append", "appendleft", "bit_count", "bit_length", "capitalize", "clear", "copy", "count", "difference",
    "discard", "elements", "endswith", "extend", "extendleft", "find", "fromkeys", "from_iterable", "get", "index",
    "insert", "intersection", "isalnum", "isalpha", "isdigit", "isdisjoint", "islower", "isspace", "issubset",
    "issuperset", "isupper", "items", "join", "keys", "ljust", "lower", "lstrip", "most_common", "partition", "pop",
    "popitem", "popleft", "remove", "removeprefix", "removesuffix", "replace", "reverse", "rfind", "rindex", "rjust",
    "rotate", "rpartition", "rsplit", "rstrip", "send", "setdefault", "sort", "split", "splitlines", "startswith",
    "strip", "swapcase", "symmetric_difference", "title", "total", "union", "update", "upper", "values", "zfill",
))  # fmt: skip
ATTRIBUTES = METHODS.union(*MODULES.values())
VIEWS = ("items", "keys", "values")
SYNTAX = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Pass, ast.Assert, ast.Raise),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.FunctionDef, ast.Lambda, ast.Return, ast.Global),
    *(ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Try, ast.ExceptHandler, ast.Yield, ast.YieldFrom, ast.NamedExpr),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Name, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Starred, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp),
    *(ast.DictComp, ast.GeneratorExp, ast.JoinedStr, ast.FormattedValue, ast.Match, ast.match_case, ast.MatchValue),
    *(ast.MatchSingleton, ast.MatchSequence, ast.MatchMapping, ast.MatchStar, ast.MatchAs, ast.MatchOr),
    *(ast.arguments, ast.arg, ast.keyword, ast.alias, ast.comprehension),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)

GUARDS = """
def __guards__():
    from collections import Counter, deque
    plain = {int, float, bool, str, type(None), range, slice}
    def checked(value):
        kind = type(value)
        if kind in (list, tuple, deque, Members):
            for part in value:
                checked(part)
        elif kind in (dict, Counter):
            for pair in value.items():
                checked(pair)
        elif kind not in plain:
            raise TypeError("no text of " + kind.__name__)
        return value
    def is_number(value):
        return type(value) in (int, float, bool) or type(value) is tuple and all(map(is_number, value))
    def member(value):
        if type(value) is tuple:
            for part in value:
                member(part)
        elif type(value) not in (int, float, bool, str, type(None)) or value != value:
            raise TypeError("no set of " + type(value).__name__)
    def ordered(members):
        if not all(map(is_number, set.__iter__(members))):
            raise TypeError("a set of texts has no order")
        return set.__iter__(members)
    class Members(set):
        __hash__ = None
        def __init__(self, items=()):
            super().__init__(items)
            for value in set.__iter__(self):
                member(value)
        def __iter__(self):
            return ordered(self)
        def pop(self):
            ordered(self)
            return super().pop()
        def __repr__(self):
            ordered(self)
            return repr(set(self))
        def add(self, value):
            member(value)
            super().add(value)
        def copy(self):
            return Members(self)
        def update(self, *others):
            for other in others:
                super().update(Members(other))
        def union(self, *others):
            return Members(super().union(*others))
        def symmetric_difference(self, other):
            return Members(super().symmetric_difference(other))
        def intersection(self, *others):
            return Members(super().intersection(*others))
        def difference(self, *others):
            return Members(super().difference(*others))
        def __or__(self, other):
            return Members(super().__or__(other)) if isinstance(other, Members) else NotImplemented
        def __and__(self, other):
            return Members(super().__and__(other)) if isinstance(other, Members) else NotImplemented
        def __xor__(self, other):
            return Members(super().__xor__(other)) if isinstance(other, Members) else NotImplemented
        def __sub__(self, other):
            return Members(super().__sub__(other)) if isinstance(other, Members) else NotImplemented
    class View:
        def __init__(self, view):
            self.view = view
        def __iter__(self):
            return iter(self.view)
        def __len__(self):
            return len(self.view)
        def __contains__(self, value):
            return value in self.view
        def __reversed__(self):
            return reversed(self.view)
    def text(value=""):
        return str(checked(value))
    def show(*values, sep=" ", end="\\n"):
        print(*map(checked, values), sep=sep, end=end)
    def of_members(function):
        def total(*values, **options):
            one = len(values) == 1 and type(values[0]) is Members and not options.get("key")
            return function(set.__iter__(values[0]) if one else values[0], *values[1:], **options)
        return total
    return checked, Members, View, text, show, *map(of_members, (sorted, min, max))
__checked__, __set__, __view__, __str__, __print__, __sorted__, __min__, __max__ = __guards__()
"""
"""What stands before a program as it runs. No name in a program begins with two underscores."""
REPLACED = {name: f"__{name}__" for name in ("set", "str", "print", "sorted", "min", "max")}


def outside(tree: ast.AST) -> str:
    """What of a program is not in the language; empty if nothing."""
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call) and not (node.args or node.keywords)}
    found = [f"uses .{node.attr} uncalled" for node in nodes if _is_view(node) and id(node) not in called]
    return next(filter(None, itertools.chain(found, *map(_outside, nodes))), "")


def _is_view(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in VIEWS


def _outside(node: ast.AST) -> Iterator[str]:
    """Why a node is not in the language, if it is not."""
    if not isinstance(node, SYNTAX):
        yield f"uses {type(node).__name__}"
    yield from (f"uses {name}" for name in _names(node) if not _allowed(name))
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        yield from (f"binds {name}" for name in _names(node) if name in REPLACED)
    match node:
        case ast.Import(names):
            yield from (f"imports {one.name}" for one in names if one.name not in MODULES)
        case ast.ImportFrom(module, names, level):
            known = MODULES.get(module or "", ()) if not level else ()
            yield from (f"imports {module} {one.name}" for one in names if one.name not in known)
        case ast.Attribute(attr=name, ctx=context):
            yield "" if name in ATTRIBUTES and isinstance(context, ast.Load) else f"uses .{name}"
        case ast.ExceptHandler(type=kind, name=name) if kind is None or name:
            yield "catches every exception, or keeps one"  # RecursionError says how deep the interpreter can recurse
        case ast.Try(finalbody=[_, *_]):
            yield "uses finally"
        case ast.Compare(ops=ops, comparators=others):
            pairs = zip(ops, others, strict=True)
            identity = [one for op, one in pairs if isinstance(op, ast.Is | ast.IsNot)]
            yield from ("uses is" for one in identity if not _is_singleton(one))


def _names(node: ast.AST) -> list[str]:
    """The names that a node reads or binds."""
    match node:
        case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.alias(asname=str(name)):
            return [name]
        case ast.Global(names) | ast.Nonlocal(names):
            return names
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
    return []


def _allowed(name: str) -> bool:
    """Whether a name is on the list of Python's own, or none of Python's own."""
    return name in BUILTINS or not (hasattr(builtins, name) or name.startswith("__"))


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def guarded(program: str) -> ast.Module:
    """The program as it runs: the same, with the checks of GUARDS."""
    tree = _Guarding().visit(ast.parse(program))
    return ast.fix_missing_locations(ast.Module([*ast.parse(GUARDS).body, *tree.body], []))


def main() -> None:
    """Run `program.py`, in the sandbox."""
    with open("program.py", encoding="utf-8") as file:
        program = file.read()
    exec(compile(guarded(program), "program.py", "exec"), {"__name__": "__main__"})


class _Guarding(ast.NodeTransformer):
    """Puts the checks in."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(REPLACED.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "str":
            return node  # str.lower: the methods of texts are the type's own
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(ast.Name("isinstance"), [value, kinds]) if all(
                isinstance(one, ast.Name | ast.Tuple | ast.expr_context) for one in ast.walk(kinds)
            ):
                return ast.Call(node.func, [self.visit(value), kinds], node.keywords)
            case ast.Call(ast.Attribute(attr=name), [], []) if name in VIEWS:
                return _call("__view__", self.generic_visit(node))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return _call("__set__", ast.List([self.visit(one) for one in node.elts], ast.Load()))

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        visited = self.generic_visit(node)
        return _call("__set__", ast.ListComp(visited.elt, visited.generators))  # type: ignore[attr-defined]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):  # of a text, perhaps
            node.right = _call("__checked__", node.right)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):
            node.value = _call("__checked__", node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        self.generic_visit(node)
        node.value = _call("__checked__", node.value)
        return node


def _call(function: str, argument: ast.AST) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), [argument], [])  # type: ignore[list-item]
