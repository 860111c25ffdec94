"""The official suite of the installed onnx package: its cases as data, and how one is run through the backend.

Making the node cases takes seconds, so they are kept in a file beside pytest's cache for the next run and for the other
workers.
"""

import os
import pickle
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import runner
from onnx.backend.test.loader import load_model_tests

from ingot.frontends.onnx import backend

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """A model with inputs and expected outputs: in memory (`data`), or in a folder."""

    kind: str
    name: str
    model: bytes
    data: list[tuple[list[Any], list[Any]]] | None
    folder: str | None
    rtol: float
    atol: float

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.load_model_from_string(self.model)


def all_cases(cache: Path) -> list[Case]:
    path = cache / f"suite-{onnx.__version__}.pickle"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
            pickle.dump(_made(), file)
        os.replace(file.name, path)
    return pickle.loads(path.read_bytes())


def _made() -> list[Case]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite divides by zero on purpose
        for kind in KINDS:
            for test in load_model_tests(kind=kind):
                if test.model is not None:
                    model = test.model.SerializeToString()
                else:
                    model = (Path(test.model_dir) / "model.onnx").read_bytes()
                found.append(Case(kind, test.name, model, test.data_sets, test.model_dir, test.rtol, test.atol))
    return found


def run_case(case: Case) -> None:
    """Raises what is wrong; the comparison is the suite's own."""
    model = case.proto
    prepared = backend.prepare(model)
    for inputs, expected in stored_data(case):
        given = [runner._normalize_tensor(x) for x in inputs]
        wanted = [runner._normalize_tensor(x) for x in expected]
        runner.Runner.assert_similar_outputs(wanted, list(prepared.run(given)), case.rtol, case.atol)


def stored_data(case: Case) -> list[tuple[list[Any], list[Any]]]:
    """Pairs of inputs and expected outputs."""
    if case.data is not None:
        return case.data
    assert case.folder is not None
    model = case.proto
    sets = []
    for folder in sorted(Path(case.folder).glob("test_data_set_*")):
        sides = []
        for side, declared in (("input", model.graph.input), ("output", model.graph.output)):
            count = len(list(folder.glob(f"{side}_*.pb")))
            sides.append([_read(folder / f"{side}_{n}.pb", declared[n].type) for n in range(count)])
        sets.append((sides[0], sides[1]))
    return sets


def _read(path: Path, declared: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    match declared.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def ops_of(case: Case) -> tuple[str, ...]:
    return tuple(sorted({f"{node.domain}:{node.op_type}" for node in case.proto.graph.node}))


def one_per_op(cases: list[Case]) -> list[Case]:
    """The first case of each set of ops: every op is in some case."""
    chosen: dict[tuple[str, ...], Case] = {}
    for case in cases:
        if "_expanded" not in case.name:
            chosen.setdefault(ops_of(case), case)
    return list(chosen.values())


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def run_light(path: Path) -> None:
    """One of the architectures with generated weights that the onnx package carries."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [runner.Runner.generate_dummy_data(i) for i in model.graph.input if i.name not in weights]
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    outputs = backend.prepare(model).run(inputs)
    np.testing.assert_allclose(outputs[0], numpy_helper.to_array(expected), rtol=1e-3, atol=1e-7)
