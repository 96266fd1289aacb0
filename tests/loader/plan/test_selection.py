"""Which tensors a load brings: filters, and the shares of parallel groups."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.errors import UsageError
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.plan.selection import (
    LoadItem,
    ParallelAxis,
    cut_tensor,
    select_tensors,
)
from tests.loader.plan.plan_kit import info, table


def names(items: list[LoadItem]) -> list[str]:
    return [item.info.name for item in items]


def test_a_filter_is_a_glob_several_or_a_function() -> None:
    tensors = table(["model.layers.0.w", "model.layers.1.w", "lm_head.weight"])
    assert names(select_tensors(tensors, "*.layers.*")) == ["model.layers.0.w", "model.layers.1.w"]
    assert names(select_tensors(tensors, ["*.1.*", "lm_head.*"])) == [
        "model.layers.1.w",
        "lm_head.weight",
    ]
    assert names(select_tensors(tensors, lambda name: name.endswith("0.w"))) == ["model.layers.0.w"]
    assert names(select_tensors(tensors, [])) == []
    assert len(select_tensors(tensors)) == 3


def model(layers: int, *, tied: bool = False) -> list[TensorInfo]:
    inner = [f"model.layers.{i}.{part}.weight" for i in range(layers) for part in ("q", "mlp")]
    out = ["model.norm.weight"] + ([] if tied else ["lm_head.weight"])
    return table(["model.embed_tokens.weight", *inner, *out])


def stage(tensors: list[TensorInfo], i: int, n: int) -> list[str]:
    return names(select_tensors(tensors, axes=[ParallelAxis("pipeline", i, n)]))


@given(st.integers(1, 40), st.integers(1, 10))
def test_stages_share_the_layers_evenly_and_in_order(layers: int, stages: int) -> None:
    tensors = model(layers)
    parts = [stage(tensors, i, stages) for i in range(stages)]
    if stages > 1:
        assert list(itertools.chain(*parts)) == names(select_tensors(tensors))
    counts = [sum(".q." in name for name in part) for part in parts]
    assert max(counts) - min(counts) <= 1
    assert "model.embed_tokens.weight" in parts[0]
    assert "lm_head.weight" in parts[-1]


def test_first_and_last_stage_have_the_embedding_of_a_tied_model() -> None:
    tensors = model(4, tied=True)
    assert "model.embed_tokens.weight" in stage(tensors, 0, 2)
    assert "model.embed_tokens.weight" in stage(tensors, 1, 2)
    assert "model.embed_tokens.weight" not in stage(tensors, 1, 3)


def test_experts_are_shared_and_each_rank_has_the_other_tensors() -> None:
    tensors = table([f"layers.0.mlp.experts.{i}.w" for i in range(8)] + ["layers.0.gate"])
    mine = names(select_tensors(tensors, axes=[ParallelAxis("expert", 1, 4)]))
    assert mine == ["layers.0.mlp.experts.2.w", "layers.0.mlp.experts.3.w", "layers.0.gate"]


def test_axes_and_filters_combine() -> None:
    tensors = [info("layers.0.experts.0.w", (8, 4)), info("layers.1.experts.1.w", (8, 4))]
    axes = [
        ParallelAxis("pipeline", 1, 2),
        ParallelAxis("expert", 1, 2),
        ParallelAxis("tensor", 3, 4, names="*.w"),
    ]
    (item,) = select_tensors(tensors, "*.w", axes)
    assert item.shape == (2, 4)
    assert item.start == 100 + 6 * 4


def test_the_first_matching_axis_counts() -> None:
    axes = [
        ParallelAxis("tensor", 0, 2, dim=1, names="*o_proj*"),
        ParallelAxis("tensor", 0, 2, dim=0, names="*_proj*"),
    ]
    o, q, norm = select_tensors(
        [info("o_proj", (4, 4)), info("q_proj", (4, 4)), info("norm", (3,))], axes=axes
    )
    assert (o.shape, q.shape, norm.shape) == ((4, 2), (2, 4), (3,))


@pytest.mark.parametrize(
    ("axis", "shape"),
    [
        (ParallelAxis("tensor", 0, 3), (8, 2)),
        (ParallelAxis("tensor", 0, 2, dim=2), (8, 2)),
        (ParallelAxis("tensor", 0, 2), ()),
    ],
)
def test_a_dimension_that_can_not_be_shared_is_named(
    axis: ParallelAxis, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError):
        select_tensors([info("w", shape)], axes=[axis])


def test_an_axis_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    axes = [ParallelAxis("tensor", 0, 2, names=names) for names in ("*.w", "*.typo")]
    (item,) = select_tensors([info("a.w", (8, 2))], axes=axes)
    assert item.shape == (4, 2)
    (said,) = caplog.messages
    assert "*.typo" in said
    assert "matches no tensor" in said


def test_wrong_axes_are_refused() -> None:
    with pytest.raises(UsageError):
        ParallelAxis("tensor", 2, 2)
    with pytest.raises(UsageError):
        ParallelAxis("tensor", -1, 2)
    with pytest.raises(UsageError):
        ParallelAxis("rows", 0, 2)  # type: ignore[arg-type]


def test_half_bytes_cannot_be_cut() -> None:
    assert cut_tensor(info("a", (4, 2), dtype="F4"), 0, 1, 2).nbytes == 1
    with pytest.raises(UsageError, match="inside a byte"):
        cut_tensor(info("a", (2, 4), dtype="F4"), 1, 1, 3)
