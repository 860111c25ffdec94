"""Tree ensembles: every kind of comparison, missing values, rows that stand on a threshold; against a plain walk."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.trees import COMPARISONS
from tests.frontends.onnx.building import Array, model_of

INFINITY = np.inf
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, np.nan, 5e-324, 1e-45])


class Trees:
    """Random trees as attributes of TreeEnsembleRegressor, and the sum of their leaves, walked one by one."""

    def __init__(self, rng: np.random.Generator, count: int, modes: tuple[str, ...], dtype: Any, targets: int, missing: bool):
        self.rng, self.modes, self.dtype, self.targets, self.missing = rng, modes, dtype, targets, missing
        self.nodes: list[list[Any]] = []  # tree, node, mode, feature, value, true, false, missing
        self.leaves: list[tuple[int, int, int, float]] = []
        for tree in range(count):
            self._grow(tree, [0], int(rng.integers(0, 9)))

    def _grow(self, tree: int, used: list[int], depth: int) -> int:
        number = used[0]
        used[0] += 1
        if depth == 0 or self.rng.random() < 0.2:
            self.nodes.append([tree, number, "LEAF", 0, 0.0, 0, 0, 0])
            self.leaves.append((tree, number, tree % self.targets, float(self.rng.standard_normal())))
            return number
        place = len(self.nodes)
        value = float(self.dtype(self.rng.choice([*SPECIAL[:6], SPECIAL[7], *self.rng.standard_normal(6)])))
        mode, missing = str(self.rng.choice(self.modes)), int(self.missing and self.rng.random() < 0.5)
        self.nodes.append([tree, number, mode, int(self.rng.integers(0, 5)), value, 0, 0, missing])
        self.nodes[place][5] = self._grow(tree, used, depth - 1)
        self.nodes[place][6] = self._grow(tree, used, depth - 1)
        return number

    def node(self) -> onnx.NodeProto:
        columns = list(zip(*self.nodes, strict=True))
        names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
        given: dict[str, Any] = {f"nodes_{name}": list(column) for name, column in zip(names, columns, strict=True)}
        for name, column in zip(("treeids", "nodeids", "ids", "weights"), zip(*self.leaves, strict=True), strict=True):
            given[f"target_{name}"] = list(column)
        if self.dtype == np.float64:
            for name in ("nodes_values", "target_weights"):
                array = np.asarray(given.pop(name))
                given[f"{name}_as_tensor"] = onnx.numpy_helper.from_array(array, name)
        return helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=self.targets, **given)

    def walked(self, rows: Array) -> Array:
        place = {(n[0], n[1]): n for n in self.nodes}
        weights = {(tree, node): (target, weight) for tree, node, target, weight in self.leaves}
        result = np.zeros((len(rows), self.targets))
        compare = dict(zip(COMPARISONS, ("__le__", "__lt__", "__ge__", "__gt__", "__eq__", "__ne__"), strict=True))
        for r, row in enumerate(rows):
            for tree in {n[0] for n in self.nodes}:
                here = place[tree, 0]
                while here[2] != "LEAF":
                    holds = bool(getattr(row[here[3]], compare[here[2]])(self.dtype(here[4])))
                    holds = holds or (bool(np.isnan(row[here[3]])) and bool(here[7]))
                    here = place[tree, here[5] if holds else here[6]]
                target, weight = weights[tree, here[1]]
                result[r, target] += weight
        return result


@pytest.mark.parametrize(
    ("modes", "dtype", "count", "targets", "missing"),
    [
        (COMPARISONS[:1], np.float64, 27, 3, True),  # LightGBM and scikit-learn
        (COMPARISONS[:1], np.float32, 1, 1, False),
        (COMPARISONS[1:2], np.float32, 30, 4, False),  # XGBoost; targets with unequally many trees
        (COMPARISONS[1:3], np.float64, 8, 2, True),
        (COMPARISONS[:4], np.float32, 27, 3, True),
        (COMPARISONS, np.float64, 9, 3, True),
    ],
)
def test_every_comparison(
    rng: np.random.Generator, modes: tuple[str, ...], dtype: Any, count: int, targets: int, missing: bool
) -> None:
    trees = Trees(rng, count, modes, dtype, targets, missing)
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
    model = model_of([trees.node()], [helper.make_tensor_value_info("x", kind, ["n", 5])], ["y"], domains={"ai.onnx.ml": 3})
    executable = ingot.compile(ingot.load_onnx(model), threads=1)
    for rows in (1, 70):
        x = rng.choice([*SPECIAL, *rng.standard_normal(9)], (rows, 5)).astype(dtype)
        np.testing.assert_allclose(executable(x), trees.walked(x), rtol=1e-5, atol=1e-5)


def test_attributes_are_read_a_few_times_and_not_for_every_node(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    """Forests of scikit-learn have a hundred thousand nodes; an attribute has a number for each."""
    read: list[str] = []
    get = Call.get

    def counted(self: Call, attribute: str, *default: Any) -> Any:
        read.append(attribute)
        return get(self, attribute, *default)

    monkeypatch.setattr(Call, "get", counted)
    trees = Trees(rng, 200, COMPARISONS[:1], np.float32, 1, False)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 5])
    ingot.compile(ingot.load_onnx(model_of([trees.node()], [x], ["y"], domains={"ai.onnx.ml": 3})))
    assert len(trees.nodes) > 1000
    assert 0 < len(read) < 100
