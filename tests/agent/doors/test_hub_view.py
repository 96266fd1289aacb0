"""The hub view: unmodified hub clients read what the agent has published, ask nobody, and write nothing."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors.open_model import ModelDoor
from p2pcache.cli.main import cli
from tests.agent.doors.test_hub import FILES, door, endpoint
from tests.agent.kit import agent, make_model, pull, push

CLIENT = """
import sys
from pathlib import Path
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
folder = Path(snapshot_download("Acme/Tiny"))
assert folder.is_relative_to(HF_HUB_CACHE), folder
for path in sorted(folder.rglob("*")):
    if path.is_file():
        print(path.relative_to(folder), path.stat().st_ino, len(path.read_bytes()))
print(snapshot_download("acme/tiny", revision="v1") == str(folder).replace("Acme--Tiny", "acme--tiny"))
print(Path(hf_hub_download("acme/tiny", "sub/dir/vocab \\u00fc.txt", revision=folder.name)).read_text(), end="")
report = scan_cache_dir()
print({repo.repo_id for repo in report.repos} == {"Acme/Tiny", "acme/tiny"}, report.warnings)
"""


def run_client(cache: Path, code: str, **env: str) -> str:
    """What an unmodified client prints that takes the view for its cache."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {
        "HF_HUB_CACHE": str(cache / "models/.hf"), "HF_HOME": str(cache.parent / "hf"),
        "HTTPS_PROXY": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code], env=clean | settings | env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def contents(view: Path) -> set[str]:
    """Every entry of the view: whatever a client writes shows."""
    return {f"{path} {path.lstat().st_mtime_ns}" for path in (view, *view.rglob("*"))}


def refuse_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: object) -> None:
        raise AssertionError("a client asked for the bytes of a file")

    monkeypatch.setattr(ModelDoor, "stream", refused)


async def published(app: AgentApp, *refs: str) -> Path:
    """Pull models; return the tree of the last one, when its spelling is known, too."""
    paths = []
    for ref in refs:
        done = await pull(app, ref)
        assert done["event"] == "done", done
        paths.append(done["path"])
    view = app.store.root / "models/.hf"
    while not any(path.is_symlink() for path in view.iterdir()):  # it comes beside the pull
        await asyncio.sleep(0.01)
    return app.store.root / "models" / str(paths[-1])


async def test_a_client_reads_the_files_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tag in ("v1", "latest"):
        push(tmp_path / "origin", make_model(tmp_path / "m", FILES), f"Acme/Tiny:{tag}")
    refuse_bodies(monkeypatch)
    async with door(tmp_path) as app:
        tree = await published(app, "acme/tiny:v1", "acme/tiny")
        files = "".join(
            f"{path} {(tree / path).stat().st_ino} {len(data)}\n" for path, data in sorted(FILES.items())
        )  # fmt: skip
        expected = files + "True\none\ntwo\nTrue []\n"
        view = app.store.root / "models/.hf"
        before = contents(view)
        for how in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": endpoint(app)}):
            said = await asyncio.to_thread(run_client, app.store.root, CLIENT, **how)
            assert said == expected
            assert contents(view) == before  # though this user could write there
    assert not (tmp_path / "hf/hub").exists()


async def test_an_absent_file_leaves_no_note_in_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "Acme/Tiny")
    refuse_bodies(monkeypatch)
    code = """
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
try:
    hf_hub_download("Acme/Tiny", "adapter_config.json")
except EntryNotFoundError:
    print("absent")
"""
    async with door(tmp_path) as app:
        await published(app, "acme/tiny")
        before = contents(app.store.root / "models/.hf")
        how = {"HF_ENDPOINT": endpoint(app)}
        assert await asyncio.to_thread(run_client, app.store.root, code, **how) == "absent\n"
        assert contents(app.store.root / "models/.hf") == before


async def test_a_push_is_seen_by_its_spelling_at_once(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", FILES)
    (tmp_path / "origin").mkdir()
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        words = ["push", str(made), "Acme/Tiny:v2", "--agent", f"unix://{app.settings.socket}"]
        said = await asyncio.to_thread(CliRunner().invoke, cli, words)
        assert said.exit_code == 0, said.output
        ref = app.store.root / "models/.hf/models--Acme--Tiny/refs/v2"
        (model,) = app.store.models()
        assert ref.read_text() == model.digest[:40]
        assert app.downloads.swarms[model.digest].label == "Acme/Tiny:v2"  # as the tracker hears it
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert app.downloads.swarms[model.digest].label == "Acme/Tiny:v2"


@pytest.mark.slow
async def test_transformers_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "m"
    code = f"""
from transformers import BertConfig, BertModel
BertModel(BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                     intermediate_size=8)).save_pretrained({str(made)!r})
"""
    await asyncio.to_thread(run_client, tmp_path, code)
    push(tmp_path / "origin", made, "Acme/Bert")
    refuse_bodies(monkeypatch)
    code = """
from transformers import AutoModel
print(AutoModel.from_pretrained("Acme/Bert").config.vocab_size)
"""
    async with door(tmp_path) as app:
        await published(app, "acme/bert")
        before = contents(app.store.root / "models/.hf")
        for how in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": endpoint(app)}):
            assert await asyncio.to_thread(run_client, app.store.root, code, **how) == "50\n"
            assert contents(app.store.root / "models/.hf") == before
    assert not (tmp_path / "hf/hub").exists()
