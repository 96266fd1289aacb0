"""The two targets of a push: an agent, whose cache takes the model too, or the storage itself."""

import contextlib
import os
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from p2pcache.cli.support.background import Watched
from p2pcache.cli.support.progress import Event, Reporter
from p2pcache.errors import NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.push_upload import Indexed, Sending
from p2pcache.io.http.client import AgentClient
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo, PushResult
from p2pcache.io.signatures.in_origin import add_signature


class PushTarget(Protocol):
    """Where a push goes."""

    @property
    def place(self) -> str:
        """The name of what must answer, in words for people."""

    @property
    def trouble(self) -> str:
        """The reason why storage failed the last call; "" if it didn't, or if we don't know."""

    @property
    def goes_on(self) -> str:
        """What becomes of a push whose command is interrupted now, in words for people."""

    def check(self, ref: Ref, /) -> None:
        """Ask the target for a sign of life.

        Raises:
            P2PCacheError: it doesn't answer, or refuses us.
        """

    def store_signature(self, ref: Ref, digest: str, bundle: str) -> None:
        """Store a model's signature, before its tag moves."""

    def push(
        self,
        ref: Ref,
        indexed: Indexed,
        reporter: Reporter,
        *,
        spelling: str,
        force: bool,
        repair: bool,
    ) -> Event:
        """Upload the blobs, move the tag, and return the `done` event.

        Args:
            ref: the tag that moves.
            spelling: how its name is written.
            indexed: the hashed files.
            reporter: gets the progress events.
            force: move the tag even if somebody else moves it meanwhile.
            repair: upload also blobs that the storage has.
        """


class AgentPush:
    """A push through an agent: its cache takes the model, then it uploads the model and seeds it."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._uploading = False

    @property
    def place(self) -> str:
        """The name of what must answer."""
        return f"the agent at {self._client.address}"

    @property
    def trouble(self) -> str:
        """Always "": the agent's events carry the reason."""
        return ""

    @property
    def goes_on(self) -> str:
        """Depends on whether the agent has all of the model already."""
        if self._uploading:
            return "the agent goes on with the upload and then moves the tag; p2pcache history says how it ended"
        return "no tag was moved; what the agent was sent stays with it: push again to resume"

    def check(self, _ref: Ref, /) -> None:
        """Ask the agent for its status."""
        self._client.status()

    def store_signature(self, ref: Ref, digest: str, bundle: str) -> None:
        """Hand it to the agent."""
        self._client.store_signature(ref.short, digest, bundle)

    def push(
        self,
        ref: Ref,
        indexed: Indexed,
        reporter: Reporter,
        *,
        spelling: str,
        force: bool,
        repair: bool,
    ) -> Event:
        """Send the blobs that its cache lacks, then let it upload."""
        sending = Sending(self._client, indexed)
        total = sending.bytes
        watched = Watched[None](lambda report: sending.send_blobs(lambda sent: report(sent, total)))
        for sent, _ in watched.progress():
            reporter.update(
                {"event": "progress", "phase": "send", "bytes_done": sent, "bytes_total": total}
            )
        watched.result()
        digest = indexed.layout.digest
        how = {"force": force}
        if repair:  # an agent of the release before doesn't know this field
            how["repair"] = True
        self._uploading = True
        with closing(self._client.push(f"{spelling}:{ref.tag}", digest, **how)) as events:
            for event in events:
                if event["event"] == "done":
                    return event
                reporter.update(event | {"phase": "upload"})
        raise P2PCacheError("the agent ended without a last event")


class DirectPush:
    """A push without an agent: from the files to the storage."""

    def __init__(self, url: str) -> None:
        """Open the storage.

        Raises:
            UsageError: no URL, or not one of a storage.
            NotFound: a directory that doesn't exist.
        """
        if not url:
            raise UsageError(
                "no agent here, and nowhere to push to: set P2PCACHE_ORIGIN (or --origin) to the storage, "
                "for example s3://models, or start 'p2pcache agent'"
            )
        self._repo = OriginRepo(open_origin(url))

    @property
    def place(self) -> str:
        """The name of what must answer."""
        return f"storage {self._repo.url}"

    @property
    def trouble(self) -> str:
        """The reason why storage failed the last call; "" if it didn't."""
        return str(self._repo.trouble or "")

    @property
    def goes_on(self) -> str:
        """Nothing."""
        return "no tag was moved; files that are stored stay there: push again to resume"

    def check(self, ref: Ref, /) -> None:
        """Read the tag, which needs good credentials."""
        with contextlib.suppress(
            NotFound
        ):  # usually a new tag; a missing bucket fails the push soon
            self._repo.get_tag(ref)

    def store_signature(self, ref: Ref, digest: str, bundle: str) -> None:
        """Write it to the storage."""
        add_signature(self._repo, ref.namespace, digest, bundle)

    def push(
        self,
        ref: Ref,
        indexed: Indexed,
        reporter: Reporter,
        *,
        spelling: str,
        force: bool,
        repair: bool,
    ) -> Event:
        """Upload the blobs that the storage lacks, then move the tag."""
        layout = indexed.layout
        total = sum(blob.size for blob in layout.blobs)
        paths = {number: indexed.sources[path] for path, number in layout.blob_of_file.items()}

        def open_blob(number: int) -> int:
            with disk_errors(str(paths[number])):
                return os.open(paths[number], os.O_RDONLY | os.O_CLOEXEC)

        def work(report: Callable[[int, int], None]) -> PushResult:
            done = 0

            def count(size: int) -> None:
                nonlocal done
                done += size
                report(done, total)

            return self._repo.push(
                layout,
                ref,
                open_blob=open_blob,
                spelling=spelling,
                force=force,
                repair=repair,
                on_bytes=count,
            )

        watched = Watched(work)
        for done, _ in watched.progress():
            event: Event = {"event": "progress", "phase": "upload", "bytes_done": done}
            known = {"trouble": trouble} if (trouble := self.trouble) else {}
            reporter.update({**event, "bytes_total": total, **known})
        result = watched.result()
        return {
            "event": "done", "ref": ref.short, "digest": result.digest, "bytes": layout.manifest.size_bytes,
            "bytes_uploaded": result.bytes_uploaded, "generation": result.generation,
        }  # fmt: skip
