"""Refuses Rust that a solution has no need of and that could be paid for without solving anything.

This is the second line. What holds are the walls: a test program that cannot read itself (runner.py), tests with false
twins (claims.py), the compiler's own ban on `unsafe`, and object code that calls neither files nor processes
(objects.py). Here the source's syntax tree is read, which shows what those cannot see: types that answer for themselves
in an assertion, conditions that show clippy other code, attributes, and macros that hide any of it. A solution may use
what the row's own stub, reference or tests use.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from minrl.tasks.rust.syntax import Node, field, is_public, parse, plain, text, tokens, walk

REASONS = (
    "syntax", "word", "macro", "attribute", "condition", "shadowed_name", "pub_trait", "own_comparison", "forged",
    "reads_files", "symbol", "section", "std_process", "std_fs", "std_net", "std_env", "std_backtrace",
)  # fmt: skip
"""Why a solution is refused: here, and for what the compiler made of it."""

WORDS = frozenset([
    "include_str", "include_bytes", "option_env", "global_asm", "naked_asm", "extern", "link_section",
    "no_mangle", "export_name", "global_allocator", "long_running_const_eval",
])  # fmt: skip
NAMED = frozenset(("include", "env", "cfg", "asm"))
"""Macros of std that are refused, whose names are common words."""
ATTRIBUTES = frozenset([
    "allow", "cfg", "cfg_attr", "cold", "default", "deny", "deprecated", "derive", "doc", "expect", "forbid", "ignore",
    "inline", "must_use", "non_exhaustive", "recursion_limit", "repr", "rustfmt::skip", "should_panic", "test",
    "track_caller", "warn",
])  # fmt: skip
CONDITIONS = frozenset([
    "all", "any", "debug_assertions", "doc", "not", "panic", "target_arch", "target_endian", "target_os",
    "target_pointer_width", "test", "unix", "windows", "true", "false", '""', "=", "(", ")", ",",
])  # fmt: skip
"""What a condition is made of: what is the same for the tests, for clippy and for its own tests but `test`."""
MOST_IN_CONDITION = 64
ASSERTIONS = frozenset(f"{kind}assert{how}" for kind in ("", "debug_") for how in ("", "_eq", "_ne"))
CALLED = frozenset(["downcast_ref", "map", "as_str", "or", "copied", "unwrap_or_default", "contains", "as_ptr", "len"])
"""Methods that the wrapped tests call."""
OF_STD = re.compile(r"(?:::)?(?:std|core)::result::Result<.*>", re.DOTALL)
SHADOWED = frozenset([
    "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
    "f32", "f64", "String", "Vec", "Option", "Result", "Box", "Some", "None", "Ok", "Err", "ToString",
])  # fmt: skip
DEFINING = frozenset(("struct", "enum", "type", "union", "trait"))
IN_NO_MACRO = frozenset(("use", "mod", "trait", "unsafe", "macro_rules!"))
COMPARISONS = frozenset(("PartialEq", "Not"))
"""Traits by which a result of the solution's own type could answer for itself in `assert_eq!(f(x), y)` or
`assert!(f(x))`."""
RAW, MOST_RAW = re.compile('r#+"'), 200
"""Raw strings that may begin: for one that does not end, tree-sitter reads to the end of the source."""
MOST_QUOTES = 6_000
"""Of `"`: what is nothing else is parsed in seconds, 35 microseconds for each, to be no Rust in the end."""
TYPES = ("struct_item", "enum_item", "union_item")


def refusal(solution: str, given: str, allow_unsafe: bool) -> str | None:
    """The first reason to refuse the solution, or None. `given` is Rust text of the row itself: stub, reference, tests.

    >>> refusal("pub struct bool;", "", allow_unsafe=False)
    'shadowed_name'
    """
    if len(RAW.findall(solution)) > MOST_RAW or solution.count('"') > MOST_QUOTES:
        return "syntax"
    root, allowed = parse(plain(solution)), tokens(parse(plain(given)))
    if root.has_error:
        return "syntax"
    nodes, known = list(walk(root)), frozenset(allowed)
    words = tokens(root)
    macros = [tokens(node) for node in nodes if node.type == "macro_definition"]
    used = [tokens(node) for node in nodes if node.type == "use_declaration"]
    return next(
        (
            reason
            for reasons in (
                _words(words, used, known, allow_unsafe),
                _attributes(words, known),
                _names(nodes, used, known),
                _macros(macros, known),
                ["own_comparison"] if _forges_comparison(nodes, macros, words, allowed) else [],
            )
            for reason in reasons
        ),
        None,
    )


def _words(words: list[str], used: list[list[str]], known: frozenset[str], allow_unsafe: bool) -> Iterator[str]:
    banned = (WORDS | (frozenset() if allow_unsafe else {"unsafe"})) - (known & {"long_running_const_eval"})
    if not banned.isdisjoint(_without_alloc(words)) or any(not NAMED.isdisjoint(path) for path in used):
        yield "word"
    if any(word in NAMED and after == "!" for word, after in pairwise(words)):
        yield "word"


def _without_alloc(words: list[str]) -> Iterator[str]:
    """The words without the `extern` of `extern crate alloc;`, which has less than std."""
    for index, word in enumerate(words):
        if word != "extern" or words[index + 1 : index + 4] != ["crate", "alloc", ";"]:
            yield word


def _attributes(words: list[str], known: frozenset[str]) -> Iterator[str]:
    """Attributes are looked for among all tokens, those of macros too."""
    padded, given = [*words, "", "", "", "", "", ""], _given_attributes(words)
    for index, word in enumerate(words):
        if word != "#" or padded[index + 1] not in ("[", "!"):
            continue
        start = index + 2 + (padded[index + 1] == "!")
        name = "".join(padded[start : start + 3]) if padded[start + 1] == "::" else padded[start]
        if name not in ATTRIBUTES | given and not (name in ("macro_export", "macro_use") and "macro_export" in known):
            yield "attribute"
        if name in ("cfg", "cfg_attr"):
            condition, *more = _parts(padded[start + 1 : start + 1 + MOST_IN_CONDITION])
            if not {*condition} <= CONDITIONS | ({"feature"} & known) or (name == "cfg" and more):
                yield "condition"
            if any(part[:1] and part[0] not in ATTRIBUTES - {"cfg", "cfg_attr"} for part in more):
                yield "attribute"


def _given_attributes(words: list[str]) -> frozenset[str]:
    """Variables of macros that can only be what stands in `#[..]` where the macro is called: `$(#[$m:meta])*`."""
    bound = [index for index, word in enumerate(words) if word == ":" and index and words[index - 1].startswith("$")]
    marked = {index for index in bound if words[index - 3 : index - 1] == ["#", "["] and words[index + 1] == "meta"}
    return frozenset(words[index - 1] for index in marked) - {words[i - 1] for i in bound if i not in marked}


def _parts(words: list[str]) -> list[list[str]]:
    """The tokens between the parentheses that open here, split at their commas. What does not end here has a part that
    is nothing's name.
    """
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return parts
        if word == "," and depth == 1:
            parts.append([])
        elif word != "(" or depth > 1:
            parts[-1].append(word)
    return [["?"], ["?"]]


def _names(nodes: list[Node], used: list[list[str]], known: frozenset[str]) -> Iterator[str]:
    """Names that the hidden tests see through `use solution::*`, in functions too, before those of std."""
    std_is_own = any(node.type == "mod_item" and field(node, "name") in ("r#std", "std", "core") for node in nodes)
    exported = any("*" in path or not SHADOWED.isdisjoint(path) for path in used if path[0] == "pub")
    hidden = frozenset() if exported else _in_private_modules(nodes[0])
    for node in nodes:
        if (
            node.id not in hidden
            and node.type.removesuffix("_item") in DEFINING
            and field(node, "name").removeprefix("r#") in SHADOWED
        ):
            of_std = node.type == "type_item" and OF_STD.fullmatch(field(node, "type")) and not std_is_own
            if is_public(node) and not of_std:
                yield "shadowed_name"
        if node.type == "trait_item" and field(node, "name") not in known and is_public(node) and _steers(node, known):
            yield "pub_trait"
        if node.type == "macro_invocation" and "trait" in tokens(node):  # which the macro may pass on
            yield "macro"
    if any(word == "as" and name in SHADOWED for path in used for word, name in pairwise(path)):
        yield "shadowed_name"


def _in_private_modules(root: Node) -> frozenset[int]:
    """The ids of the nodes that nothing outside of the solution can name, as long as nothing exports them."""
    outside = {node.id for node in walk(root, skip=lambda node: node.type == "mod_item" and not _is_seen(node))}
    return frozenset(node.id for node in walk(root) if node.id not in outside)


def _steers(trait: Node, known: frozenset[str]) -> bool:
    """Whether a trait has, or a macro in it may make, a method that tests call: it could come before std's."""
    members = trait.child_by_field_name("body").named_children
    methods = [m for m in members if "self" in tokens(m.child_by_field_name("parameters") or trait)]
    names = {field(method, "name").removeprefix("r#") for method in methods}
    return any(m.type in ("macro_invocation", "expression_statement") for m in members) or bool(
        names & (known | CALLED)
    )


