"""Quality of Rust by its syntax tree: counts by hand, scores at their ends."""

import pytest

from minrl.tasks.rust_quality import QualityWeights, points, quality, scores
from tests.test_rust_task import OWN_TESTS, SOLUTION

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")

BADLY = """
pub fn f(a: Vec<Vec<i32>>) -> i32 {
    let mut s = 0;
    for i in 0..a.len() {
        for j in 0..a[i].len() {
            if a[i][j] > 0 && a[i][j] < 9 || a[i][j] == 11 {
                match a[i][j] {
                    1 => s += 1,
                    2 => { if s > 3 { s += a.get(0).unwrap()[0]; } }
                    _ => unsafe { s += *a.get_unchecked(0).first().expect("one") },
                }
            }
        }
    }
    if s < 0 { panic!("no") } else if s > 100 { todo!() }
    s
}
"""


def test_branches_are_counted_by_hand():
    found = scores(BADLY)
    # 1 + two for + if + && + || + two further arms + inner if + if + else if = 11, one of 20 above 10
    assert found["complexity"] == pytest.approx(19 / 20)
    assert found["nesting"] == 3 / 5  # for, for, if, match, if: 5; the `else if` lies beside its `if`
    assert (found["iterators"], found["closures"], found["errors"], found["docs"]) == (0.0, 0.0, 0.0, 0.0)
    assert (found["panics"], found["unsafe"]) == (1 / 5, 1 / 2)  # unwrap, expect, panic!, todo!


def test_points_are_counted_by_hand():
    found = points(BADLY)
    # 1 + two for + if + three arms + inner if + if + else if = 10; two levels of nesting above 3
    assert (found["excess"], found["num_panics"], found["has_unsafe"]) == (2.0, 4.0, 1.0)
    assert (found["structure"], found["patterns"], found["documentation"], found["length"]) == (0.5, 0.0, 0.0, 0.5)
    assert found["idioms"] == pytest.approx(0.8 + 0.6)  # match, chained methods
    types = "struct A; enum B {} trait C { fn c(); } impl C for A { fn c() {} }"
    assert points(types)["structure"] == pytest.approx(0.3 + 0.3 + 0.5)  # methods are no functions
    assert points("fn f() {}\n" * 201)["structure"] == 2.0 and points("fn f() {}\n" * 201)["length"] == -2.0


def test_good_code_reaches_every_score_and_its_tests_are_not_counted():
    found = scores(SOLUTION + OWN_TESTS)  # the tests have an `unwrap`
    assert set(found.values()) == {1.0} and quality(found, QualityWeights()) == 1.0


def test_words_in_texts_and_comments_and_lines_between_a_function_and_its_doc_do_not_count():
    assert scores('fn f() { "unwrap() panic!" /* .unwrap() */ }')["panics"] == 1.0
    assert scores("/// Says.\n#[must_use]\npub fn f() {}\npub struct S;")["docs"] == 0.5
