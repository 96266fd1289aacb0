"""`export` and `import` of torrents: from one storage to another, through a plain web server."""

import json
import os
import shutil
from pathlib import Path

import pytest

from p2pcache.errors import InvalidTorrent, NotFound, P2PCacheError
from p2pcache.io.torrents.metainfo import OUR_KEY, read_metainfo
from tests.cli.conftest import Run
from tests.io.torrents.kit import lt, of_bytes
from tests.io.torrents.test_fetching import web_server

FILES = {"config.json": b"{}", "model.bin": os.urandom(700_000), "sub/a.txt": b"one\n"}


@pytest.fixture
def exported(tmp_path: Path, run: Run) -> Path:
    """A pushed model, and its torrent in `a.torrent`; returns the folder that a web seed shows."""
    for path, data in FILES.items():
        (tmp_path / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / path).write_bytes(data)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = (tmp_path / "here").as_uri()
    assert run("push", tmp_path / "m", "team/llama:v3", "--origin", here, "-q").exit_code == 0
    done = run("export", "team/llama:v3", "--origin", here, "--torrent", tmp_path / "a.torrent")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("magnet:?xt=urn:btih:")
    return tmp_path / "xdg/p2pcache/models"


def take(run: Run, tmp_path: Path, torrent: bytes, *options: str) -> tuple[int, str, str]:
    """Import a torrent into the other storage."""
    (tmp_path / "b.torrent").write_bytes(torrent)
    there = (tmp_path / "there").as_uri()
    result = run(
        "import", tmp_path / "b.torrent", "site-b/llama:v3", "--origin", there, "--cache-dir", tmp_path / "c",
        "--allow-local", *options,
    )  # fmt: skip
    error = result.exception
    if isinstance(error, P2PCacheError):
        return error.exit_code, result.stdout, str(error)
    return result.exit_code, result.stdout, result.stderr


def with_seed(torrent: bytes, url: str) -> bytes:
    return bytes(lt.bencode(lt.bdecode(torrent) | {b"url-list": url.encode()}))


def tags(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "there").rglob("tags/**/*") if path.is_file()]


def test_a_model_goes_from_site_to_site(tmp_path: Path, run: Run, exported: Path) -> None:
    data = (tmp_path / "a.torrent").read_bytes()
    digest = read_metainfo(data).digest
    with web_server(exported) as (url, _):
        code, out, err = take(run, tmp_path, with_seed(data, f"{url}/team/llama/"))
    assert (code, out) == (0, f"site-b/llama:v3@blake3:{digest}\n"), err
    assert len(tags(tmp_path)) == 1
    assert not list((tmp_path / "c/torrent-imports").iterdir())
    pulled = run("pull", "site-b/llama:v3", "--origin", (tmp_path / "there").as_uri(), "-q")
    tree = Path(pulled.stdout.strip())
    assert {
        str(f.relative_to(tree)): f.read_bytes() for f in tree.rglob("*") if f.is_file()
    } == FILES


def test_two_nodes_write_the_same_torrent(tmp_path: Path, run: Run, exported: Path) -> None:
    shutil.rmtree(tmp_path / "xdg")
    options = ["--origin", (tmp_path / "here").as_uri(), "--torrent", tmp_path / "again.torrent"]
    done = run("export", "team/llama:v3", *options, "--json")
    assert (tmp_path / "again.torrent").read_bytes() == (tmp_path / "a.torrent").read_bytes()
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["bytes"]) == ("done", sum(map(len, FILES.values())))


def test_other_bytes_under_a_models_name_are_no_model(
    tmp_path: Path, run: Run, exported: Path
) -> None:
    """A torrent that is right about its own bytes, and says that they are a model of ours."""
    true = read_metainfo((tmp_path / "a.torrent").read_bytes())
    evil = tmp_path / "evil" / true.name
    shutil.copytree(exported / "team/llama" / true.name, evil)
    for path in (evil, evil / "model.bin"):
        path.chmod(0o700)
    (evil / "model.bin").write_bytes(os.urandom(700_000))
    creator = lt.create_torrent(
        [lt.create_file_entry(f"{true.name}/{f.path}", f.size) for f in true.files], 1 << 16
    )
    lt.set_piece_hashes(creator, str(evil.parent))
    lied = creator.generate()
    with web_server(evil.parent) as (url, _):
        bare = with_seed(lt.bencode(lied), f"{url}/")
        code, _, err = take(run, tmp_path, bare)
        assert code == 6, err
        assert "named as model" in err
        packed = lt.bdecode(true.data)[OUR_KEY]
        code, _, err = take(
            run, tmp_path, with_seed(lt.bencode(lied | {OUR_KEY: packed}), f"{url}/")
        )
        assert code == 6, err
        assert "model.bin: its bytes from 0 on aren't the model's" in err
    assert tags(tmp_path) == []
    assert not list((tmp_path / "there").rglob("blobs/*"))


def test_any_torrents_files_become_a_model(tmp_path: Path, run: Run, exported: Path) -> None:
    (tmp_path / "w.bin").write_bytes(FILES["model.bin"])
    with web_server(tmp_path) as (url, _):
        torrent = of_bytes("w.bin", FILES["model.bin"], **{"url-list": f"{url}/".encode()})
        code, out, err = take(run, tmp_path, torrent)
    assert code == 0, err
    assert out.startswith("site-b/llama:v3@blake3:")


@pytest.mark.parametrize(
    ("torrent", "code", "said"),
    [
        (b"hello", 6, ".torrent: it is no torrent file"),
        (of_bytes("w.bin", b"x"), 2, "--peer"),  # nobody to ask
    ],
)
def test_what_cannot_begin_says_why(
    tmp_path: Path, run: Run, torrent: bytes, code: int, said: str
) -> None:
    (tmp_path / "there").mkdir()
    got, _, err = take(run, tmp_path, torrent)
    assert got == code
    assert said in err


def test_what_is_no_source(tmp_path: Path, run: Run) -> None:
    for source, error in ((tmp_path / "none.torrent", NotFound), ("magnet:?", InvalidTorrent)):
        result = run("import", source, "team/x", "--origin", tmp_path.as_uri())
        assert isinstance(result.exception, error)