def _is_seen(item: Node) -> bool:
    return any(child.type == "visibility_modifier" for child in item.children)


def _macros(macros: list[list[str]], known: frozenset[str]) -> Iterator[str]:
    """A macro makes values, and what items it makes are written out in it."""
    for body in macros:
        name, inside = body[1], body[2:]
        exported_unsafe = "macro_export" in known and "unsafe" in inside
        if not (IN_NO_MACRO - known).isdisjoint(inside) or exported_unsafe or name in ASSERTIONS:
            yield "macro"
        for word, after in pairwise(inside):
            joined = word.startswith("$") and word != "$crate" and after == "!"
            if joined or (word in DEFINING and after in SHADOWED) or (word == "cfg" and after != "("):
                yield "macro"


def _forges_comparison(nodes: list[Node], macros: list[list[str]], words: list[str], given: list[str]) -> bool:
    """Whether a type that a test may see defines a comparison of its own, though no type of the row does."""
    if any(word in COMPARISONS and after == "as" for word, after in pairwise(words)):
        return True
    forbidden = COMPARISONS - {
        trait for trait in COMPARISONS for word, after in pairwise(given) if (word == trait and after in ("for", "<"))
    }
    helpers = _helpers(nodes, macros, frozenset(given))
    for node in nodes:
        trait = node.child_by_field_name("trait") if node.type == "impl_item" else None
        if trait is None:
            continue
        name = _last_name(tokens(trait.child_by_field_name("type") if trait.type == "generic_type" else trait))
        compared = [text(node.child_by_field_name("type")), *map(text, _arguments(trait))]
        bound = set(tokens(node.child_by_field_name("type_parameters") or node.children[0]))
        if name in forbidden and any(_bare(one) not in helpers - bound for one in compared if one != "Self"):
            return True
        if name in forbidden & {"Not"} and not any(map(_gives_itself, node.child_by_field_name("body").named_children)):
            return True  # what it gives may be a `bool`, as a condition has to be
    return any(_made_comparison(body, forbidden) for body in macros)


