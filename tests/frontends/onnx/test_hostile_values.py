"""Values that no model should meet, in programs and on the host: an error that names the cause, or the answer that NumPy has."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from ingot.compiler.ir.symbolic import Expr, Symbol
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.model import DimNames
from ingot.frontends.onnx.problems import OnnxError
from ingot.runtime.errors import ExecutionError
from tests.frontends.onnx.attempts import attempt, node, refused
from tests.frontends.onnx.building import info, model_of
from tests.fuzz.onnx_worker import Worker

FLOATS = np.zeros(4, np.float32)


def untold(name: str, kind: int) -> Any:
    """A value of any shape."""
    return helper.make_tensor_value_info(name, kind, None)


# --- values that programs and the host meet -----------------------------------------------------------


def test_an_index_is_checked_before_what_it_addresses_is_read(worker: Worker):
    """Halves of each row are read by lanes under a condition; the address does not change in the inner loop."""
    table, places = np.zeros((50, 4), np.float32), np.array([[1, 1 << 40, -(1 << 62)]])
    x = np.zeros((1, 3, 32), np.float32)
    turn = helper.make_node("RotaryEmbedding", ["x", "t", "t", "i"], ["y"], num_heads=4)
    model = model_of([turn], [info("x", x), info("t", table), info("i", places)], ["y"], opset=23)
    refused(attempt(worker, model, x=x, t=table, i=places), f"index {1 << 40}", "extent 50")


@pytest.mark.parametrize(("length", "expected"), [(5, 0), (7, 2), (3, None)])
def test_the_greatest_of_a_number_that_may_be_none(worker: Worker, length: int, expected: int | None):
    nodes = [node("Shape", "x", "s"), node("Sub", "s five", "k"), node("TopK", "x k", "y places")]
    x = np.arange(length, dtype=np.float32)
    model = model_of(nodes, [info("x", x, ["n"])], ["y"], {"five": np.array([5])})
    outcome = attempt(worker, model, x=x)
    assert outcome.kind == ("refused" if expected is None else "ran"), outcome
    if expected is not None:
        np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(x), x[::-1][:expected])


@pytest.mark.parametrize("shape", [["n + 1"], ["2*n", 4], ["n*m"]], ids=str)
def test_dims_that_only_expressions_show(shape: list[Any]):
    """n of n + 1 is found from the extent; where it cannot be, the program is made for the shapes of the call."""
    x = np.ones([4] * len(shape), np.float32)
    program = ingot.compile(ingot.load_onnx(model_of([node("NonZero", "x", "i"), node("Neg", "x", "y")], [info("x", x, shape)], ["y", "i"])))
    found, places = program(x)
    np.testing.assert_array_equal(found, -x)
    np.testing.assert_array_equal(places, np.stack(np.nonzero(x)))


@pytest.mark.parametrize("op", ["Identity", "Optional", "OptionalGetElement"])
def test_strings_are_handed_on(op: str):
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    program = ingot.compile(ingot.load_onnx(model_of([node(op, "x", "h"), node("StringConcat", "h h", "y")], [text], ["y", "h"])))
    y, h = program(np.array(["a", "b"], object))
    assert (y.tolist(), h.tolist()) == (["aa", "bb"], ["a", "b"])


@pytest.mark.parametrize("dim", ["(" * 5000 + "n" + ")" * 5000, "-" * 5000 + "n", "n" + "//2 % 7" * 2000], ids=["groups", "signs", "quotients"])
def test_dims_that_are_deep_expressions(dim: str):
    model = model_of([node("Neg", "x", "y")], [info("x", FLOATS, [dim])], ["y"])
    assert check_onnx(model) == []
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(FLOATS), -FLOATS)


def test_dims_that_become_long_sums():
    """A product of sums is written out; as a name it is one dim like any other."""
    factors = [f"({a}+{b})" for a, b in zip("acegikmoq", "bdfhjlnpr", strict=True)]
    assert isinstance(DimNames().named("*".join(factors[:3])), Expr)
    assert isinstance(DimNames().named("*".join(factors)), Symbol)


def test_a_dim_that_divides_by_what_may_be_nothing():
    model = model_of([node("Neg", "x", "y")], [info("x", FLOATS, ["(n+1)//((n+1)//n)"])], ["y"])
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(FLOATS), -FLOATS)


def test_sizes_that_are_too_long_sums_are_numbers_at_a_call():
    names = [f"x{number}" for number in range(70)]
    nodes = [node("Shape", name, f"{name}_size") for name in names]
    nodes += [node("Add", f"{name}_size {'x0_size' if name == 'x1' else f'{before}_sum'}", f"{name}_sum") for before, name in pairwise(names)]
    nodes += [node("Mul", "x69_sum x69_sum", "square"), node("Mul", "square square", "power"), node("ConstantOfShape", "power", "z")]
    nodes += [node("Shape", "z", "y")]
    model = model_of(nodes, [info(name, FLOATS, [f"n{name}"]) for name in names], ["y"])
    assert check_onnx(model) == []
    assert ingot.compile(ingot.load_onnx(model))(*[FLOATS[:1]] * 70).tolist() == [70**4]


def test_negative_powers_of_known_integers():
    """A literal is what the program would compute: the integer part of the fraction."""
    x = np.array([1, -1, 2, 0, -1], np.int64)
    weights = {"a": x, "b": np.array([-1, -3, -1, -2, -2], np.int64)}
    model = model_of([node("Pow", "a b", "p"), node("Add", "x p", "y")], [info("x", x)], ["y"], weights)
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(np.zeros(5, np.int64)), [1, -1, 0, 0, 1])


def test_a_result_that_the_host_has_no_memory_for(worker: Worker):
    """Tiles whose number changes from call to call are the host's; the second call asks for too many."""
    model = model_of([node("Tile", "x r", "y")], [info("x", FLOATS), info("r", np.array([1]))], ["y"])
    program = ingot.compile(ingot.load_onnx(model))
    for repeats in (1, 2, 3):
        assert program(FLOATS, np.array([repeats])).shape == (4 * repeats,)
    with pytest.raises((OnnxError, MemoryError), match=r"(?s)O118.*Tile"):
        program(FLOATS, np.array([1 << 44]))


