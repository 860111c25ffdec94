"""One test per diagnostic: the code, what it says, where it points, and that nothing is lost."""

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.compiler.errors import Code, IngotError
from ingot.compiler.pipeline import resume
from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.optim import SGD

X = ingot.f32[2, 3]


def raised(code, action, *words):
    with pytest.raises(IngotError) as caught:
        action()
    error = caught.value
    assert error.code.id == code, str(error)
    text = str(error)
    assert text.startswith(f"{code}: ")
    assert "hint: " in text
    for word in words:
        assert word in text, f"{word!r} is not in {text}"
    return error


def compiling(function, *types, **options):
    return lambda: ingot.compile(function, *(types or (X,)), cache=False, **options)


HERE = "test_diagnostics.py"


def test_e101_shapes_that_do_not_broadcast():
    raised("E101", compiling(lambda x: x + np.ones((4, 5), np.float32)), "[2, 3]", "[4, 5]", HERE)


def test_e101_contraction_of_different_lengths():
    raised("E101", compiling(lambda x: x @ x), "contract", HERE)


def test_e101_wrong_element_type():
    raised("E101", compiling(lambda x: x.exp(), ingot.i32[3]), "exp takes float", "i32", HERE)


def test_e101_axis_outside_the_rank():
    raised("E101", compiling(lambda x: x.sum(axis=5)), "axis 5", "rank 2", HERE)


def test_e102_python_if_on_a_tensor():
    def branching(x):
        return x if x.sum() > 0 else -x

    raised("E102", compiling(branching), "truth", HERE, "ingot.cond")


@pytest.mark.parametrize("convert", [float, int, np.asarray, lambda x: x.item()])
def test_e103_value_of_a_tensor_while_tracing(convert):
    raised("E103", compiling(lambda x: convert(x.sum()) * x), "while tracing", HERE)


def test_e104_tensor_of_another_trace():
    kept = []
    compiling(lambda x: kept.append(x) or x)()
    raised("E104", compiling(lambda x: x + kept[0]), "another trace")


def test_e105_output_that_is_no_tensor():
    raised("E105", compiling(lambda x: "hello"), "hello")


def test_e106_argument_type_that_is_no_type():
    raised("E106", compiling(lambda x: x, "f32[2]"), "f32[2]")
    raised("E106", compiling(lambda x: x, 3), "ingot.f32[()]")


def test_e107_wrong_number_of_types():
    raised("E107", compiling(lambda x, y: x + y), "takes 2 arguments (x, y)", "1 types")


@pytest.mark.parametrize("index", [7, (0, 0, 0), "a", 1.5, (Ellipsis, Ellipsis)])
def test_e108_bad_index(index):
    raised("E108", compiling(lambda x: x[index]), HERE)


def test_e108_bool_mask():
    raised("E108", compiling(lambda x: x[x > 0]), "depends on data", "ingot.where")


def test_e109_assignment_to_a_tensor():
    def assigning(x):
        x[0] = 1.0
        return x

    raised("E109", compiling(assigning), "in place", HERE)


def test_e110_length_of_a_symbolic_axis():
    raised("E110", compiling(lambda x: sum(iter(x)), ingot.f32["n"]), "no fixed length", "ingot.scan")
    raised("E110", compiling(lambda x: len(x.sum())), "scalar")
    raised("E110", compiling(lambda x: sum(x + i for i in range(x.shape[0])), ingot.f32["n"]), "`n`", HERE)
    raised("E110", compiling(lambda x: x + np.zeros(x.shape), ingot.f32["n"]), "`n`", HERE)


def test_e111_gradient_through_an_op_without_one():
    function = ingot.grad(lambda x: x.is_nan().where(x, x * 2.0).digamma().sum())
    raised("E111", compiling(function, ingot.f64[3]), "digamma", HERE, "stop_gradient")


def test_e112_gradient_of_something_that_is_no_scalar():
    raised("E112", compiling(ingot.grad(lambda x: x * 2.0)), "f32[2, 3]", "ingot.jacobian")


def test_e113_tensor_larger_than_any_machine():
    raised("E113", compiling(lambda x: x.reshape(2, 3, 1).broadcast_to((2, 3, 1 << 46))), "bytes")


