"""What is special of S3 as a source: its own endpoint and profile, checksums, markers of folders."""

import hashlib
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from loadtest.kit.seaweed import Seaweed
from p2pcache.errors import NotAllowed
from p2pcache.io.sources.bucket import _sha256_of
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.test_conformance import read


def test_a_source_has_an_endpoint_and_a_profile_of_its_own(
    s3_env: pytest.MonkeyPatch, seaweed: Seaweed, tmp_path: Path
) -> None:
    url = seaweed.url(prefix="own")
    bucket = url.removeprefix("s3://").partition("/")[0]
    made = botocore.session.Session().create_client("s3", region_name="us-east-1")
    for key, body in (
        ("own/m/", b""),
        ("own/m/a.bin", b"a" * 1000),
        ("own/m/sub/", b""),
        ("own/other", b"x"),
    ):
        made.put_object(Bucket=bucket, Key=key, Body=body)
    made.close()
    env = seaweed.env()
    (tmp_path / "credentials").write_text(
        f"[lake]\naws_access_key_id = {env['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {env['AWS_SECRET_ACCESS_KEY']}\n"
    )
    for name in env:
        s3_env.delenv(name, raising=False)
    s3_env.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    s3_env.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    settings = SourceSettings(url=url, endpoint=env["AWS_ENDPOINT_URL"], profile="lake")
    source = Source("s", settings)
    (file,) = source.files("m")  # markers of folders are no files
    assert (file.path, file.key) == ("a.bin", "m/a.bin")
    assert read(source, file, 10, 20) == b"a" * 20
    (single,) = source.files("m/a.bin")
    assert single == file
    source.close()
    other = Source("s", SourceSettings(url=url, endpoint=env["AWS_ENDPOINT_URL"]))
    with pytest.raises(NotAllowed, match="no S3 credentials"):
        other.files("m")
    other.close()


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ({"ChecksumSHA256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="}, True),
        (
            {
                "ChecksumSHA256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
                "ChecksumType": "FULL_OBJECT",
            },
            True,
        ),
        (
            {
                "ChecksumSHA256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
                "ChecksumType": "COMPOSITE",
            },
            False,
        ),
        ({"ChecksumSHA256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=-2"}, False),
        ({"ChecksumSHA256": "?"}, False),
        ({}, False),
    ],
)
def test_a_checksum_counts_if_it_is_of_the_whole_object(head: Any, known: bool) -> None:
    assert _sha256_of(head) == (hashlib.sha256(b"hello").digest() if known else b"")