@pytest.mark.parametrize("extent", [-1, -(1 << 40)])
@pytest.mark.parametrize("op", ["ConstantOfShape", "HannWindow", "Tile", "Multinomial", "RandomNormal"])
def test_extents_are_not_negative(op: str, extent: int):
    attributes: dict[str, Any] = {"Multinomial": {"sample_size": extent}, "RandomNormal": {"shape": [extent]}}.get(op, {})
    inputs = {"Tile": "x e", "Multinomial": "q", "RandomNormal": ""}.get(op, "e")
    weights = {"e": np.array([extent]), "q": np.zeros((1, 3), np.float32)}
    (problem,) = check_onnx(model_of([node(op, inputs, "y", **attributes)], [info("x", FLOATS)], ["y"], weights))
    assert problem.code == ("O109" if op == "Multinomial" else "O112"), problem
    assert op in problem.node


def test_an_op_before_its_first_opset_is_held_to_its_first_description():
    """Optimisers write such nodes; what is missing is named, not met by a converter."""
    bare = helper.make_node("Gelu", [""], ["y"])
    (problem,) = check_onnx(model_of([bare], [info("x", FLOATS)], ["y"], opset=17))
    assert problem.code == "O110"
    assert check_onnx(model_of([node("Gelu", "x", "y")], [info("x", FLOATS)], ["y"], opset=17)) == []


@pytest.mark.parametrize(
    ("op", "values", "attributes"),
    [("SequenceAt", "x i", {}), ("HannWindow", "s", {}), ("Neg", "s", {}), ("ConcatFromSequence", "x", {"axis": 0})],
)
def test_a_sequence_is_no_tensor(op: str, values: str, attributes: dict[str, Any]):
    nodes = [node("SequenceConstruct", "x x", "s"), node(op, values, "y", **attributes)]
    (problem,) = check_onnx(model_of(nodes, [info("x", FLOATS)], ["y"], {"i": np.array(0)}))
    assert problem.code == "O111", problem


