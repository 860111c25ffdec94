"""Each rule of simplify, before and after; and what it must not do."""

import numpy as np
import pytest

from ingot.compiler.passes.simplify import RULES, Simplify
from tests.passes.support import becomes, graph_of, stays


def graph(body: str, result: str = "%y", type_: str = "f32[2, 3]") -> str:
    return f"""
    graph g(%x: {type_} argument) {{
    {body}
      return {result} as output
    }}
    """


CASES = {
    "multiply_one": ("%c: f32[] = constant() {value=1.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = mul(%x, %b)", "", "%x"),
    "divide_by_one": ("%c: f32[] = constant() {value=1.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = div(%x, %b)", "", "%x"),
    "subtract_zero": ("%c: f32[] = constant() {value=0.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = sub(%x, %b)", "", "%x"),
    "add_negative_zero": ("%c: f32[] = constant() {value=-0.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = add(%x, %b)", "", "%x"),
    "double_negation": ("%n: f32[2, 3] = neg(%x)\n%y: f32[2, 3] = neg(%n)", "", "%x"),
    "add_negation": ("%n: f32[2, 3] = neg(%x)\n%y: f32[2, 3] = add(%x, %n)", "%y: f32[2, 3] = sub(%x, %x)", "%y"),
    "small_powers": (
        "%c: f32[] = constant() {value=2.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = pow(%x, %b)",
        "%y: f32[2, 3] = mul(%x, %x)",
        "%y",
    ),
    "divide_by_power_of_two": (
        "%c: f32[] = constant() {value=4.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = div(%x, %b)",
        "%c: f32[] = constant() {value=0.25, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = mul(%x, %b)",
        "%y",
    ),
    "merge_transposes": ("%t: f32[3, 2] = transpose(%x) {perm=[1, 0]}\n%y: f32[2, 3] = transpose(%t) {perm=[1, 0]}", "", "%x"),
    "merge_reshapes": (
        "%t: f32[6] = reshape(%x) {shape=[6]}\n%y: f32[3, 2] = reshape(%t) {shape=[3, 2]}",
        "%y: f32[3, 2] = reshape(%x) {shape=[3, 2]}",
        "%y",
    ),
    "merge_broadcasts": (
        "%t: f32[4, 2, 3] = broadcast(%x) {shape=[4, 2, 3]}\n%y: f32[5, 4, 2, 3] = broadcast(%t) {shape=[5, 4, 2, 3]}",
        "%y: f32[5, 4, 2, 3] = broadcast(%x) {shape=[5, 4, 2, 3]}",
        "%y",
    ),
    "merge_casts": ("%t: f64[2, 3] = cast(%x) {dtype=f64}\n%y: f32[2, 3] = cast(%t) {dtype=f32}", "", "%x"),
    "whole_slice": ("%y: f32[2, 3] = slice(%x) {starts=[0, 0], stops=[2, 3], steps=[1, 1]}", "", "%x"),
    "empty_pad": ("%y: f32[2, 3] = pad(%x) {low=[0, 0], high=[0, 0], mode=\"constant\", value=0.0}", "", "%x"),
    "single_concat": ("%y: f32[2, 3] = concat(%x) {axis=0}", "", "%x"),
    "fold_literals": (
        "%c: f32[] = constant() {value=3.0, dtype=f32}\n%e: f32[] = mul(%c, %c)\n%b: f32[2, 3] = broadcast(%e) {shape=[2, 3]}\n%y: f32[2, 3] = add(%x, %b)",
        "%c: f32[] = constant() {value=9.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n%y: f32[2, 3] = add(%x, %b)",
        "%y",
    ),
    "decided_choice": (
        "%c: bool[] = constant() {value=true, dtype=bool}\n%b: bool[2, 3] = broadcast(%c) {shape=[2, 3]}\n%n: f32[2, 3] = neg(%x)\n%y: f32[2, 3] = where(%b, %x, %n)",
        "",
        "%x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    before, after, result = CASES[name]
    final = before.strip().split("\n")[-1].split(":")[0]
    becomes(Simplify(), graph(before, final), graph(after, result))


def test_sum_over_dims_of_one_is_a_reshape():
    becomes(
        Simplify(),
        graph("%y: f32[3] = sum(%x) {axes=[0]}", type_="f32[1, 3]"),
        graph("%y: f32[3] = reshape(%x) {shape=[3]}", type_="f32[1, 3]"),
    )


def test_rules_that_would_change_zeros_or_nans_do_not_exist():
    """x + 0.0 changes the sign of -0.0; x * 0 and x - x lose NaN and infinities."""
    zero = "%c: f32[] = constant() {value=0.0, dtype=f32}\n%b: f32[2, 3] = broadcast(%c) {shape=[2, 3]}\n"
    stays(Simplify(), graph(zero + "%y: f32[2, 3] = add(%x, %b)"))
    stays(Simplify(), graph(zero + "%y: f32[2, 3] = mul(%x, %b)"))
    stays(Simplify(), graph(zero + "%y: f32[2, 3] = sub(%b, %x)"))
    stays(Simplify(), graph("%y: f32[2, 3] = sub(%x, %x)"))


def test_a_cast_that_loses_is_kept():
    stays(Simplify(), graph("%t: f16[2, 3] = cast(%x) {dtype=f16}\n%y: f32[2, 3] = cast(%t) {dtype=f32}"))


def test_rules_run_inside_regions():
    text = """
    graph g(%c: bool[] argument, %x: f32[2] argument) {
      %r: (f32[2]) = if(%c, %x) {then=graph a(%p: f32[2] argument) {
        %n: f32[2] = neg(%p)
        %m: f32[2] = neg(%n)
        return %m as output
      }, otherwise=graph b(%p: f32[2] argument) {
        %n: f32[2] = neg(%p)
        return %n as output
      }}
      %y: f32[2] = get(%r) {index=0}
      return %y as output
    }
    """
    result = Simplify()(graph_of(text))
    (branch, other) = next(v.op for v in result.body if v.op.regions).regions
    assert len(branch.body) == 0
    assert len(other.body) == 1


def test_every_rule_states_its_algebra():
    assert all(rule.__doc__ and "->" in rule.__doc__ for rule in RULES)


def test_folding_literals_gives_what_numpy_gives():
    text = graph(
        "%c: f32[] = constant() {value=-1.0, dtype=f32}\n%e: f32[] = log(%c)\n%b: f32[2, 3] = broadcast(%e) {shape=[2, 3]}\n"
        "%y: f32[2, 3] = add(%x, %b)"
    )
    result = Simplify()(graph_of(text))
    literal = next(v.op.array for v in result.body if v.op.name == "constant")
    assert np.isnan(literal)
