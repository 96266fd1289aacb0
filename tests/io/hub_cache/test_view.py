"""The hub view follows trees and tags, whatever happened to it meanwhile."""

import json
import os
import shutil
from pathlib import Path

from p2pcache.ids import Ref
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_fds, open_store

OLD, NEW, OTHER = model(1), model(2), model(3)


def publish(store: Store, wanted: Model, ref: Ref, generation: int = 1) -> None:
    here = wanted.add(store)
    here.copy_local()
    wanted.fill(here)
    here.publish(ref, generation)


def seen(cache: Path) -> dict[str, str]:
    """Each file and link of the view with its text or target; a listing with the paths that it names."""
    root = cache / "models/.hf"
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*files, *(one for one in folders if (Path(folder) / one).is_symlink())]:
            path = Path(folder) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = str(path.readlink())
            elif path.suffix == ".json":
                found[key] = " ".join(json.loads(path.read_text())["files"])
            else:
                found[key] = path.read_text()
    return found


def shown(wanted: Model, *revisions: str, name: str = "team/llama") -> dict[str, str]:
    """What the view has of one model."""
    repo, commit = "models--" + name.replace("/", "--"), wanted.digest[:40]
    place = name if "/" in name else f"library/{name}"
    return {
        f"{repo}/snapshots/{commit}": f"../../../{place}/@{wanted.digest}",
        f"{repo}/trees/{commit}.json": " ".join(sorted(wanted.files)),
        **{f"{repo}/refs/{revision}": commit for revision in revisions},
    }


def test_it_follows_every_change(tmp_path: Path) -> None:
    store, cache = open_store(tmp_path), tmp_path / "cache"
    assert seen(cache) == {}
    publish(store, OLD, REF)
    assert seen(cache) == shown(OLD, "v1")
    publish(store, NEW, REF, 2)
    publish(store, OLD, Ref.parse("team/llama"))
    both = shown(OLD, "main", "latest") | shown(NEW, "v1")
    assert seen(cache) == both
    publish(store, OTHER, Ref.parse("plain:main"))
    assert seen(cache) == both | shown(OTHER, "main", name="plain")
    store.remove_model(OTHER.digest)
    store.remove_tag(Ref.parse("team/llama"))
    store.evict_model(NEW.digest)
    assert seen(cache) == {}
    publish(store, NEW, REF, 2)
    assert seen(cache) == shown(NEW, "v1")
    (snapshot,) = (cache / "models/.hf/models--team--llama/snapshots").iterdir()
    NEW.assert_tree(snapshot.resolve())
    store.remove_model(NEW.digest)
    assert list((cache / "models/.hf").iterdir()) == []
    store.close()


def test_main_is_the_tag_main_before_latest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    publish(store, OLD, Ref.parse("team/llama:latest"))
    publish(store, NEW, Ref.parse("team/llama:main"))
    assert seen(tmp_path / "cache") == shown(OLD, "latest") | shown(NEW, "main")
    store.close()


def test_a_name_is_shown_as_it_is_written_too(tmp_path: Path) -> None:
    store, cache = open_store(tmp_path), tmp_path / "cache"
    store.spell(REF, "Team/LLaMa")  # before the model is there
    assert seen(cache) == {}
    publish(store, OLD, REF)
    usual = shown(OLD, "v1")
    assert seen(cache) == usual | {"models--Team--LLaMa": "models--team--llama"}
    store.spell(REF, "team/other")
    store.spell(REF, "Team/LLaMa/../../x")
    assert seen(cache) == usual | {"models--Team--LLaMa": "models--team--llama"}
    store.close()
    store = open_store(tmp_path)
    assert seen(cache) == usual | {"models--Team--LLaMa": "models--team--llama"}
    store.spell(REF, "TEAM/llama")
    assert seen(cache) == usual | {"models--TEAM--llama": "models--team--llama"}
    (told,) = store.models()
    assert told.as_json()["spellings"] == {"team/llama": "TEAM/llama"}
    store.spell(REF, "team/llama")
    assert store.models()[0].as_json()["spellings"] == {}
    assert seen(cache) == usual
    store.spell(REF, "Team/llama")
    store.evict_model(OLD.digest)
    assert list((cache / "models/.hf").iterdir()) == []
    assert store.models()[0].as_json()["spellings"] == {"team/llama": "Team/llama"}
    store.close()
    store = open_store(tmp_path)
    (told,) = store.models()
    assert (told.remote, told.written_names) == (True, ["Team/llama:v1"]), "`ls` shows it so"
    publish(store, OLD, REF)
    assert seen(cache) == usual | {"models--Team--llama": "models--team--llama"}
    store.close()