def test_an_output_has_a_name():
    model = model_of([helper.make_node("Dropout", ["x"], ["y", ""])], [info("x", FLOATS)], ["y", ""])
    assert [p.code for p in check_onnx(model)] == ["O105"]


def test_a_function_needs_an_input_that_its_call_leaves_out():
    """Also where the body hands it on before a node needs it."""
    opsets = [helper.make_opsetid("", 21)]
    body = [node("Identity", "b", "c"), node("Add", "a c", "z")]
    add = helper.make_function("local", "Plus", ["a", "b"], ["z"], body, opsets)
    call = helper.make_node("Plus", ["x"], ["y"], "sum", domain="local")
    (problem,) = check_onnx(model_of([call], [info("x", FLOATS)], ["y"], domains={"local": 1}, functions=[add]))
    assert problem.code == "O110", problem
    assert "sum" in problem.node


@pytest.mark.parametrize(
    ("inputs", "outputs", "parameters", "version", "code"),
    [
        ("x", "y", "a", 21, None),
        ("x x", "y", "a", 21, "O110"),
        ("x", "y more", "a", 21, "O110"),
        ("x x", "y", "a a", 21, "O104"),
        ("x", "y", "a", 999, "O108"),
    ],
)
def test_a_function_that_is_called_as_it_is_not_made(inputs: str, outputs: str, parameters: str, version: int, code: str | None):
    minus = helper.make_function("local", "Minus", parameters.split(), ["z"], [node("Neg", "a", "z")], [helper.make_opsetid("", version)])
    call = node("Minus", inputs, outputs, domain="local")
    problems = check_onnx(model_of([call], [info("x", FLOATS)], ["y"], domains={"local": 1}, functions=[minus]))
    assert [p.code for p in problems] == ([code] if code else [])


def test_an_empty_result_with_enormous_extents(worker: Worker):
    """NumPy limits the product of the extents that are not 0, also of an array without elements."""
    sizes = np.array([0, 1 << 40, 1 << 40])
    model = model_of([node("ConstantOfShape", "s", "y")], [info("s", sizes)], ["y"])
    refused(attempt(worker, model, s=sizes), "O118", "ConstantOfShape")


def test_the_determinant_of_nothing_is_one():
    x = np.zeros((2, 0, 0), np.float32)
    program = ingot.compile(ingot.load_onnx(model_of([node("Det", "x", "y")], [info("x", x)], ["y"])))
    np.testing.assert_array_equal(program(x), np.ones(2, np.float32))


def test_an_empty_constant_with_enormous_extents(worker: Worker):
    shape = helper.make_node("Constant", [], ["s"], value_ints=[0, 1 << 40, 1 << 40])
    refused(attempt(worker, model_of([shape, node("ConstantOfShape", "s", "y")], [], ["y"])), "O118", "ConstantOfShape")


# --- values that the host is told, and converters that say what they take for granted ------------------------------


@pytest.mark.parametrize(
    ("op", "x", "sizes", "words"),
    [
        ("Expand", np.zeros((3, 1), np.float32), [2, 2, 3], ("O112", "Expand")),
        ("Expand", np.zeros((3, 1), np.float32), [-1, 3], ("Expand", "-1")),
        ("Tile", np.zeros((3, 1), np.float32), [1 << 40, 1 << 40], ("O118", "Tile")),
        ("Tile", np.zeros((3, 1), np.float32), [-1, 3], ("Tile", "-1")),
        ("Reshape", np.zeros((3, 1), np.float32), [2, 2], ("Reshape", "[2, 2]")),
        ("Reshape", np.zeros((3, 1), np.float32), [-1, -1], ("Reshape",)),
    ],
    ids=str,
)
def test_shapes_that_change_from_call_to_call(op: str, x: np.ndarray, sizes: list[int], words: tuple[str, ...]):
    """From the second shape on, the host runs the node: it says what does not fit, as the compiler did."""
    fine = [[3, 4], [3, 2]] if op != "Reshape" else [[1, 3], [3, 1]]
    model = model_of([node(op, "x s", "y")], [info("x", x), info("s", np.array(sizes))], ["y"])
    made = ingot.compile(ingot.load_onnx(model))
    for shape in fine:
        made(x, np.array(shape))
    with pytest.raises(OnnxError) as caught:
        made(x, np.array(sizes))
    assert all(word in str(caught.value) for word in words), caught.value
    assert "O120" not in str(caught.value)


