"""`push`: store a directory as a model."""

import os
import shlex
import time
from contextlib import closing
from pathlib import Path

import click

from p2pcache.cli.standalone.signing import certificate_options, keyless_option, signer_of
from p2pcache.cli.standalone.upload import AgentPush, DirectPush, PushTarget
from p2pcache.cli.support.background import Watched
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import DIR, FILE, Command, json_option, quiet_option
from p2pcache.cli.support.output import emit
from p2pcache.cli.support.progress import (
    WAITING_S,
    Event,
    Reporter,
    hashing_progress,
    make_reporter,
)
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, as_written, is_ref, spelled
from p2pcache.io.files.completeness import signs_of_a_part
from p2pcache.io.files.indexing import find_files
from p2pcache.io.files.push_upload import indexed

MOST_WARNINGS = 10  # a checkout without Git LFS has a pointer for each large file


@click.command(cls=Command)
@click.argument("directory", metavar="DIRECTORY", type=DIR)
@click.argument("ref", type=REF)
@click.option(
    "--force", is_flag=True, help="Take the tag even if somebody else moves it meanwhile."
)
@click.option(
    "--repair", is_flag=True, help="Upload also what the storage has: its bytes were found wrong."
)
@click.option(
    "--strict", is_flag=True, help="Refuse a directory that looks like a part of a model."
)
@click.option(
    "--sha256",
    is_flag=True,
    help="Record each file's SHA-256, by which hubs and registries know it.",
)
@click.option(
    "--sign", "key", metavar="KEY", type=FILE,
    help="Sign the model with this private key (PEM); implies --sha256.",
)  # fmt: skip
@certificate_options
@keyless_option
@json_option
@quiet_option
@client_options("origin", "sigstore_trust_config", "identity_token_file")
def push(
    directory: str,
    ref: str,
    force: bool,
    repair: bool,
    strict: bool,
    sha256: bool,
    key: str | None,
    certificate: str | None,
    chain: tuple[str, ...],
    keyless: bool,
    as_json: bool,
    quiet: bool,
    loaded: Loaded,
) -> None:
    """Store a directory as a model.

    Hashes the files, uploads what the storage doesn't have yet, and moves the tag last, so that
    nobody ever sees half a model. Prints the model's digest ref on stdout. Links to regular files
    are followed (a Hugging Face snapshot is made of them); other kinds of file are refused, and
    .git is left out, as is what "hf download" keeps in .cache/huggingface.
    Shards that an index names and that aren't there, parts of downloads and pointers of Git LFS
    are warned of, and refused with --strict. With --sha256 the same files have another digest.
    With no agent on this machine, or with --origin, it uploads straight to the storage.

    Examples:
      p2pcache push ./llama team/llama:v3
      p2pcache push ./llama llama --origin s3://models
      p2pcache push ./llama team/llama:v3 --sign team.key
      p2pcache push ./llama team/llama:v3 --keyless --identity-token-file token
      p2pcache push --repair ./llama team/llama:v3
      p2pcache pull "$(p2pcache push -q ./llama llama)"
    """
    _check_order(directory, ref)
    wanted = Ref.parse(ref)
    spelling, name = spelled(ref), as_written(ref)
    if not directory.strip():  # an unset variable; to Path it means the current directory
        raise UsageError("the directory is empty text; say '.' for this one")
    if wanted.digest:
        raise UsageError(f"push gives a tag its digest; leave the digest out: {wanted.short}")
    if certificate and not key:
        raise click.UsageError("--certificate goes with --sign")
    signs = key or keyless
    signer = signer_of(key, certificate, chain, keyless=keyless, loaded=loaded) if signs else None
    client = find_agent(loaded)
    target: PushTarget = AgentPush(client) if client else DirectPush(loaded.settings.origin)
    reporter = make_reporter(f"pushing {name}", as_json=as_json, quiet=quiet)
    began = time.monotonic()
    with closing(reporter), saying_what_goes_on(lambda: target.goes_on):
        _check(target, wanted, reporter)
        _look_for_parts(Path(directory), reporter, strict=strict)
        hashed = sha256 or signer is not None
        found = indexed(Path(directory), hashing_progress(reporter), sha256=hashed)
        if signer is not None:
            from p2pcache.io.signatures.library import sign

            files = {file.path: file.sha256 for file in found.layout.manifest.files}
            bundle = sign(found.layout.digest, files, signer)
            target.store_signature(wanted, found.layout.digest, bundle)
        done = target.push(wanted, found, reporter, spelling=spelling, force=force, repair=repair)
        done["seconds"] = round(time.monotonic() - began, 3)
        reporter.done(done, _summary(name, done))
    if not as_json:
        emit(f"{name}@blake3:{found.layout.digest}")


def _check_order(directory: str, ref: str) -> None:
    """Refuse a ref before its directory. Most paths are no refs, so look before the ref is parsed.

    Raises:
        UsageError: the directory stands in the ref's place.
    """
    there = os.path.isdir(ref)  # noqa: PTH112 - never raises
    path = there or ref.startswith((".", "/"))  # no ref begins so
    if path and is_ref(directory) and not os.path.exists(directory):  # noqa: PTH110 - never raises
        missing = "" if there else f" (and there is no directory {ref} yet)"
        right = shlex.join([ref, directory])
        raise UsageError(f"the directory comes first: p2pcache push {right}{missing}")


def _look_for_parts(directory: Path, reporter: Reporter, *, strict: bool) -> None:
    """Warn of each sign that the directory isn't a whole model, before hours of hashing.

    Raises:
        UsageError: there is one, and `strict`.
    """
    signs = signs_of_a_part(find_files(directory))
    if signs and strict:
        more = f" ({len(signs) - 1} more such signs)" if len(signs) > 1 else ""
        raise UsageError(f"{signs[0]}{more}; without --strict it is pushed all the same")
    for sign in signs[:MOST_WARNINGS]:
        reporter.update({"event": "warning", "message": sign})
    if len(signs) > MOST_WARNINGS:
        rest = f"{len(signs) - MOST_WARNINGS} more such signs"
        reporter.update({"event": "warning", "message": rest})


def _check(target: PushTarget, ref: Ref, reporter: Reporter) -> None:
    """Check that the target answers, and report every few seconds that we wait for it.

    A push fails here rather than after an hour of hashing.
    """
    work = Watched[None](lambda _: target.check(ref))
    began = reported = time.monotonic()
    for _ in work.progress():
        now = time.monotonic()
        if now - reported >= WAITING_S:
            reported = now
            waiting = {"event": "waiting", "for": target.place, "seconds": round(now - began, 1)}
            known = {"trouble": trouble} if (trouble := target.trouble) else {}
            reporter.update({**waiting, **known})
    work.result()


def _summary(ref: str, done: Event) -> str:
    size, sent = int(done.get("bytes", 0)), int(done.get("bytes_uploaded", 0))
    seconds = format_duration(float(done["seconds"]))
    if sent or not size:
        return f"pushed {ref}: {format_bytes(size)}, {format_bytes(sent)} of it new, in {seconds}"
    generation = done.get("generation")
    return f"{ref}: nothing to upload, the storage has all {format_bytes(size)} (generation {generation})"
