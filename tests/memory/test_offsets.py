"""Properties of the memory plan: nothing live overlaps, and the peak is honest."""

from hypothesis import given
from hypothesis import strategies as st

from ingot.compiler.ir.symbolic import Symbol, evaluate
from ingot.compiler.memory.arena import Request, plan_arena, primitive_part
from ingot.compiler.memory.offsets import ALIGNMENT, Interval, align_up, lower_bound, plan

lives = st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 6))


@given(st.lists(lives, max_size=30))
def test_live_intervals_never_overlap(items):
    intervals = [Interval(n, size, start, start + length) for n, (size, start, length) in enumerate(items)]
    placed = plan(intervals)
    assert placed.total >= lower_bound(intervals)
    for a in intervals:
        assert placed.offsets[a.key] % ALIGNMENT == 0
        assert placed.offsets[a.key] + a.size <= placed.total
        for b in intervals:
            if a.key < b.key and a.meets(b) and a.size and b.size:
                low, high = sorted((a, b), key=lambda i: placed.offsets[i.key])
                assert placed.offsets[low.key] + align_up(low.size) <= placed.offsets[high.key]


def test_a_chain_needs_two_buffers():
    chain = [Interval(n, 640, n, n + 1) for n in range(10)]
    assert plan(chain).total == 2 * 640


batch, length = Symbol("batch"), Symbol("length")
sizes = st.sampled_from([4, 1000, 4 * batch, 3136 * batch, 8 * batch * length, 4 * batch + 12, batch * batch])


@given(
    st.lists(st.tuples(sizes, st.integers(0, 9), st.integers(0, 4)), max_size=15), st.integers(1, 9), st.integers(1, 9)
)
def test_symbolic_plans_hold_for_every_dim(items, batch_value, length_value):
    env = {batch: batch_value, length: length_value}
    requests = [Request(n, size, start, start + life) for n, (size, start, life) in enumerate(items)]
    arena = plan_arena(requests)
    offsets = {key: evaluate(offset, env) for key, offset in arena.offsets.items()}
    total = evaluate(arena.total, env)
    for a in requests:
        a_end = offsets[a.key] + evaluate(a.size, env)
        assert offsets[a.key] % ALIGNMENT == 0
        assert a_end <= total
        for b in requests:
            together = a.start <= b.end and b.start <= a.end
            if a.key < b.key and together:
                b_end = offsets[b.key] + evaluate(b.size, env)
                assert a_end <= offsets[b.key] or b_end <= offsets[a.key]


def test_primitive_part():
    assert primitive_part(12) == (12, 1)
    assert primitive_part(12 * batch + 8) == (4, 3 * batch + 2)
    assert primitive_part(6 * batch * length) == (6, batch * length)
