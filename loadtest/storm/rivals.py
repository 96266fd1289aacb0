"""The rivals by name: what each is, what it needs, and the processes that it is made of."""

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from loadtest.kit.models import files_of, make_model
from loadtest.kit.netns import Host
from loadtest.storm.arena import Arena
from loadtest.storm.contest import Racer, Score, contest
from loadtest.storm.naive import run_naive
from loadtest.storm.plan import Links
from loadtest.storm.webserver import PORT as WEB_PORT

PIECE_BYTES = 256 * 1024  # as our chunks of a model of this size
SEEDED_SLOTS = 3  # uploads at a time, of seed and nodes: more make the seed send more things twice
LEASED_SLOTS = -1  # without a limit: each node has pieces that all others lack


@dataclass(frozen=True, slots=True)
class Rival:
    """One other way to bring the same files to the same nodes.

    Attributes:
        help: one sentence for `--help` and the report.
        run: run it after the storm: the arena, its links, the storm's own model.
        modules: Python modules that it needs.
        programs: programs that it needs.
    """

    help: str
    run: Callable[[Arena, Links, Path], Score]
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def missing(self) -> str:
        """What has to be installed first; empty: nothing."""
        modules = [m for m in self.modules if importlib.util.find_spec(m) is None]
        programs = [p for p in self.programs if shutil.which(p) is None]
        how = [f"pip install {m}" for m in modules] + [f"install the program {p}" for p in programs]
        return ", ".join(how)


def make_torrent(source: Path, target: Path, *, tracker: str = "") -> int:
    """Write a v1 torrent of `source`; the number of its pieces.

    Args:
        source: a model's directory.
        target: the torrent file.
        tracker: its announce URL.
    """
    import libtorrent as lt

    torrent = lt.create_torrent(lt.list_files(str(source)), PIECE_BYTES, lt.create_torrent.v1_only)
    if tracker:
        torrent.add_tracker(tracker)
    lt.set_piece_hashes(torrent, str(source.parent))
    target.write_bytes(lt.bencode(torrent.generate()))
    return int(torrent.num_pieces())


def run_libtorrent(arena: Arena, links: Links, source: Path) -> Score:
    """The origin seeds; every node leeches from it and from all others."""
    torrent = arena.work / "libtorrent.torrent"
    make_torrent(source, torrent)
    origin = arena.origin_host
    command = _torrent_node(origin, torrent, source.parent, SEEDED_SLOTS)
    seed = Racer(origin, command, _folder(arena, "libtorrent", origin))
    return contest(
        arena, links, source, _leeches(arena, torrent, "libtorrent", [origin], SEEDED_SLOTS), [seed]
    )


def run_leased(arena: Arena, links: Links, source: Path) -> Score:
    """No seed: each piece is read from the origin by one node, which gives it to its session."""
    torrent = arena.work / "leased.torrent"
    pieces = make_torrent(source, torrent)
    racers = _leeches(arena, torrent, "leased", [], LEASED_SLOTS, "--web", _web_url(arena))
    return contest(arena, links, source, racers, [_webserver(arena, "leased", source, pieces)])


def run_aria2(arena: Arena, links: Links, source: Path) -> Score:
    """The origin seeds with aria2, and every node leeches; they meet by a tracker.

    As a web seed the origin would be asked more for the same pieces (docs/lab/measurements-until-0041.md).
    """
    torrent = arena.work / "aria2.torrent"
    make_torrent(source, torrent, tracker=f"{_web_url(arena)}/announce")
    racers = []
    for host in arena.node_hosts:
        folder = _folder(arena, "aria2", host)
        command = aria2_command(torrent, folder, folder, start="echo ready && read go", word="done")
        racers.append(Racer(host, command, folder))
    folder = _folder(arena, "aria2-seed", arena.origin_host)
    command = aria2_command(torrent, folder, source.parent, start="true", word="ready")
    seed = Racer(arena.origin_host, command, folder)
    return contest(arena, links, source, racers, [_webserver(arena, "aria2", source, 0), seed])


