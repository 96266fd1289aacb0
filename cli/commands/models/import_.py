"""`import`: take in a model from where it lies."""

import time
from contextlib import closing

import click

from p2pcache.cli.standalone.torrent_import import (
    TorrentImport,
    TorrentOptions,
    is_torrent,
    torrent_options,
)
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import Command, json_option, quiet_option
from p2pcache.cli.support.output import emit
from p2pcache.cli.support.progress import Event, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, spelled


@click.command("import", cls=Command)
@click.argument("source", metavar="SOURCE")
@click.argument("ref", type=REF)
@click.option(
    "--force", is_flag=True, help="Take the tag even if somebody else moves it meanwhile."
)
@torrent_options
@json_option
@quiet_option
@client_options("origin", "cache_dir")
def import_(
    source: str, ref: str, force: bool, peer: tuple[str, ...], allow_local: bool, staging: str, rate: str,
    as_json: bool, quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Take in a model from where it lies.

    SOURCE is a torrent file or a magnet link. Its files come from any BitTorrent clients into a
    staging directory; what is exported by p2pcache must be that model, chunk by chunk, and what
    isn't becomes one; then it is pushed. Interrupted and repeated, it goes on where it was.
    Trackers, web seeds and peers on this machine or its link are left out unless --allow-local.
    Needs libtorrent: pip install 'p2pcache[torrent]'.

    Examples:
      p2pcache import llama.torrent team/llama:v3
      p2pcache import llama.torrent team/llama:v3 --peer seed.site-a.example:7406 --rate 200mbit
    """
    wanted = Ref.parse(ref)
    spelling = spelled(ref)
    if wanted.digest:
        raise UsageError(f"import gives a tag its digest; leave the digest out: {wanted.short}")
    if not is_torrent(source):
        raise UsageError(f"not a source: {source[:200]!r}; expected FILE.torrent or a magnet link")
    target = TorrentImport(loaded, TorrentOptions(peer, allow_local, staging, rate))
    reporter = make_reporter(f"importing {wanted.short}", as_json=as_json, quiet=quiet)
    began = time.monotonic()
    with closing(reporter), saying_what_goes_on(lambda: target.goes_on):
        done = target.import_model(source, wanted, reporter, spelling=spelling, force=force)
        done["seconds"] = round(time.monotonic() - began, 3)
        reporter.done(done, _summary(wanted, done))
    if not as_json:
        emit(f"{spelling}:{wanted.tag}@blake3:{done['digest']}")


def _summary(ref: Ref, done: Event) -> str:
    size, read = int(done.get("bytes", 0)), int(done.get("bytes_read", 0))
    seconds = format_duration(float(done["seconds"]))
    return f"imported {ref.short}: {format_bytes(size)}, {format_bytes(read)} of it read now, in {seconds}"