@pytest.mark.parametrize("index", [1, 5, -2, 1 << 40])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
def test_an_index_into_one_element_is_checked(op: str, index: int):
    """Only 0 is inside, so nothing has to be computed: except whether it is 0."""
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    indices = {"Gather": np.array([index]), "GatherElements": np.full((1, 4), index), "GatherND": np.array([[index]])}[op]
    made = ingot.compile(ingot.load_onnx(model_of([node(op, "x i", "y")], [info("x", x), info("i", indices)], ["y"])))
    made(x, np.zeros_like(indices))
    with pytest.raises(ExecutionError, match=str(index)):
        made(x, indices)


@pytest.mark.parametrize("place", [-1, 4, 1 << 40, -(1 << 63)])
def test_a_cache_is_written_inside(place: int):
    past, update = np.zeros((1, 1, 4, 3), np.float32), np.ones((1, 1, 1, 3), np.float32)
    where = np.array([place])
    model = model_of([node("TensorScatter", "p u w", "y")], [info("p", past), info("u", update), info("w", where)], ["y"], opset=24)
    made = ingot.compile(ingot.load_onnx(model))
    assert made(past, update, np.array([3]))[0, 0, 3].tolist() == [1, 1, 1]
    with pytest.raises(ExecutionError, match="out of range"):
        made(past, update, where)


def test_a_cache_shorter_than_its_update():
    past, update = np.zeros((1, 1, 2, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    model = model_of([node("TensorScatter", "p u", "y")], [info("p", past), info("u", update)], ["y"], opset=24)
    (problem,) = check_onnx(model)
    assert problem.code == "O112"
    empty = info("u", update[:, :, :0])
    made = ingot.compile(ingot.load_onnx(model_of([node("TensorScatter", "p u", "y")], [info("p", past), empty], ["y"], opset=24)))
    np.testing.assert_array_equal(made(past, update[:, :, :0]), past)


def test_one_of_many_inputs_is_left_out():
    adagrad = helper.make_node("Adagrad", ["r", "t", "", "g", "h"], ["x_new", "h_new"], domain="ai.onnx.preview.training")
    scalar = [info("r", np.float32(1)), info("t", np.int64(1))]
    model = model_of([adagrad], [*scalar, info("g", FLOATS), info("h", FLOATS)], ["x_new", "h_new"], domains={"ai.onnx.preview.training": 1})
    assert {p.code for p in check_onnx(model)} == {"O110"}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"num_scan_inputs": 1 << 31}, "O109"),
        ({"num_scan_inputs": 0}, "O109"),
        ({"num_scan_inputs": 1, "scan_input_axes": [0, 1]}, "O109"),
        ({"num_scan_inputs": 1, "scan_input_directions": [2]}, "O109"),
        ({"num_scan_inputs": 1, "scan_input_directions": [-1]}, "O109"),
    ],
    ids=str,
)
def test_scan_over_what_it_has_not(values: dict[str, Any], code: str):
    body = helper.make_graph([node("Add", "a b", "c")], "body", [info("a", FLOATS[0]), info("b", FLOATS[0])], [info("c", FLOATS[0])])
    scan = helper.make_node("Scan", ["s", "x"], ["y"], body=body, **values)
    model = model_of([scan], [info("s", FLOATS[0]), info("x", FLOATS)], ["y"])
    assert [p.code for p in check_onnx(model)] == [code]


@pytest.mark.parametrize("depth", [np.nan, np.inf])
def test_a_size_that_is_no_number(depth: float):
    values = {"d": np.array([depth], np.float32), "v": np.array([0, 1], np.float32)}
    (problem,) = check_onnx(model_of([node("OneHot", "i d v", "y")], [info("i", np.array([1]))], ["y"], values))
    assert problem.code == "O119", problem


