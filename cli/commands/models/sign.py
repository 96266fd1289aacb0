"""`sign`: let a key or an identity vouch for a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from p2pcache.cli.commands.models.pull import directory_of, pull_events
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.standalone.signing import certificate_options, keyless_option, signer_of
from p2pcache.cli.support.client_options import Loaded, PullOptions, client_options
from p2pcache.cli.support.options import FILE, Command, quiet_option
from p2pcache.cli.support.output import emit
from p2pcache.cli.support.progress import follow, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.errors import IntegrityError, NotFound
from p2pcache.ids import Ref, as_written

if TYPE_CHECKING:
    from p2pcache.io.signatures.keyless import Keyless
    from p2pcache.io.signatures.library import Signer


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--key", metavar="FILE", type=FILE,
    help="The private key: PEM, on the curve P-256, P-384 or P-521, without a password.",
)  # fmt: skip
@click.option(
    "--signature",
    metavar="FILE",
    type=FILE,
    help="Sign nothing: store what `show --signature` printed elsewhere. No model is needed here.",
)
@keyless_option
@certificate_options
@quiet_option
@client_options(
    "origin", "tracker", "cache_dir", "linger_s", "sigstore_trust_config", "identity_token_file"
)
def sign(
    ref: str, key: str | None, signature: str | None, keyless: bool, certificate: str | None,
    chain: tuple[str, ...], quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Sign a model, and store the signature beside its manifest.

    The model is pulled first: what is signed is what its files are, and the digest that covers every
    chunk of them. No tag moves. A model may have several signatures. Prints the model's digest ref.
    To sign what you push, use `p2pcache push --sign`.

    Examples:
      openssl ecparam -name prime256v1 -genkey -noout -out team.key
      p2pcache sign team/llama:v3 --key team.key
      p2pcache sign team/llama:v3 --keyless --identity-token-file token
      p2pcache sign team/llama@blake3:HEX --signature llama.sig
    """
    wanted = Ref.parse(ref)
    if signature is None:
        signer = signer_of(key, certificate, chain, keyless=keyless, loaded=loaded)
        digest = _sign(wanted, signer, quiet, loaded)
    elif key or keyless or certificate or chain:
        raise click.UsageError("--signature stores what was signed elsewhere; it takes no signer")
    else:
        digest = _store(wanted, Path(signature), loaded)
    emit(f"{as_written(ref).partition('@')[0]}@blake3:{digest}")


def _store(wanted: Ref, file: Path, loaded: Loaded) -> str:
    """Store signatures that were made elsewhere; returns the digest that they are of."""
    from p2pcache.io.signatures.in_origin import MAX_BYTES, check_subject

    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no signature file {file}") from None
    bundles = data.decode("ascii", "replace").splitlines()
    if len(data) > MAX_BYTES or not bundles:
        raise click.UsageError(f"{file} isn't what `p2pcache show --signature` prints")
    with cache_or_agent(loaded) as cache:
        digest = wanted.digest or str(cache.model(str(wanted))["digest"])
        for bundle in bundles:
            check_subject(bundle, digest)
        for bundle in reversed(bundles):  # the latest comes first, and is to be the latest again
            cache.store_signature(str(wanted), digest, bundle)
    return digest


def _sign(wanted: Ref, signer: "Signer | Keyless", quiet: bool, loaded: Loaded) -> str:
    """Sign what the model's files are; returns its digest."""
    reporter = make_reporter(f"pulling {wanted}", as_json=False, quiet=quiet)
    options = PullOptions(False, (), (), False, "", 0.0, 0)
    with pull_events(loaded, wanted, options, quiet=quiet) as (events, _):
        done = follow(events, reporter)
    digest = str(done["digest"])
    found = _sha256(directory_of(loaded, done))
    with cache_or_agent(loaded) as cache:
        pinned = f"{wanted.short}@blake3:{digest}"
        for file in cache.model(pinned)["manifest"]["files"]:
            said = str(file.get("sha256", "")).removeprefix("sha256:")
            if found.get(file["path"], b"").hex() != (said or found.get(file["path"], b"").hex()):
                raise IntegrityError(
                    f"{file['path']} isn't what its SHA-256 in the manifest says: don't sign this model, push it again"
                )
        from p2pcache.io.signatures.library import sign as sign_with

        cache.store_signature(str(wanted), digest, sign_with(digest, found, signer))
    return digest


def _sha256(tree: Path) -> dict[str, bytes]:
    """The SHA-256 of each file of a published tree."""
    from p2pcache.io.signatures.library import sha256_of

    if not tree.is_dir():
        raise NotFound(
            f"the model's directory {tree} isn't visible here; set P2PCACHE_MODELS_DIR to where it is mounted"
        )
    return {
        str(path.relative_to(tree)): sha256_of(path) for path in tree.rglob("*") if path.is_file()
    }