def run_http(arena: Arena, links: Links, source: Path) -> Score:
    """One HTTP server and a curl on every node; a smaller model, or it would take minutes."""
    small = make_model(arena.work / "model-http", arena.plan.naive_bytes, shards=1)
    racers = []
    for host in arena.node_hosts:
        folder = _folder(arena, "http", host)
        command = curl_command(_web_url(arena), small, folder)
        racers.append(Racer(host, command, folder))
    return contest(arena, links, small, racers, [_webserver(arena, "http", small, 0)])


def aria2_command(torrent: Path, folder: Path, into: Path, *, start: str, word: str) -> list[str]:
    """A command line that says `word` by aria2's hook once all pieces are there, and goes on seeding.

    Args:
        torrent: the torrent file.
        folder: gets the hook.
        into: gets the files, or has them already.
        start: a shell command to run before.
        word: what to say.
    """
    hook = folder / "hook"
    aria2 = [
        "aria2c", "--no-conf", "--quiet", f"--dir={into}", str(torrent),
        "--enable-dht=false", "--enable-dht6=false", "--disable-ipv6", "--bt-enable-lpd=false",
        "--seed-ratio=0.0", f"--on-bt-download-complete={hook}",
        "--check-integrity=true", "--allow-overwrite=true",  # a seed proves the files that it has
        "--file-allocation=none",  # zeroing the files first would only cost time
        "--bt-max-peers=0", "--bt-request-peer-speed-limit=999M",  # always glad of another peer
    ]  # fmt: skip
    script = (
        f"printf '#!/bin/sh\\necho {word}\\n' > {shlex.quote(str(hook))} && "
        f"chmod +x {shlex.quote(str(hook))} && {start} && exec {shlex.join(aria2)}"
    )
    return ["sh", "-c", script]


def curl_command(web: str, source: Path, folder: Path) -> list[str]:
    """A command line in the words of `Racer`: one curl for all files, one connection."""
    curl = ["curl", "-sSf", "--create-dirs"]
    for name in files_of(source):
        curl += ["-o", str(folder / source.name / name), f"{web}/{quote(f'{source.name}/{name}')}"]
    return ["sh", "-c", f"echo ready && read go && {shlex.join(curl)} && echo done"]


def _leeches(
    arena: Arena, torrent: Path, name: str, seeds: list[Host], slots: int, *more: str
) -> list[Racer]:
    """One session per node; each dials the seeds and the nodes before it."""
    racers = []
    for number, host in enumerate(arena.node_hosts):
        folder = _folder(arena, name, host)
        command = _torrent_node(host, torrent, folder, slots)
        for peer in (*seeds, *arena.node_hosts[:number]):
            command += ["--peer", peer.address]
        racers.append(Racer(host, [*command, *more], folder))
    return racers


def _torrent_node(host: Host, torrent: Path, folder: Path, slots: int) -> list[str]:
    command = [sys.executable, "-m", "loadtest.storm.torrent_node", host.address]
    return [*command, str(torrent), str(folder), "--slots", str(slots)]


def _webserver(arena: Arena, name: str, source: Path, pieces: int) -> Racer:
    host = arena.origin_host
    command = [
        sys.executable,
        "-m",
        "loadtest.storm.webserver",
        host.address,
        str(source),
        str(pieces),
    ]
    return Racer(host, command, _folder(arena, name, host))


def _web_url(arena: Arena) -> str:
    return f"http://{arena.origin_host.address}:{WEB_PORT}"


def _folder(arena: Arena, name: str, host: Host) -> Path:
    return arena.work / "rivals" / name / host.port


RIVALS: dict[str, Rival] = {
    "naive": Rival("our own client without tracker and peers: each node reads S3 itself; a smaller model", run_naive),
    "http": Rival("one HTTP server, a curl on each node; a smaller model", run_http, (), ("curl",)),
    "libtorrent": Rival("a swarm with the origin as its seed", run_libtorrent, ("libtorrent",)),
    "libtorrent-leased": Rival(
        "a swarm without a seed: each piece is read from the origin by one node and injected", run_leased,
        ("libtorrent",),
    ),
    "aria2": Rival(
        "aria2's swarm with the origin as its seed", run_aria2, ("libtorrent",), ("aria2c",)
    ),
}  # fmt: skip