def _gives_itself(member: Node) -> bool:
    return member.type == "type_item" and (field(member, "name"), field(member, "type")) == ("Output", "Self")


def _arguments(generic: Node) -> list[Node]:
    listed = generic.child_by_field_name("type_arguments")
    return [] if listed is None else listed.named_children


def _helpers(nodes: list[Node], macros: list[list[str]], known: frozenset[str]) -> frozenset[str]:
    """The types of the solution that stand neither in a type that the row names and a test may see, nor in a macro."""
    defined = [node for node in nodes if node.type in TYPES]
    renamed = [node for node in nodes if node.type in ("type_item", "use_as_clause")]
    own = {_defined_name(node) for node in (*defined, *renamed)}
    macro_names = {body[1] for body in macros}
    holders: dict[str, set[str]] = {}
    pending = [(nodes[0], "")]
    while pending:
        node, holder = pending.pop()
        if node.type in (*TYPES, "type_item", "use_as_clause"):
            inner = _defined_name(node)
        elif node.type == "macro_definition" or (
            node.type == "macro_invocation" and field(node, "macro") in macro_names
        ):
            inner = MACRO
        elif node.type == "generic_type" and _last_name(tokens(node.child_by_field_name("type"))) in own:
            inner = _last_name(tokens(node.child_by_field_name("type")))
        else:
            inner = holder
        for name in {inner, *((text(node).removeprefix("r#"),) if not node.children else ())} & {*own, MACRO}:
            holders.setdefault(name, set()).add(inner if name != inner else holder)
        pending += [(child, inner) for child in node.children]
    seen = {_defined_name(node) for node in defined if _is_seen(node)} | {_defined_name(node) for node in renamed}
    return frozenset(
        name for name in map(_defined_name, defined) if _reached(name, holders).isdisjoint({MACRO, *(seen & known)})
    )


MACRO = "macro_rules!"
"""Stands for all macros of a solution, which may make anything of what they hold."""


def _defined_name(node: Node) -> str:
    """The name that an item, or the `as` of a `use`, gives."""
    return field(node, "alias" if node.type == "use_as_clause" else "name").removeprefix("r#")


def _reached(name: str, holders: dict[str, set[str]]) -> set[str]:
    found, pending = {name}, [name]
    while pending:
        more = holders.get(pending.pop(), set()) - found
        found |= more
        pending += more
    return found


def _bare(own: str) -> str:
    """The name of a type without its arguments."""
    return own.partition("<")[0].strip()


def _last_name(path: Iterable[str]) -> str:
    return next((name for name in reversed(list(path)) if name != "!"), "")


def _made_comparison(body: list[str], forbidden: frozenset[str]) -> bool:
    """Whether a macro could make such an `impl`: it has one, of the trait or of a trait that it is given."""
    inside = body[2:]
    derived = any(word == "derive" for word in inside)
    if "impl" in inside and not forbidden.isdisjoint(inside) and not derived:
        return True
    return any(word == "impl" and after.startswith("$") for word, after in pairwise(inside)) and "for" in inside
