"""Refuses Rust solutions that could forge the evidence that a hidden test passed.

Only tokens are read, macro bodies included, by a lexer that knows comments, strings and lifetimes. `macro_rules!`
cannot join identifiers, so each name stands whole in the source and a path is found wherever it is written. A solution
may use what the row's own stub, reference or tests use.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile

TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* )
    | (?P<block> /\* )
    | (?P<text> (?:br|cr|r)(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*"
        | b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]{1,9}\}|.)|[^\\'\n])' )
    | (?P<unclosed> (?:br|cr|r)\#*" | [bc]?" )
    | (?P<lifetime> '(?:r\#)?\w+ )
    | (?P<number> \d\w* )
    | (?P<word> (?:r\#)?[^\W\d]\w* )
    | (?P<mark> :: | -> | => | . )
    """,
    re.VERBOSE | re.DOTALL,
)

WORDS = frozenset([
    "include_str", "include_bytes", "option_env", "asm", "global_asm", "naked_asm", "extern", "link_section",
    "no_mangle", "export_name", "no_main", "no_std", "no_core", "no_link", "global_allocator", "panic_handler",
    "proc_macro", "Backtrace",
])  # fmt: skip
MODULES = frozenset(["process", "env", "fs", "net", "os", "arch", "backtrace"])
MACROS = frozenset(("include", "env"))
ATTRIBUTES = frozenset([
    "allow", "cfg", "cold", "default", "deny", "deprecated", "derive", "doc", "expect", "forbid", "ignore", "inline",
    "macro_use", "must_use", "non_exhaustive", "repr", "rustfmt", "should_panic", "test", "track_caller", "warn",
])  # fmt: skip
SHADOWED = frozenset([
    "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
    "f32", "f64", "String", "Vec", "Option", "Box", "Some", "None", "Ok", "Err", "ToString",
])  # fmt: skip
DEFINING = frozenset(("struct", "enum", "type", "union", "trait"))
COMPARISONS = frozenset(("PartialEq", "Not"))
"""Traits by which a result of the solution's own type could answer for itself in `assert_eq!(f(x), y)` or
`assert!(f(x))`."""


def tokens(source: str) -> list[str]:
    """The tokens of Rust source without comments; strings and characters as `""`, raw identifiers as plain ones.
    A string that never closes, which no compiler takes, ends them.

    >>> tokens('let r#x = "// no"; /* a /* b */ c */ std::io')
    ['let', 'x', '=', '""', ';', 'std', '::', 'io']
    """
    found: list[str] = []
    position = 0
    while position < len(source):
        match = TOKEN.match(source, position)
        assert match is not None, "the last alternative matches any character"
        position = match.end()
        if match["unclosed"]:
            return [*found, '"']
        if match["block"]:
            position = _after_comment(source, position)
        elif match["text"]:
            found.append('""')
        elif not match["skip"]:
            found.append(match[0].removeprefix("r#"))
    return found


def _after_comment(source: str, position: int) -> int:
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(source, position):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(source)


def refusal(solution: str, given: str, allow_unsafe: bool) -> str | None:
    """The first reason to refuse the solution, or None. `given` is Rust text of the row itself: stub, reference, tests.

    >>> refusal("pub fn f() { std::process::exit(0) }", "", allow_unsafe=False)
    'std_process'
    """
    allowed = tokens(given)
    return next(_reasons(tokens(solution), allowed, allow_unsafe), None)


def _reasons(words: list[str], given: list[str], allow_unsafe: bool) -> Iterator[str]:
    known, padded = set(given), [*words, "", "", ""]
    for index, word in enumerate(words):
        before, following = padded[index - 1], padded[index + 1 : index + 4]
        if word in WORDS or (word == "unsafe" and not allow_unsafe) or (word in MACROS and following[0] == "!"):
            yield word
        if word == "std":
            yield from _standard(padded, index)
        elif word == "$":
            yield from _spelled(*following)
        elif word == "#":
            yield from _attribute(following, known)
        elif word in DEFINING and following[0] in SHADOWED:
            yield "shadowed_name"
        elif word == "trait" and before == "pub" and following[0] not in known:
            yield "pub_trait"
    if _forges_comparison(words, given):
        yield "own_comparison"


