"""`python -m loadtest.bench.transfer push|pull FOLDER URL`: boto3's transfer manager over all files at once.

The settings are those that boto3 has by itself, in one manager, as a program would use it that has many files.
"""

import sys
from pathlib import Path
from typing import Any


def push(manager: Any, folder: Path, bucket: str, prefix: str) -> list[Any]:
    """Begin to upload every file of a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        manager.upload(str(path), bucket, f"{prefix}/{path.relative_to(folder)}") for path in files
    ]


def pull(client: Any, manager: Any, folder: Path, bucket: str, prefix: str) -> list[Any]:
    """Begin to download every object below a prefix."""
    begun = []
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=f"{prefix}/"
    ):
        for found in page.get("Contents", ()):
            path = folder / found["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            begun.append(manager.download(bucket, found["Key"], str(path)))
    return begun


def main(what: str, folder: Path, url: str) -> None:
    """Copy, and wait until all is there."""
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    with create_transfer_manager(client, TransferConfig()) as manager:
        if what == "push":
            begun = push(manager, folder, bucket, prefix)
        else:
            begun = pull(client, manager, folder, bucket, prefix)
        for transfer in begun:
            transfer.result()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
