"""What a Rust solution may not contain, because it could forge the evidence that a hidden test passed.

Read from the tokens alone, macro bodies included, by a lexer that knows comments, strings and lifetimes. A name may be
spelled by a macro only as it stands in the source, since `macro_rules!` cannot join identifiers, so a path is found
wherever it is written. What the row's own stub, reference or tests do is allowed there.
"""

import re
from collections.abc import Iterator

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

WORDS = frozenset(
    [
        "include_str",
        "include_bytes",
        "option_env",
        "asm",
        "global_asm",
        "naked_asm",
        "extern",
        "link_section",
        "no_mangle",
        "export_name",
        "no_main",
        "no_std",
        "no_core",
        "no_link",
        "global_allocator",
        "panic_handler",
        "proc_macro",
        "Backtrace",
    ]
)
MODULES = frozenset(["process", "env", "fs", "net", "os", "arch", "backtrace"])
MACROS = frozenset(("include", "env"))
ATTRIBUTES = frozenset(
    [
        "allow",
        "cfg",
        "cold",
        "default",
        "deny",
        "deprecated",
        "derive",
        "doc",
        "expect",
        "forbid",
        "ignore",
        "inline",
        "macro_use",
        "must_use",
        "non_exhaustive",
        "repr",
        "rustfmt",
        "should_panic",
        "test",
        "track_caller",
        "warn",
    ]
)
SHADOWED = frozenset(
    [
        "bool",
        "char",
        "str",
        "u8",
        "u16",
        "u32",
        "u64",
        "u128",
        "usize",
        "i8",
        "i16",
        "i32",
        "i64",
        "i128",
        "isize",
        "f32",
        "f64",
        "String",
        "Vec",
        "Option",
        "Box",
        "Some",
        "None",
        "Ok",
        "Err",
        "ToString",
    ]
)
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
    known = set(given)
    for index, word in enumerate(words):
        following = [*words[index + 1 : index + 4], "", "", ""][:3]
        if word in WORDS or (word == "unsafe" and not allow_unsafe) or (word in MACROS and following[0] == "!"):
            yield word
        if word == "std":
            yield from _standard(words, index)
        elif word == "$":
            yield from _spelled(following)
        elif word == "#":
            yield from _attribute(following, known)
        elif word in DEFINING and following[0] in SHADOWED:
            yield "shadowed_name"
        elif word == "trait" and words[index - 1] == "pub" and following[0] not in known:
            yield "pub_trait"
    yield from _comparisons(words, given)


def _standard(words: list[str], index: int) -> Iterator[str]:
    """`std` must be followed by `::` and a harmless module, so that no alias and no macro hides what comes after."""
    if words[index + 1 : index + 2] != ["::"]:
        if words[index - 1 : index] not in (["mod"], ["."]):
            yield "std_alias"
        return
    following = words[index + 2] if index + 2 < len(words) else ""
    if following == "{":
        group = _group(words, index + 2)
        for name in group:
            if name in MODULES:
                yield f"std_{name}"
        if {"self", "$"} & set(group[:1]) or "*" in _top_level(group):
            yield "std_alias"
    elif following in MODULES:
        yield f"std_{following}"
    elif not (following[:1].isalpha() or following[:1] == "_"):
        yield "std_alias"


def _group(words: list[str], start: int) -> list[str]:
    """What lies between the brace at `start` and its partner."""
    depth = 0
    for index in range(start, len(words)):
        depth += {"{": 1, "}": -1}.get(words[index], 0)
        if depth == 0:
            return words[start + 1 : index]
    return words[start + 1 :]


def _top_level(group: list[str]) -> list[str]:
    kept, depth = [], 0
    for word in group:
        depth += {"{": 1, "}": -1}.get(word, 0)
        if depth == 0:
            kept.append(word)
    return kept


def _spelled(following: list[str]) -> Iterator[str]:
    """A macro's variable may not name a macro, nor both sides of a path."""
    name, next_, after = following
    if name != "crate" and name.isidentifier() and (next_ == "!" or (next_ == "::" and after == "$")):
        yield "spelled_by_macro"


def _attribute(following: list[str], known: set[str]) -> Iterator[str]:
    opened = following.index("[") if "[" in following[:2] else None
    if opened is None or (opened == 1 and following[0] != "!"):
        return
    name = following[opened + 1]
    if name == "macro_export" and name in known:
        return
    if name not in ATTRIBUTES:
        yield f"attribute_{name}" if name.isidentifier() else "attribute"


def _comparisons(words: list[str], given: list[str]) -> Iterator[str]:
    allowed = {trait for trait, _, _ in _impls(given)}
    public = {
        words[index + 2]
        for index in range(len(words) - 2)
        if words[index] in ("pub", ")") and words[index + 1] in ("struct", "enum", "union")
    }
    for index, word in enumerate(words[:-1]):
        if word in COMPARISONS and words[index + 1] == "as":
            yield "own_comparison"
    for trait, arguments, target in _impls(words):
        if trait == "$" or (trait in COMPARISONS - allowed and (arguments or target in public or target == "$")):
            yield "own_comparison"


def _impls(words: list[str]) -> Iterator[tuple[str, bool, str]]:
    """Of each `impl Trait<...> for Type`: the trait's name, whether it has arguments, the type's name."""
    for start, word in enumerate(words):
        if word != "impl" or words[start - 1 : start] in (["->"], ["("], [","], [":"], ["&"], ["<"]):
            continue
        end = next((i for i in range(start, len(words)) if words[i] in ("{", ";")), len(words))
        header = _without_arguments(words[start + 1 : end])
        if "for" not in header:
            continue
        middle = header.index("for")
        path = [name for name in header[:middle] if name not in ("::", "!", "<>")]
        target = [name for name in header[middle + 1 :] if name not in ("&", "mut", "::", "<>")]
        where = target.index("where") if "where" in target else len(target)
        name = "$" if "$" in path else (path or [""])[-1]
        last = "$" if "$" in target[:where] else (target[:where] or [""])[-1]
        yield name, header[middle - 1 : middle] == ["<>"], last


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