def test_a_forest_of_open_width():
    """What a converter must know and the file leaves open is known at the call."""
    tree = {"nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1],
            "tree_roots": [0], "nodes_featureids": [1], "leaf_targetids": [0, 0]}  # fmt: skip
    arrays = {"nodes_splits": np.array([0.5]), "leaf_weights": np.array([1.0, 2.0]), "nodes_modes": np.array([0], np.uint8)}
    tensors = {name: numpy_helper.from_array(array) for name, array in arrays.items()}
    ensemble = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **tree, **tensors)
    x = np.array([[0.0, 0.4], [0.0, 0.6]])
    model = model_of([ensemble], [info("x", x, ["rows", "width"])], ["y"], domains={"ai.onnx.ml": 5})
    assert check_onnx(model) == []
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(x), [[1.0], [2.0]])


@pytest.mark.parametrize("before", [False, True])
def test_a_tree_that_has_no_root(before: bool):
    """A node that is its own child, alone and after a tree that is one: nothing leads into the tree."""
    nodes = [(0, 0, "BRANCH_LEQ", 1, 2), (0, 1, "LEAF", 0, 0), (0, 2, "LEAF", 0, 0)] if before else []
    nodes += [(1, 0, "BRANCH_LEQ", 0, 1), (1, 1, "LEAF", 0, 0)]
    names = ("treeids", "nodeids", "modes", "truenodeids", "falsenodeids")
    given = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*nodes, strict=True), strict=True)}
    leaves = [(tree, number) for tree, number, mode, *_ in nodes if mode == "LEAF"]
    given |= {"nodes_featureids": [0] * len(nodes), "nodes_values": [0.5] * len(nodes), "target_ids": [0] * len(leaves)}
    given |= {"target_treeids": [t for t, _ in leaves], "target_nodeids": [n for _, n in leaves], "target_weights": [1.0] * len(leaves)}
    ensemble = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **given)
    (problem,) = check_onnx(model_of([ensemble], [info("x", np.zeros((2, 3), np.float32))], ["y"], domains={"ai.onnx.ml": 3}))
    assert (problem.code, "tree 1 has no root" in problem.message) == ("O109", True), problem


def test_a_transposed_convolution_of_which_nothing_is_left():
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 2, 3, 3), np.float32)
    for fields in ({}, {"strides": [2, 2]}, {"dilations": [2, 2]}):
        transposed = node("ConvTranspose", "x w", "y", output_shape=[0, 3], **fields)
        made = ingot.compile(ingot.load_onnx(model_of([transposed], [info("x", x), info("w", w)], ["y"])))
        assert made(x, w).shape == (1, 2, 0, 3)


def test_an_attribute_of_another_type_where_onnx_has_no_description():
    pool = helper.make_node("NhwcMaxPool", ["x"], ["y"], "pool", domain="com.microsoft", kernel_shape=3)
    (problem,) = check_onnx(model_of([pool], [info("x", np.zeros((1, 4, 4, 2), np.int8))], ["y"], domains={"com.microsoft": 1}))
    assert (problem.code, problem.node) == ("O109", "pool (NhwcMaxPool)")


@pytest.mark.parametrize(
    ("first", "codes", "zero"),
    [(-np.inf, [0, 255, 255, 255], 255), (np.inf, [0, 0, 0, 0], 0), (-3.0, [0, 51, 204, 255], 153)],
)
def test_infinite_data_are_quantised_as_by_other_runtimes(first: float, codes: list[int], zero: int):
    x = np.array([first, -2, 1, 2], np.float32)
    model = model_of([node("DynamicQuantizeLinear", "x", "y scale zero")], [info("x", x)], ["y", "scale", "zero"])
    found = ingot.compile(ingot.load_onnx(model))(x)
    assert found[0].tolist() == codes
    assert found[2] == zero