def _standard(words: list[str], index: int) -> Iterator[str]:
    """`std` must be followed by `::` and a harmless module, so that no alias and no macro hides what comes after."""
    before, mark, following = words[index - 1], words[index + 1], words[index + 2]
    if mark != "::":
        if before not in ("mod", "."):
            yield "std_alias"
    elif following == "{":
        group = list(_group(words, index + 2))
        yield from (f"std_{name}" for name, _ in group if name in MODULES)
        if words[index + 3] in ("self", "$") or ("*", 1) in group:
            yield "std_alias"
    elif following in MODULES:
        yield f"std_{following}"
    elif not (following[:1].isalpha() or following[:1] == "_"):
        yield "std_alias"


def _group(words: list[str], start: int) -> Iterator[tuple[str, int]]:
    """Each word from the brace at `start` to before its partner, with the number of braces around it."""
    depth = 0
    for index in range(start, len(words)):
        depth += {"{": 1, "}": -1}.get(words[index], 0)
        if depth == 0:
            return
        yield words[index], depth


def _spelled(name: str, next_: str, after: str) -> Iterator[str]:
    """A macro's variable may not name a macro, nor both sides of a path."""
    if name != "crate" and name.isidentifier() and (next_ == "!" or (next_ == "::" and after == "$")):
        yield "spelled_by_macro"


def _attribute(following: list[str], known: set[str]) -> Iterator[str]:
    opened, name = following[1:] if following[0] == "!" else following[:2]
    if opened == "[" and name not in ATTRIBUTES and not (name == "macro_export" and name in known):
        yield f"attribute_{name}" if name.isidentifier() else "attribute"


def _forges_comparison(words: list[str], given: list[str]) -> bool:
    """Whether a public type defines a comparison of its own, though no type of the row does."""
    if any(word in COMPARISONS and after == "as" for word, after in pairwise(words)):
        return True
    forbidden = COMPARISONS - {trait for trait, _, _ in _impls(given)}
    triples = zip(words, words[1:], words[2:], strict=False)
    own = {name for mark, kind, name in triples if mark in ("pub", ")") and kind in ("struct", "enum", "union")} | {"$"}
    return any(
        trait == "$" or (trait in forbidden and (arguments or target in own))
        for trait, arguments, target in _impls(words)
    )


def _impls(words: list[str]) -> Iterator[tuple[str, bool, str]]:
    """Of each `impl Trait<...> for Type`: the trait's name, whether it has arguments, the type's name."""
    for start, word in enumerate(words, 1):
        if word != "impl" or words[start - 2 : start - 1] in (["->"], ["("], [","], [":"], ["&"], ["<"]):
            continue
        end = next((i for i in range(start, len(words)) if words[i] in ("{", ";")), len(words))
        header = _without_arguments(words[start:end])
        if "for" in header:
            middle = header.index("for")
            target = takewhile(lambda name: name != "where", header[middle + 1 :])
            trait = _last_name(header[:middle], "::", "!", "<>")
            yield trait, header[middle - 1 : middle] == ["<>"], _last_name(target, "&", "mut", "::", "<>")


def _last_name(path: Iterable[str], *marks: str) -> str:
    """The last word that is no mark; `$` if a macro's variable is in the path, empty if it has no name."""
    names = [name for name in path if name not in marks]
    return "$" if "$" in names else names[-1] if names else ""


def _without_arguments(words: list[str]) -> list[str]:
    """The words with each outermost `<...>` as one `<>`."""
    kept, depth = [], 0
    for word in words:
        if word == "<":
            depth += 1
            if depth == 1:
                kept.append("<>")
        elif word == ">" and depth:
            depth -= 1
        elif depth == 0:
            kept.append(word)
    return kept
