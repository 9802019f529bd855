"""Checks that a solution's functions return the types that the row's stub names."""

from minrl.tasks.rust.claims import new_mark
from minrl.tasks.rust.syntax import Node, field, is_public, parse, text, walk
from minrl.tasks.rust.tests import replace

NUMBERS = "u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64"
UNKNOWN_TYPES = ("abstract_type", "dynamic_type", "scoped_type_identifier", "function_type", "lifetime", "_")
STD_TYPES = {
    "String": "::std::string::String",
    "Vec": "::std::vec::Vec",
    "Option": "::std::option::Option",
    "Result": "::std::result::Result",
    "Box": "::std::boxed::Box",
}


def signature_checks(stub: str, solution: str, crate: str) -> str:
    """Rust that compiles only if the solution's functions return the types of the stub's.

    A result of the solution's own type could pretend to be equal to anything. Numbers may be of another width.
    Functions that are generic in the stub or whose types are not known by name are not checked. One that is generic in
    the solution alone compiles only if its result is made of types that the solution does not define.
    """
    stub_root = parse(stub)
    own = {
        field(item, "name")
        for item in stub_root.children
        if item.type in ("struct_item", "enum_item")
        and is_public(item)
        and not item.child_by_field_name("type_parameters")
    }
    generic = _generic(parse(solution), own)
    number, checks = f"Number{new_mark()}", []
    for item in stub_root.children:
        if item.type != "function_item" or not is_public(item) or item.has_error:
            continue
        returned, name = item.child_by_field_name("return_type"), field(item, "name")
        if returned is None or _has_types(item.child_by_field_name("type_parameters")) or name in generic:
            continue  # of a generic one the types cannot be inferred
        spelled = _spelled(returned, own, crate)
        if spelled is None:
            continue
        pinned, numbers = spelled
        count = sum(child.type == "parameter" for child in item.child_by_field_name("parameters").children)
        variables = [f"A{index}" for index in range(count)]
        bounds = ", ".join([*variables, *(f"N{index}: {number}" for index in range(numbers))])
        check = f"fn pin<{bounds}>(_: fn({', '.join(variables)}) -> {pinned}) {{}}"
        checks.append(f"{{ {check} pin({crate}::{name}); }}")
    if not checks:
        return ""
    numeric = " ".join(f"impl {number} for {name} {{}}" for name in NUMBERS.split())
    return f"\ntrait {number} {{}} {numeric} #[allow(dead_code)] fn {number}() {{ {' '.join(checks)} }}\n"


def _generic(root: Node, own: set[str]) -> set[str]:
    """The functions that are generic in the solution, and give nothing of a type that is its own."""
    aliases = {
        field(item, "name"): item.child_by_field_name("type") for item in root.children if item.type == "type_item"
    }
    found = set()
    for item in root.children:
        if item.type != "function_item":
            continue
        if _has_types(item.child_by_field_name("type_parameters")) or "impl" in field(item, "parameters"):
            returned = item.child_by_field_name("return_type")
            named = _types(returned, {name: node for name, node in aliases.items() if name not in own})
            if named <= {*own, *PLAIN, *_given_types(item)}:
                found.add(field(item, "name"))
    return found


PLAIN = frozenset((*STD_TYPES, *NUMBERS.split(), "bool", "char", "str"))


def _given_types(function: Node) -> set[str]:
    """The type variables of a function that are the types of its arguments, or of their parts: the caller's, then."""
    parameters = function.child_by_field_name("type_parameters")
    variables = {field(one, "name") for one in parameters.named_children} if parameters is not None else set()
    found: set[str] = set()
    for parameter in function.child_by_field_name("parameters").named_children:
        named = _types(parameter.child_by_field_name("type"), {})
        if named <= PLAIN | variables:
            found |= named & variables
    return found


def _types(returned: Node | None, aliases: dict[str, Node]) -> set[str]:
    """The names of the types that a type is made of; with `impl`, `dyn` and paths, which may be any."""
    found: set[str] = set()
    pending = [returned] if returned is not None else []
    while pending:
        for node in walk(pending.pop()):
            name = text(node) if node.type in ("type_identifier", "primitive_type", *UNKNOWN_TYPES[:4]) else ""
            if name in aliases:
                pending.append(aliases.pop(name))
            elif name:
                found.add(name)
    return found


def _has_types(parameters: Node | None) -> bool:
    """Whether there are others than lifetimes."""
    return parameters is not None and any(not child.type.startswith("lifetime") for child in parameters.named_children)


def _spelled(returned: Node, own: set[str], crate: str) -> tuple[str, int] | None:
    """The type with full paths, a type variable for each number and no elided lifetimes, and how many numbers it has;
    None if it has unknown parts.
    """
    edits, numbers, offset = [], 0, returned.start_byte
    for node in walk(returned):
        start, end = node.start_byte - offset, node.end_byte - offset
        if node.type in UNKNOWN_TYPES:
            return None
        if node.type == "reference_type":
            edits.append((start + 1, start + 1, "'static "))
        if node.type == "primitive_type" and text(node) in NUMBERS.split():
            edits.append((start, end, f"N{numbers}"))
            numbers += 1
        if node.type == "type_identifier":
            name = text(node)
            full = STD_TYPES.get(name) if name not in own else f"{crate}::{name}"
            if full is None:
                return None
            edits.append((start, end, full))
    return replace(text(returned), edits), numbers
