"""`verify`: prove every byte of a model again."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import FILE, Command, json_option, quiet_option
from p2pcache.cli.support.progress import Event, follow, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.errors import IntegrityError, NotAllowed
from p2pcache.ids import Ref, as_written
from p2pcache.io.http.client import Json

if TYPE_CHECKING:
    from p2pcache.io.signatures.library import Keys


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--signature", is_flag=True, help="Also check who signed it: one of --key, or --identity."
)
@click.option(
    "--key", "keys", metavar="FILE", type=FILE, multiple=True,
    help="A public key, or the certificates of authorities, in PEM; repeatable.",
)  # fmt: skip
@click.option(
    "--identity", metavar="NAME", help="Who signed it without a key, as the --issuer names him."
)
@click.option("--issuer", metavar="URL", help="The identity provider that --identity is known to.")
@json_option
@quiet_option
@client_options("origin", "cache_dir", "sigstore_trust_config")
def verify(
    ref: str, signature: bool, keys: tuple[str, ...], identity: str | None, issuer: str | None,
    as_json: bool, quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Prove every byte of a model again.

    Reads all files of the model in the cache and compares each chunk with its digest. Bad chunks
    are dropped, and fetched again by the next pull. The exit code is 6 unless all is there and good,
    and 4 if nobody signed it who should have.

    Examples:
      p2pcache verify team/llama:v3
      p2pcache verify team/llama:v3 --signature --key team.pub
      p2pcache verify team/llama:v3 --signature --identity ci@acme.org --issuer https://login.acme.org
    """
    wanted, name = Ref.parse(ref), as_written(ref)
    if bool(identity) != bool(issuer):
        raise click.UsageError("--identity and --issuer go together")
    if signature != bool(keys or identity):
        raise click.UsageError("--signature goes with --key FILE, or --identity and --issuer")
    allowed = _allowed(keys, identity, issuer, loaded) if signature else None
    with cache_or_agent(loaded) as cache:
        reporter = make_reporter(f"verifying {name}", as_json=as_json, quiet=quiet)
        with saying_what_goes_on(
            lambda: "chunks that were found bad are dropped; the rest is unproved"
        ):
            done = follow(cache.verify(str(wanted)), reporter)
        bad, missing = int(done.get("chunks_bad", 0)), int(done.get("chunks_missing", 0))
        if not bad + missing:
            if allowed is not None:
                pinned = f"{wanted.short}@blake3:{done['digest']}"
                _need_signature(pinned, cache.signatures(pinned), allowed)
            several = "one of " if len(keys) + bool(identity) > 1 else ""
            signed = f"; signed by {several}{allowed.label}" if allowed is not None else ""
            reporter.done(done, _summary(name, done) + signed)
            return
        if as_json:
            reporter.update(done)
    found = [f"{bad} bad (dropped)"] if bad else []
    # An agent or a command that opened the model before may have found its bytes changed.
    found += [f"{missing} missing (or changed on disk, and dropped before)"] if missing else []
    raise IntegrityError(
        f"{name}: of {done.get('chunks')} chunks {' and '.join(found)}; pull it to mend it"
    )


def _allowed(
    files: tuple[str, ...], identity: str | None, issuer: str | None, loaded: Loaded
) -> "Keys":
    from p2pcache.io.signatures.keyless import Identity
    from p2pcache.io.signatures.library import Keys

    who: list[Path | Identity] = [Path(file) for file in files]
    if identity and issuer:
        who.append(Identity(identity, issuer))
    trust = loaded.settings.sigstore_trust_config
    return Keys(who, Path(trust) if trust else None)


def _need_signature(ref: str, stored: Json, keys: "Keys") -> None:
    bundles = [str(one) for one in stored.get("signatures", [])]
    if not any(keys.allow(bundle, str(stored["digest"])) for bundle in bundles):
        have = f"{counted(len(bundles), 'signature')} of others" if bundles else "no signature"
        raise NotAllowed(f"{ref} has {have}; expected one of {keys.label}")


def _summary(ref: str, done: Event) -> str:
    size, seconds = format_bytes(done["bytes"]), format_duration(float(done.get("seconds", 0)))
    return f"verified {ref}: {size} in {done.get('chunks')} chunks, all good, {seconds}"
