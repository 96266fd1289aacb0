"""`export`: write a torrent of a model, for clients without p2pcache."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from p2pcache.cli.commands.models.pull import directory_of, pull_events
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, PullOptions, client_options
from p2pcache.cli.support.options import FILE, Command, json_option, quiet_option
from p2pcache.cli.support.output import emit
from p2pcache.cli.support.progress import Event, Reporter, follow, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.format.manifest import digest_of, encode, make_manifest
from p2pcache.core.units import format_bytes
from p2pcache.errors import IntegrityError, NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.indexing import Progress, index_directory
from p2pcache.io.torrents.library import libtorrent
from p2pcache.io.torrents.making import maker_command, web_seed_url, with_sources, write_whole


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--torrent", metavar="FILE", type=FILE, required=True, help="The torrent file to write."
)
@click.option(
    "--web-seed", metavar="URL", default="",
    help="A server that shows models as /NAMESPACE/NAME/@HEX/PATH, as an agent's torrent_http_listen does.",
)  # fmt: skip
@click.option("--announce", metavar="URL", default="", help="A BitTorrent tracker's announce URL.")
@click.option("--v1", is_flag=True, help="Of version 1 alone, for clients that can't read hybrids.")
@json_option
@quiet_option
@client_options("origin", "tracker", "cache_dir")
def export(
    ref: str, torrent: str, web_seed: str, announce: str, v1: bool, as_json: bool, quiet: bool, loaded: Loaded
) -> None:  # fmt: skip
    """Write a torrent of a model, for clients without p2pcache.

    Any BitTorrent client gets the model by it: from an agent that seeds it, from a web seed, or from
    others who have it. The torrent is a hybrid of v1 and v2 (Transmission until 3 and aria2 until
    1.36 want --v1); on every node the same model gets the same info hash. The model is pulled first
    if it isn't here, and read twice. Prints a magnet link on stdout. Needs libtorrent:
    pip install 'p2pcache[torrent]'.

    Examples:
      p2pcache export team/llama:v3 --torrent llama.torrent --web-seed http://models.example:7405
      aria2c llama.torrent
    """
    libtorrent()
    wanted = Ref.parse(ref)
    for url in (web_seed, announce):
        if url and not url.startswith(("http://", "https://", "udp://")):
            raise UsageError(f"not a URL: {url!r}; expected http://HOST:PORT")
    reporter = make_reporter(f"exporting {wanted}", as_json=as_json, quiet=quiet)
    with closing(reporter):
        with pull_events(loaded, wanted, PullOptions(), quiet=quiet) as (events, _):
            done = follow(events, reporter)
            tree = directory_of(loaded, done)
        if not tree.is_dir():
            raise NotFound(
                f"{tree} isn't visible here; set P2PCACHE_MODELS_DIR to where the agent's models are mounted"
            )
        digest = str(done["digest"])
        manifest = _manifest(loaded, wanted._replace(digest=digest), tree, reporter)
        data = _made(tree, manifest, reporter, v1=v1)
        seed = web_seed_url(web_seed, wanted.namespace, wanted.name) if web_seed else ""
        data = with_sources(data, announce, seed)
        with disk_errors(torrent):
            write_whole(Path(torrent), data)
    told = {
        "event": "done",
        "ref": str(wanted),
        "digest": digest,
        "bytes": done["bytes"],
        "torrent": torrent,
    }
    magnet = _magnet(data)
    reporter.done({**told, "magnet": magnet}, f"{torrent}: {wanted}, {format_bytes(done['bytes'])}")
    if not as_json:
        emit(magnet)


def _manifest(loaded: Loaded, ref: Ref, tree: Path, reporter: Reporter) -> bytes:
    """Return the model's manifest, of the files as they lie there: so each byte is proved."""
    with cache_or_agent(loaded) as cache:
        rows = cache.model(str(ref))["manifest"]["files"]
    known = {
        row["path"]: bytes.fromhex(row.get("sha256", "").removeprefix("sha256:")) for row in rows
    }
    found, _ = index_directory(tree, progress=lambda progress: reporter.update(_event(progress)))
    encoded = encode(make_manifest(f._replace(sha256=known.get(f.path, b"")) for f in found.files))
    if digest_of(encoded) != ref.digest:
        raise IntegrityError(
            f"the files in {tree} aren't those of {ref.short}, or this release cuts them into other chunks; "
            f"'p2pcache verify {ref.short}' tells"
        )
    return encoded


def _event(progress: Progress) -> Event:
    return {
        "event": "progress", "phase": "index",
        "bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total,
    }  # fmt: skip


def _made(tree: Path, manifest: bytes, reporter: Reporter, *, v1: bool) -> bytes:
    """Make the torrent in a process of its own, which an interrupt ends."""
    with tempfile.TemporaryDirectory(prefix="p2pcache-") as folder:
        source, target = Path(folder) / "manifest", Path(folder) / "torrent"
        source.write_bytes(manifest)
        command = maker_command(tree.parent, source, target, v1=v1)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as maker:
            try:
                for done, total in _told(maker):
                    reporter.update(_event(Progress(done, total, 0)))
            finally:
                if maker.poll() is None:
                    maker.terminate()
            assert maker.stderr is not None
            why = maker.stderr.read().strip()
        if not target.exists():
            raise P2PCacheError(
                f"the torrent can't be made: {why.splitlines()[-1:] or maker.returncode}"
            )
        return target.read_bytes()


def _told(maker: "subprocess.Popen[str]") -> Iterator[tuple[int, int]]:
    assert maker.stdout is not None
    for line in maker.stdout:
        done, _, total = line.partition(" ")
        yield int(done), int(total)
    maker.wait()


def _magnet(torrent: bytes) -> str:
    lt = libtorrent()
    return str(
        lt.make_magnet_uri(lt.load_torrent_buffer(torrent, {"max_buffer_size": len(torrent)}))
    )