@pytest.mark.parametrize(
    ("k", "code"),
    [(np.complex64(1), "O111"), (np.array("1", object), "O111"), (np.float32("inf"), "O119"), (np.float32("nan"), "O119")],
)
def test_a_number_that_is_no_integer_where_onnx_does_not_say_that_it_is_one(k: np.ndarray, code: str):
    triangle = node("Trilu", "x k", "y", domain="com.microsoft")
    model = model_of([triangle], [info("x", np.ones((3, 4), np.float32))], ["y"], {"k": np.asarray(k)}, domains={"com.microsoft": 1})
    assert [problem.code for problem in check_onnx(model)] == [code]


@pytest.mark.parametrize("inputs", ["", "x", "x x x x"])
@pytest.mark.parametrize("name", ["QuantizeLinear", "DequantizeLinear"])
def test_a_number_of_inputs_that_onnx_does_not_describe(name: str, inputs: str):
    quantised = node(name, inputs, "y", domain="com.microsoft")
    problems = check_onnx(model_of([quantised], [info("x", np.zeros(3, np.float32))], ["y"], domains={"com.microsoft": 1}))
    assert [problem.code for problem in problems] == ["O110"], problems


@pytest.mark.parametrize("axes", [np.array(1), np.array([1]), np.array([[0], [-1]])])
@pytest.mark.parametrize("name", ["Squeeze", "Unsqueeze"])
def test_axes_of_any_rank_on_the_host(name: str, axes: np.ndarray):
    """They are known at the call, as they are where they are compiled."""
    x = np.array([[["a"]]], object)
    texts = helper.make_tensor_value_info("x", TensorProto.STRING, [1, 1, 1])
    model = model_of([node(name, "x axes", "y")], [texts, info("axes", axes)], [helper.make_tensor_value_info("y", TensorProto.STRING, None)])
    change = -axes.size if name == "Squeeze" else axes.size
    assert ingot.compile(ingot.load_onnx(model))(x, axes).shape == (1,) * (3 + change)


def test_a_cap_that_is_not_positive_is_none():
    heads = np.random.default_rng(0).standard_normal((1, 2, 3, 4), dtype=np.float32)
    answers = []
    for fields in ({}, {"softcap": -0.5}, {"softcap": 0.0}):
        model = model_of([node("Attention", "q k v", "y", **fields)], [info(n, heads) for n in "qkv"], ["y"], opset=23)
        answers.append(ingot.compile(ingot.load_onnx(model))(heads, heads, heads))
    np.testing.assert_array_equal(answers[1], answers[0])
    np.testing.assert_array_equal(answers[2], answers[0])
    scores = node("Attention", "q k v", "y past_k past_v scores", softcap=-0.5)
    (problem,) = check_onnx(model_of([scores], [info(n, heads) for n in "qkv"], ["y", "scores"], opset=23))
    assert problem.code == "O119", problem


@pytest.mark.parametrize("sizes", [np.array(3), np.array([0, 0]), np.array([], np.int64), None])
def test_nothing_is_split_into_no_parts(sizes: np.ndarray | None):
    """Where the host splits, since the sizes are known at the call, as where parts are compiled."""
    x, names = np.zeros((2, 0), np.float32), "x sizes" if sizes is not None else "x"
    model = model_of(
        [node("SplitToSequence", names, "parts", axis=1), node("SequenceLength", "parts", "y")],
        [info("x", x), *([info("sizes", sizes)] if sizes is not None else [])], ["y"],
    )  # fmt: skip
    made = ingot.compile(ingot.load_onnx(model))
    for _ in range(2):
        assert int(made(x, *([sizes] if sizes is not None else []))) == (2 if sizes is not None and sizes.size == 2 else 0)


def test_sequences_of_unequal_length_are_mapped_nowhere():
    x = np.zeros(2, np.float32)
    body = helper.make_graph([node("Add", "a b", "c")], "body", [info("a", x), info("b", x)], [info("c", x)])
    nodes = [node("SequenceConstruct", "x x", "two"), node("SequenceConstruct", "x", "one"),
             node("SequenceMap", "two one", "sums", body=body), node("SequenceLength", "sums", "y")]  # fmt: skip
    (problem,) = check_onnx(model_of(nodes, [info("x", x)], ["y"]))
    assert problem.code == "O119", problem


