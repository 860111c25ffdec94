"""Cases of the official suite that are known to fail, with the reason. docs/onnx_coverage.md is made from this."""

_RANDOM = (
    "expects the draws that NumPy's global generator made after other draws, which no seed in the model determines"
)
_NOISE = "expects rounding noise of a single-precision FFT (1.9e-7 where the exact answer is 0) within 1e-7"

EXCLUDED: dict[str, str] = {
    "test_bernoulli": _RANDOM,
    "test_bernoulli_double": _RANDOM,
    "test_bernoulli_double_expanded": _RANDOM,
    "test_bernoulli_expanded": _RANDOM,
    "test_bernoulli_seed": _RANDOM,
    "test_bernoulli_seed_expanded": _RANDOM,
    "test_dft_inverse": _NOISE,
    "test_dft_inverse_opset19": _NOISE,
    "test_loop16_seq_none": "the suite's comparison takes the length of a scalar, so no answer passes",
    "test_attention_4d_causal_fp16_expanded": (
        "expects sums that are rounded to half precision at every step; ours are rounded once, nearer to the exact value"
    ),
}

CASES = 2024  # of onnx 1.23
PASSING = CASES - len(EXCLUDED)
LEAST_PASSING = 2014  # may only rise
