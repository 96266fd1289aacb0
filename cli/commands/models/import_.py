"""`import`: take in a model from where it lies."""

import os
import time
from contextlib import closing

import click

from p2pcache.cli.standalone.importing import AgentImport, DirectImport, ImportTarget
from p2pcache.cli.standalone.torrent_import import (
    TorrentImport,
    TorrentOptions,
    is_torrent,
    torrent_options,
)
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import Command, json_option, quiet_option
from p2pcache.cli.support.output import emit
from p2pcache.cli.support.progress import Event, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, as_written, spelled
from p2pcache.io.sources.settings import read_sources


@click.command("import", cls=Command)
@click.argument("source", metavar="SOURCE")
@click.argument("ref", type=REF)
@click.option(
    "--include", metavar="PATTERN", multiple=True, help="Only files that fit; may be repeated."
)
@click.option(
    "--exclude", metavar="PATTERN", multiple=True, help="Leave files out; may be repeated."
)
@click.option(
    "--copy",
    is_flag=True,
    help="Store the files in the storage, too; without it they stay where they are.",
)
@click.option(
    "--force", is_flag=True, help="Take the tag even if somebody else moves it meanwhile."
)
@torrent_options
@json_option
@quiet_option
@client_options("origin", "cache_dir")
def import_(
    source: str,
    ref: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    copy: bool,
    force: bool,
    peer: tuple[str, ...],
    allow_local: bool,
    staging: str,
    rate: str,
    as_json: bool,
    quiet: bool,
    loaded: Loaded,
) -> None:
    """Take in a model from a bucket, a hub, a web server, a directory or a torrent.

    SOURCE is a URL below one of the sources of the settings ([sources.NAME] url = "..."): file://,
    s3://, https:// or hf://ORG/REPO[@REVISION]. Each byte is read once, compared with the SHA-256
    that the source states, and kept by the agent. The storage gets the tag and a record of where
    the files lie; nodes read them there. Interrupted and repeated, it goes on where it was.

    A torrent file or a magnet link is a source, too. Its files come from any BitTorrent clients
    into a staging directory, are proved, and pushed. Trackers, web seeds and peers on this machine
    or its link are left out unless --allow-local. Needs libtorrent: pip install 'p2pcache[torrent]'.

    Examples:
      p2pcache import hf://meta-llama/Llama-3.1-8B@main team/llama:v3
      p2pcache import s3://lake/models/llama team/llama:v3 --exclude '*.bin'
      p2pcache import https://models.example/llama/ llama --copy
      p2pcache import llama.torrent team/llama:v3 --peer seed.site-a.example:7406 --rate 200mbit
    """
    wanted = Ref.parse(ref)
    spelling, name = spelled(ref), as_written(ref)
    if wanted.digest:
        raise UsageError(f"import gives a tag its digest; leave the digest out: {wanted.short}")
    target: ImportTarget
    if is_torrent(source):
        target = TorrentImport(loaded, TorrentOptions(peer, allow_local, staging, rate))
    elif (client := find_agent(loaded)) is not None:
        target = AgentImport(client)
    else:
        target = DirectImport(loaded.settings, read_sources(loaded.file, os.environ))
    reporter = make_reporter(f"importing {name}", as_json=as_json, quiet=quiet)
    began = time.monotonic()
    with closing(reporter), saying_what_goes_on(lambda: target.goes_on):
        done = target.import_from(
            source,
            wanted,
            reporter,
            spelling=spelling,
            include=include,
            exclude=exclude,
            copy=copy,
            force=force,
        )
        done["seconds"] = round(time.monotonic() - began, 3)
        reporter.done(done, _summary(name, done))
    if not as_json:
        emit(f"{name}@blake3:{done['digest']}")


def _summary(ref: str, done: Event) -> str:
    size, read = int(done.get("bytes", 0)), int(done.get("bytes_read", 0))
    seconds = format_duration(float(done["seconds"]))
    return (
        f"imported {ref}: {format_bytes(size)}, {format_bytes(read)} of it read now, in {seconds}"
    )
