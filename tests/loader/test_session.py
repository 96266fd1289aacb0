"""Open models and loads are closed, never copied."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import p2pcache
from p2pcache.errors import UsageError
from p2pcache.loader.plan.batches import READ_BYTES
from tests.loader.loader_kit import Spec, write

SPECS = [*(Spec(f"t{i}", "U8", (1 << 20,)) for i in range(8)), Spec("big", "U8", (READ_BYTES + 1,))]


Body = dict[str, bytes]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Body]:
    return tmp_path, write(tmp_path / "m.safetensors", SPECS)


@pytest.mark.parametrize("travel", [pickle.dumps, copy.copy, copy.deepcopy])
def test_open_models_and_loads_can_not_be_pickled(
    model: tuple[Path, Body], travel: Callable[[Any], object]
) -> None:
    opened, stream = p2pcache.safe_open(model[0]), p2pcache.iter_tensors(model[0])
    with opened, stream:
        for held in (opened, stream):
            with pytest.raises(UsageError, match="pickled"):
                travel(held)
