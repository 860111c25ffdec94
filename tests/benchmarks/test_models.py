"""The models that are compared: their weights fit torch's, and their work is what the layers' sizes say."""

import numpy as np
import pytest

import ingot
from benchmarks import peers, work
from benchmarks.models import networks
from benchmarks.models.weights import initialise, torch_state
from ingot import nn


def test_weights_depend_on_names_and_seed_only():
    first, second, other = initialise(networks.lenet()), initialise(networks.lenet()), initialise(networks.lenet(), 1)
    for name, array in first.named_arrays().items():
        np.testing.assert_array_equal(array, second.named_arrays()[name])
        assert not np.array_equal(array, other.named_arrays()[name])


def test_weights_in_the_names_of_torch():
    class Model(nn.Module):
        def __init__(self):
            self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm(4))
            self.dense = nn.Linear(3, 5)
            self.tokens = nn.Embedding(7, 3)
            self.lstm = nn.LSTM(3, 2, 1)
            self.attention = nn.MultiHeadAttention(4, 2)

    arrays = initialise(Model()).named_arrays()
    state = torch_state(arrays)
    np.testing.assert_array_equal(state["body.0.weight"], arrays["body.layers.0.weight"])
    np.testing.assert_array_equal(state["body.1.running_var"], arrays["body.layers.1.running_variance"])
    np.testing.assert_array_equal(state["dense.weight"], arrays["dense.weight"].T)
    np.testing.assert_array_equal(state["tokens.weight"], arrays["tokens.weight"])
    np.testing.assert_array_equal(state["lstm.weight_hh_l0"], arrays["lstm.cells.0.0.hidden_weight"].T)
    assert state["attention.qkv.weight"].shape == (12, 4)
    np.testing.assert_array_equal(state["attention.qkv.bias"][4:8], arrays["attention.key.bias"])


def test_work_of_dense_layers():
    found = work.of_inference(networks.mlp(), ingot.f32[64, 784])
    products = 784 * 512 + 512 * 512 + 512 * 10
    assert found.operations == 2 * 64 * products
    assert found.read == 4 * (products + 512 + 512 + 10 + 64 * 784)
    assert found.written == 4 * 64 * 10


def test_work_of_training_leaves_out_the_gradient_of_the_data():
    found = work.of_training(networks.mlp(), 2, ingot.f32[64, 784])
    assert found.operations == 2 * 64 * (2 * 784 * 512 + 3 * (512 * 512 + 512 * 10))


def test_work_of_convolutions_and_recurrence():
    strided = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False))
    assert work.of_inference(strided, ingot.f32[1, 3, 16, 16]).operations == 2 * 8 * 8 * 8 * 3 * 25
    rising = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, bias=False))
    assert work.of_inference(rising, ingot.f32[1, 4, 5, 5]).operations == 2 * 4 * 25 * 6 * 4

    class Recurrent(nn.Module):
        def __init__(self):
            self.lstm = nn.LSTM(3, 2)

        def forward(self, x):
            return self.lstm(x)[0]

    assert work.of_inference(Recurrent(), ingot.f32[9, 1, 3]).operations == 2 * 9 * (3 + 2) * 8


def test_of_a_table_only_the_rows_read_count():
    found = work.of_inference(nn.Sequential(nn.Embedding(1000, 8)), ingot.i64[5])
    assert found.read == 4 * 5 * 8 + 8 * 5


@pytest.mark.parametrize("name", ["mlp", "lenet", "charlstm"])
def test_torch_has_the_same_model(name):
    pytest.importorskip("torch")
    case = peers.Case.of(name, 2)
    theirs = peers.torch_model(case, "float64").eval()(*peers.torch_tensors(case.inputs, "float64")).detach().numpy()
    ours = ingot.interpret(case.module, *case.inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
