"""Branches and loops inside compiled code, and gradients through them.

`cond` computes one of two branches, `while_loop` repeats as long as it must, `scan` walks along an axis; all three
are native code, and all three can be differentiated. Every result is checked against NumPy or a finite difference.
Run it with `python examples/control_flow.py`.
"""

import numpy as np

import ingot


def cube_root(a):
    """Newton's method until it stands still. A limit makes a loop differentiable: memory for that many steps."""

    def wrong(x):
        return (x * x * x - a).abs() > 1e-6 * a

    def better(x):
        return x - (x * x * x - a) / (3.0 * x * x)

    return ingot.while_loop(wrong, better, a, limit=40)


def collatz(n):
    """Steps until n is 1: halve what is even, else times 3 plus 1."""

    def more(n, steps):
        return n > 1

    def once(n, steps):
        return ingot.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), steps + 1

    return ingot.while_loop(more, once, (n, n * 0))[1]


def falling(height, drag, steps):
    """A ball dropped from a height: (position, speed) after each of `steps` hundredths of a second."""

    def move(state, _):
        position, speed = state
        speed = speed + 0.01 * (9.81 - drag * speed * speed)
        position = position - 0.01 * speed
        # it bounces, and loses a fifth of its speed
        position, speed = ingot.cond(position < 0, lambda p, v: (-p, -0.8 * v), lambda p, v: (p, v), position, speed)
        return (position, speed), position

    return ingot.scan(move, (height, height * 0.0), length=steps)[1]


def falling_in_numpy(height: float, drag: float, steps: int) -> np.ndarray:
    position, speed, path = height, 0.0, []
    for _ in range(steps):
        speed += 0.01 * (9.81 - drag * speed * speed)
        position -= 0.01 * speed
        if position < 0:
            position, speed = -position, -0.8 * speed
        path.append(position)
    return np.array(path)


def main() -> None:
    number = np.float64(2.0)
    root, slope = ingot.value_and_grad(cube_root)(number)
    print(f"while_loop: the cube root of 2 is {root:.12f} (NumPy says {np.cbrt(2):.12f})")
    print(f"            its slope there is    {slope:.12f} (1 / (3 * 2^(2/3)) is {2 ** (-2 / 3) / 3:.12f})")
    assert abs(root - np.cbrt(2)) < 1e-9
    assert abs(slope - 2 ** (-2 / 3) / 3) < 1e-6

    count = ingot.compile(collatz, ingot.i64[()])
    print(f"nested:     27 takes {count(np.int64(27))} steps to 1, 97 takes {count(np.int64(97))}")
    assert (count(np.int64(27)), count(np.int64(97))) == (111, 118)

    path = ingot.compile(lambda height, drag: falling(height, drag, 150), ingot.f64[()], ingot.f64[()])
    found, expected = path(np.float64(1.0), np.float64(0.1)), falling_in_numpy(1.0, 0.1, 150)
    print(f"scan:       the ball's path differs from NumPy's by at most {np.abs(found - expected).max():.1e}")
    bars = ["".join("#" if h > level else " " for h in found[::3]) for level in np.arange(0.9, -0.05, -0.15)]
    print("\n".join(f"            |{bar}" for bar in bars))
    assert np.abs(found - expected).max() < 1e-12

    slope = ingot.grad(lambda drag: falling(drag * 0.0 + 1.0, drag, 150)[-1])(np.float64(0.1))
    step = 1e-6
    difference = (falling_in_numpy(1, 0.1 + step, 150)[-1] - falling_in_numpy(1, 0.1 - step, 150)[-1]) / (2 * step)
    print(f"gradient:   more drag changes its last height by {slope:.6f} a unit (by differences: {difference:.6f})")
    assert abs(slope - difference) < 1e-4 * abs(difference)


if __name__ == "__main__":
    main()