@pytest.mark.parametrize("to", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ])
def test_a_code_of_nan_has_no_sign(to: int):
    x = np.array([np.nan, -np.nan, -1.0], np.float32)
    found = ingot.compile(ingot.load_onnx(model_of([node("Cast", "x", "y", to=to)], [info("x", x)], ["y"])))(x)
    codes = np.asarray(found).view(np.uint8)
    assert codes[0] == codes[1]
    assert codes[2] >= 0x80


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a branch"])
def test_codes_are_repeated_like_numbers(inside: bool):
    one = helper.make_tensor("one", TensorProto.FLOAT8E4M3FN, [1], bytes([0x38]), raw=True)
    filled = node("ConstantOfShape", "s", "y", value=one)
    nodes, result = [filled], "y"
    if inside:
        branch = helper.make_graph([filled], "branch", [], [untold("y", TensorProto.FLOAT8E4M3FN)])
        nodes, result = [node("If", "c", "z", then_branch=branch, else_branch=branch)], "z"
    model = model_of(nodes, [info("s", np.zeros(2, np.int64))], [result], {"c": np.array(True)})
    made = ingot.compile(ingot.load_onnx(model))
    for shape in ((2, 3), (1, 4), (2, 3)):
        found = np.asarray(made(np.array(shape)))
        assert found.dtype == helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
        np.testing.assert_array_equal(found.view(np.uint8), np.full(shape, 0x38))


def test_a_repeated_number_larger_than_memory_is_refused(worker: Worker):
    """It is a view of one element between the programs, and only the last one would write it."""
    zero = numpy_helper.from_array(np.zeros(1, np.int32))
    branch = helper.make_graph(
        [node("ConstantOfShape", "s", "y", value=zero)], "branch", [], [untold("y", TensorProto.INT32)]
    )
    sizes = np.array([1 << 40])
    nodes = [node("If", "c", "z", then_branch=branch, else_branch=branch)]
    model = model_of(nodes, [info("s", sizes), info("c", np.array(True))], ["z"])
    refused(attempt(worker, model, s=sizes, c=np.array(True)), "no room", "bytes")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"kernel_shape": [(1 << 63) - 1, 2], "auto_pad": "SAME_UPPER"}, "elements of a window"),
        ({"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "dilations": [1 << 60, 1]}, "padded input"),
        ({"kernel_shape": [2, 2], "pads": [1 << 61, 0, 1 << 61, 0], "strides": [1 << 62, 1]}, "padded input"),
    ],
    ids=["window", "dilation", "padding"],
)
@pytest.mark.parametrize("op", ["LpPool", "MaxPool", "AveragePool"])
def test_windows_that_no_memory_holds(op: str, attributes: dict[str, Any], expected: str):
    """The result is as small as the image: only what is padded for it, or gone through, is not."""
    x = np.ones((1, 3, 8, 8), np.float32)
    opset = 19 if op != "LpPool" else 18
    model = model_of([node(op, "x", "y", **attributes)], [info("x", x)], ["y"], opset=opset)
    (problem,) = check_onnx(model)
    assert expected in problem.message
    with pytest.raises(OnnxError, match=expected):
        ingot.compile(ingot.load_onnx(model))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("mode", "axes"), [("linear", 2), ("linear", 3), ("nearest", 2), ("cubic", 2)])
def test_what_is_outside_of_an_image_is_zero_whatever_is_in_it(mode: str, axes: int, bad: float):
    """The element that is read instead counts nothing; one place is inside, between elements that are all bad."""
    x = np.full((1, 1, *[3] * axes), bad, np.float32)
    grid = np.array([[-4, 4, 0], [4, 0, 0], [0, -4, -4], [0, 0, 0]], np.float32)[:, :axes].reshape(1, 4, *[1] * (axes - 1), axes)
    model = model_of([node("GridSample", "x grid", "y", mode=mode)], [info("x", x), info("grid", grid)], ["y"], opset=22)
    found = ingot.compile(ingot.load_onnx(model))(x, grid).reshape(-1)
    np.testing.assert_array_equal(found[:3], 0.0)
    assert not np.isfinite(found[3])
