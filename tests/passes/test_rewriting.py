"""The rewriter itself: rules are applied until none applies, and mistakes in rules are caught."""

import pytest

from ingot.compiler.ir.graph import Builder
from ingot.compiler.ir.types import f32
from ingot.compiler.ops.elementwise import Abs, Cos, Neg, Sin
from ingot.compiler.ops.reduction import Sum
from ingot.compiler.passes.rewriting import rewrite, rule
from tests.passes.support import graph_of

CHAIN = """
graph g(%x: f32[2] argument) {
  %a: f32[2] = sin(%x)
  %b: f32[2] = sin(%a)
  return %b as output
}
"""


@rule(Sin)
def sin_to_cos(builder, value):
    """sin(x) -> cos(x)"""
    return builder.emit(Cos(), *value.args)


@rule(Cos)
def cos_to_abs(builder, value):
    """cos(x) -> abs(x)"""
    return builder.emit(Abs(), *value.args)


def test_replacements_are_rewritten_too():
    result = rewrite(graph_of(CHAIN), [sin_to_cos, cos_to_abs])
    assert [v.op.name for v in result.body] == ["abs", "abs"]


def test_equal_results_become_one():
    text = CHAIN.replace("sin(%a)", "cos(%x)").replace("return %b as output", "return %a as first, %b as second")
    result = rewrite(graph_of(text), [sin_to_cos])
    assert result.outputs[0] is result.outputs[1]


def test_rules_in_a_circle_are_reported():
    @rule(Cos)
    def back(builder, value):
        """cos(x) -> sin(x)"""
        return builder.emit(Sin(), *value.args)

    with pytest.raises(RecursionError, match="circles"):
        rewrite(graph_of(CHAIN), [sin_to_cos, back])


def test_a_rule_that_changes_the_type_is_reported():
    @rule(Sin)
    def wrong(builder, value):
        """sin(x) -> sum(x)"""
        return builder.emit(Sum((0,)), *value.args)

    with pytest.raises(TypeError, match="wrong"):
        rewrite(graph_of(CHAIN), [wrong])


def test_without_rules_nothing_changes():
    result = rewrite(graph_of(CHAIN), [])
    assert [v.op.name for v in result.body] == ["sin", "sin"]


def test_dead_values_vanish():
    @rule(Sin)
    def to_input(builder, value):
        """sin(x) -> x"""
        return value.args[0]

    result = rewrite(graph_of(CHAIN), [to_input])
    assert not result.body
    assert isinstance(Neg(), Neg)


def test_a_value_again_has_the_type_that_its_arguments_give():
    (first, _) = graph_of(CHAIN).body
    builder = Builder()
    same, other = builder.input("same", f32[2]), builder.input("other", f32[3])
    assert builder.again(first, (same,)).type is first.type
    assert builder.again(first, (other,)).type == f32[3]
    assert builder.again(first, (same,)) is builder.emit(Sin(), same)
