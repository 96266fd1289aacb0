"""The shapes that `make shapes` measures."""

from loadtest.shapes import SHAPES, line
from loadtest.storm.__main__ import _check, _parser, _plan


def test_each_row_is_a_storm_with_enough_runs() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    for shape in SHAPES:
        options = _parser().parse_args(shape.flags.split())
        _check(options)
        plan = _plan(options)
        assert plan.size_bytes / plan.chunk_bytes >= 128, shape.name


def test_rates_are_a_node_each() -> None:
    plan = _plan(
        _parser().parse_args(
            ["--nodes", "2", "--rates", "10mbit,30mbit", "--run-size", "1MiB", "--size", "64MiB"]
        )
    )
    assert [plan.rate_of(node) for node in range(2)] == [1.25e6, 3.75e6]
    assert plan.rate == 3.75e6
    assert plan.chunk_bytes == 1 << 20


def test_a_storm_without_an_end_has_a_row() -> None:
    found = {"chunks": 3, "t_lb": 1.0, "t_last": None, "eta": None, "alpha": 1.5, "alpha_interface": 1.6,
             "cpu_busy": 0.9, "void": True}  # fmt: skip
    assert line(SHAPES[0], found).endswith("void")
