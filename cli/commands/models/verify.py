"""`verify`: prove every byte of a model again."""

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import Command, json_option, quiet_option
from p2pcache.cli.support.progress import Event, follow, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import IntegrityError
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("ref", type=REF)
@json_option
@quiet_option
@client_options("cache_dir")
def verify(ref: str, as_json: bool, quiet: bool, loaded: Loaded) -> None:
    """Prove every byte of a model again.

    Reads all files of the model in the cache and compares each chunk with its digest. Bad chunks
    are dropped, and fetched again by the next pull. The exit code is 6 unless all is there and good.

    Examples:
      p2pcache verify team/llama:v3
    """
    wanted = Ref.parse(ref)
    with cache_or_agent(loaded) as client:
        reporter = make_reporter(f"verifying {wanted}", as_json=as_json, quiet=quiet)
        with saying_what_goes_on(
            lambda: "chunks that were found bad are dropped; the rest is unproved"
        ):
            done = follow(client.verify(str(wanted)), reporter)
        bad, missing = int(done.get("chunks_bad", 0)), int(done.get("chunks_missing", 0))
        if not bad + missing:
            reporter.done(done, _summary(wanted, done))
            return
        if as_json:
            reporter.update(done)
    found = [f"{bad} bad (dropped)"] if bad else []
    found += [f"{missing} missing"] if missing else []
    raise IntegrityError(
        f"{wanted}: of {done.get('chunks')} chunks {' and '.join(found)}; pull it to mend it"
    )


def _summary(ref: Ref, done: Event) -> str:
    size, seconds = format_bytes(done["bytes"]), format_duration(float(done.get("seconds", 0)))
    return f"verified {ref}: {size} in {done.get('chunks')} chunks, all good, {seconds}"