def test_e113_more_axes_than_an_array_has():
    raised("E113", compiling(lambda x: x.reshape(2, 3, *[1] * 70)), "72 axes")


def test_e114_memory_budget_too_small():
    def two_products(x, w):
        return (x @ w).tanh() @ w

    types = (ingot.f32[64, 64], ingot.f32[64, 64])
    error = raised("E114", compiling(two_products, *types, memory_budget="1KB"), "the budget is 1000 bytes")
    needed = int(error.message.split("needs ")[1].split(" bytes")[0])
    executable = compiling(two_products, *types, memory_budget=needed)()
    assert executable.peak_bytes == needed


def test_e114_budget_of_an_unbounded_program():
    types = (ingot.f32["n", 64], ingot.f32[64, 64])
    raised(
        "E114", compiling(lambda x, w: (x @ w).tanh() @ w, *types, memory_budget="1MB"), "no upper bound", "ingot.dim"
    )


def test_e115_unknown_target():
    raised("E115", compiling(lambda x: x, target="vax"), "vax", "x86-64")


def test_e116_unknown_option():
    raised("E116", compiling(lambda x: x, speed="ludicrous"), "speed", "threads")
    raised("E116", compiling(lambda x: x, memory_budget="lots"), "lots", "64MB")


class Line(Module):
    def __init__(self, width=3):
        self.weight = np.ones((width, 1), np.float32)

    def forward(self, x):
        return x @ self.weight


def trainer(width=3):
    def loss(model, x):
        return model(x).mean()

    return ingot.Trainer(Line(width), loss, SGD(0.1), ingot.f32[2, width])


def test_e117_checkpoint_of_another_model(tmp_path):
    small, large = trainer(3), trainer(4)
    large.save(tmp_path / "large.ckpt")
    before = small.model.weight.copy()
    raised("E117", lambda: small.load(tmp_path / "large.ckpt"), "weight", "[4, 1]")
    np.testing.assert_array_equal(small.model.weight, before)
    (tmp_path / "broken.ckpt").write_bytes(b"nonsense")
    raised("E117", lambda: small.load(tmp_path / "broken.ckpt"), "cannot be read")


def test_e118_first_op_that_makes_a_nan():
    def model(x):
        y = x - 1.0
        return (y.log() * 2.0).sum()

    error = raised("E118", lambda: ingot.check_finite(model, np.zeros(3, np.float32)), "log", HERE)
    assert "y.log()" in str(error.source)
    assert ingot.check_finite(model, np.full(3, 2.0, np.float32)) == 0


def test_e119_one_name_for_two_dims():
    types = (ingot.f32[ingot.dim("n", 1, 8)], ingot.f32[ingot.dim("n", 1, 9)])
    raised("E119", compiling(lambda x, y: x, *types), "'n'")


def test_e120_dump_that_does_not_parse(tmp_path):
    path = tmp_path / "00-import.graph"
    path.write_text("graph broken(")
    raised("E120", lambda: resume(path), "00-import.graph")


def test_e121_function_of_no_tensor():
    raised("E121", lambda: ingot.exp(np.ones(3)), "exp")


def test_e122_branches_of_different_types():
    raised("E122", compiling(lambda x: ingot.cond(x.sum() > 0, lambda: x, x.sum)), "different types")
    raised("E122", compiling(lambda x: ingot.scan(lambda c, t: (c.sum(), t), x[0], x)), "carried")


def test_e121_model_called_on_arrays():
    raised("E121", lambda: Line()(np.ones((2, 3), np.float32)), "Line", "ingot.compile(model, ingot.f32[2, 3])")


def test_e123_dim_that_no_axis_tells():
    raised("E123", compiling(lambda x: x, ingot.f32["2*n"]), "'n'", "f32[2*n]")
    compiling(lambda x, y: y, ingot.f32["n"], ingot.f32["2*n"])()


def test_every_code_is_tested_here():
    """Codes from E150 on belong to other frontends, which test them."""
    source = Path(__file__).read_text(encoding="utf-8")
    assert [c.id for c in Code if c.id < "E150" and f"test_{c.id.lower()}_" not in source] == []


def test_codes_are_unique():
    assert len({c.id for c in Code}) == len(Code)
