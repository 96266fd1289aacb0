"""Run inside a pod: N clients that ask for one model at the same moment, through the client socket."""

import json
import sys
import threading

from p2pcache.errors import P2PCacheError
from p2pcache.io.http.client import AgentClient


def main(address: str, ref: str, count: int) -> None:
    """Print what each of them got: its last event, or its error, as one JSON list."""
    start = threading.Barrier(count)
    got: list[dict[str, object]] = []

    def pull() -> None:
        start.wait()
        try:
            *_, last = AgentClient(address).pull(ref)
        except P2PCacheError as error:
            last = {"event": "error", "message": f"{type(error).__name__}: {error}"}
        got.append(last)

    threads = [threading.Thread(target=pull) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(got))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
