"""Trees in the lower layer of overlayfs (a model baked into an image), where no directory can be renamed."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.ids import Ref
from p2pcache.io.models.published_tree import ref_of_tree
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_store


@contextlib.contextmanager
def overlay(lower: Path, place: Path) -> Iterator[Path]:
    """`lower` below an empty writable layer, as a container shows its image."""
    scratch = place / "layers"  # an overlay can't lie on the upper layer of another one
    scratch.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "layers", str(scratch)], check=False)
    for name in ("upper", "work", "merged"):
        (scratch / name).mkdir()
    how = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work"
    mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", how, str(scratch / "merged")],
                             capture_output=True, check=False)  # fmt: skip
    try:
        if mounted.returncode:
            pytest.skip("needs the right to mount an overlay")
        yield scratch / "merged"
        subprocess.run(["umount", "-l", str(scratch / "merged")], check=True)
    finally:
        subprocess.run(["umount", "-l", str(scratch)], check=False, capture_output=True)


def filled(store: Store, wanted: Model) -> Path:
    """The tree of a model that was just stored."""
    here = wanted.add(store)
    wanted.fill(here)
    return store.root / "models" / here.publish(REF, 1)


def test_a_model_of_a_lower_layer_is_removed_and_stored_again(tmp_path: Path) -> None:
    wanted, lower = model(), tmp_path / "lower"
    lower.mkdir()
    with contextlib.closing(open_store(lower)) as store:
        filled(store, wanted)
    with overlay(lower, tmp_path) as merged, contextlib.closing(open_store(merged)) as store:
        shown = store.root / "models" / str(store.published_path(REF, wanted.digest))
        wanted.assert_tree(shown)
        store.remove_model(wanted.digest)
        assert not shown.exists()
        assert filled(store, wanted) == shown
        wanted.assert_tree(shown)
        store.prune(all_unused=True)
        assert not shown.exists()


def test_a_model_without_a_tag_is_told_by_the_first_name_that_has_a_tree(tmp_path: Path) -> None:
    old, new, later = model(), Model({"config.json": b"new"}), Ref.parse("team/zebra:v1")
    with contextlib.closing(open_store(tmp_path)) as store:
        for generation, wanted in enumerate((old, new), 1):
            here = wanted.add(store)
            wanted.fill(here)
            for ref in (later, REF):
                here.publish(ref, generation)
    with contextlib.closing(open_store(tmp_path)) as store:
        placed = {info.digest: info.placed for info in store.models()}
        assert placed == {new.digest: None, old.digest: Ref("team", "llama", "", old.digest)}
        assert all((info := store.model_info(d)) and info.placed == placed[d] for d in placed)
        store.remove_model(old.digest)
        assert not any((tmp_path / "models").glob(f"*/*/@{old.digest}"))


@pytest.mark.parametrize(
    ("path", "ref"),
    [(f"team/llama/@{'ab' * 32}", "team/llama"), (f"library/llama/@{'ab' * 32}+{'cd' * 16}", "llama"),
     (f"team/llama/@{'ab' * 32}+x", None), ("team/llama/v3", None), (f"a b/llama/@{'ab' * 32}", None)],
)  # fmt: skip
def test_the_ref_of_a_tree(tmp_path: Path, path: str, ref: str | None) -> None:
    (tmp_path / path).mkdir(parents=True)
    found = ref_of_tree(tmp_path / path)
    assert (found and (found.full_name, found.digest)) == (ref and (ref, "ab" * 32))
    (tmp_path / "link").symlink_to(tmp_path / path)
    assert ref_of_tree(tmp_path / "link") == found