def test_names_that_two_models_could_share_are_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    publish(store, OLD, Ref.parse("a--b/c"))
    publish(store, NEW, Ref.parse("a/b--c"))
    assert seen(tmp_path / "cache") == {}
    store.close()


def test_a_start_puts_right_whatever_happened_to_it(tmp_path: Path) -> None:
    store, cache = open_store(tmp_path), tmp_path / "cache"
    publish(store, OLD, REF)
    publish(store, NEW, Ref.parse("plain:main"))
    store.spell(REF, "Team/Llama")
    store.close()
    good = seen(cache)
    view = cache / "models/.hf"
    repo = view / "models--team--llama"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (repo / "refs/v1").unlink()
    (repo / "refs/v1").write_text("")
    (repo / "refs/.new-0").write_text("half")
    (repo / "refs/old").symlink_to(outside / "kept")
    (repo / f"snapshots/{OLD.digest[:40]}").unlink()
    (repo / f"snapshots/{OLD.digest[:40]}").mkdir()
    (repo / f"snapshots/{OLD.digest[:40]}/config.json").write_text("a client's own")
    (repo / "snapshots" / ("0" * 40)).symlink_to(outside)
    (repo / "blobs").mkdir()
    (repo / "blobs/x").write_text("x")
    (repo / ".no_exist").symlink_to(outside)
    (view / "models--gone--gone/snapshots").mkdir(parents=True)
    (view / "models--Gone--gone").symlink_to("models--gone--gone")
    (view / "models--else").symlink_to(outside)
    (view / "CACHEDIR.TAG").write_text("x")
    shutil.rmtree(view / "models--plain/refs")
    (view / "models--plain/refs").symlink_to(outside)
    store = open_store(tmp_path)
    assert seen(cache) == good
    assert [one.name for one in outside.iterdir()] == ["kept"]
    store.close()
    shutil.rmtree(view)
    store = open_store(tmp_path)
    trees = {key for key in good if "/trees/" in key}
    left = {key: text for key, text in good.items() if key not in trees}
    assert seen(cache) == left
    publish(store, OLD, REF)  # a pull of a complete model
    assert seen(cache) == left | {key: good[key] for key in trees if "llama" in key}
    store.close()


def test_a_disk_that_refuses_the_view_refuses_no_model(tmp_path: Path) -> None:
    class Full(Disk):
        def symlink(self, text: str, parent: int, name: str) -> None:
            if text.startswith("../../../"):
                raise OSError(28, "No space left on device")
            super().symlink(text, parent, name)

    store = open_store(tmp_path, Full())
    publish(store, OLD, REF)
    OLD.assert_tree(tmp_path / "cache/models/team/llama/v1")
    store.close()
    store = open_store(tmp_path)
    assert seen(tmp_path / "cache") == shown(OLD, "v1")
    store.close()


def test_containers_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store = open_store(tmp_path)
        publish(store, OLD, REF)
        store.close()
    finally:
        os.umask(before)
    for path in (tmp_path / "cache/models/.hf").rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o444), path


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    publish(store, OLD, REF)
    before = open_fds()
    for generation in range(3):
        store.evict_model(OLD.digest)
        publish(store, OLD, REF, generation + 2)
        store.spell(REF, f"TEAM/{'LLaMa' if generation % 2 else 'llamA'}")
    assert open_fds() == before
    store.close()
