"""Seeded models and the comparison that the verdicts rest on."""

import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from loadtest.kit.models import check_tree, corrupt_file, files_of, make_model, total_bytes


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    one = make_model(tmp_path / "one", 3_000_000, shards=2, seed=7)
    two = make_model(tmp_path / "two", 3_000_000, shards=2, seed=7)
    assert check_tree(one, two) == len(files_of(one))
    other = make_model(tmp_path / "other", 3_000_000, shards=2, seed=8)
    with pytest.raises(AssertionError, match="differs"):
        check_tree(one, other)


def test_shards_are_valid_safetensors_of_the_wanted_size(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", 70_000_001, shards=2)
    shards = sorted(folder.glob("*.safetensors"))
    assert sum(s.stat().st_size for s in shards) == 70_000_001
    for shard in shards:
        with safe_open(shard, framework="np") as file:
            assert file.keys()


def test_a_shard_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fewer shards"):
        make_model(tmp_path / "m", 100, shards=4)


@pytest.mark.parametrize("harm", ["flip", "truncate", "missing", "extra"])
def test_check_tree_finds_every_harm(tmp_path: Path, harm: str) -> None:
    source = make_model(tmp_path / "source", 3_000_000, shards=1)
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    shard = copy / "model.safetensors"
    if harm == "flip":
        corrupt_file(shard, 2_999_999)
    elif harm == "truncate":
        with shard.open("r+b") as file:
            file.truncate(2_999_999)
    elif harm == "missing":
        (copy / "config.json").unlink()
    else:
        (copy / "more").touch()
    with pytest.raises(AssertionError):
        check_tree(copy, source)
    assert total_bytes(source) > 3_000_000
