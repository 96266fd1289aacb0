"""Cancelling: a pull or a warm ends on purpose, for all who wait for it."""

from typing import NamedTuple

from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.jobs.warms import Warms
from p2pcache.errors import Cancelled, NotFound
from p2pcache.ids import Ref


class Ended(NamedTuple):
    """A download that was cancelled: what of it lies here and stays, and how many clients it had."""

    digest: str  # "" of a warm that hadn't begun again after a start
    bytes_done: int
    bytes_total: int
    clients: int


async def cancel(ref: Ref, downloads: DownloadManager, warms: Warms) -> Ended:
    """End the download that a ref names, and a warm that would begin it again.

    Raises:
        NotFound: none runs.
    """
    forgotten = await warms.forget_pending(ref)
    download = await downloads.running_as(ref)
    if download is None and forgotten:
        return Ended("", 0, 0, 0)
    if download is None:
        raise NotFound(f"no pull of {ref} runs here; `p2pcache ps` lists those that do")
    clients = download.clients
    await downloads.end(download, Cancelled(f"{ref} was cancelled; pull it again: it resumes"))
    swarm = download.swarm
    return Ended(swarm.digest, swarm.bytes_done, download.bytes_total, clients)
