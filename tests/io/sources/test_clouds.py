"""Stores of clouds that lie, redirect or refuse, and who we say that we are there."""

import base64
import hashlib
import hmac
import importlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.sax.saxutils import escape

import pytest

from loadtest.kit import clouds
from p2pcache.errors import NotAllowed, OriginChanged, P2PCacheError, UsageError
from p2pcache.io import redaction
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.guarded_connections import site_of
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.kit import Answer, Web, serving
from tests.io.sources.test_conformance import read

KEY = base64.b64encode(b"key of the account" * 2).decode()
Entry = tuple[str, object]  # name and size


class Store(NamedTuple):
    """How a store of one kind is asked, and how it answers."""

    url: str
    listing: Callable[[list[Entry], str], Answer]  # entries, and what names the next page
    asks_for_list: Callable[[str], bool]
    validator: str
    tag: dict[str, str]  # headers of an object with that validator


def _google(entries: list[Entry], following: str) -> Answer:
    items = [{"name": name, "size": str(size), "generation": "7"} for name, size in entries]
    page = {"items": items, **({"nextPageToken": following} if following else {})}
    return 200, {"Content-Type": "application/json"}, json.dumps(page).encode()


def _azure(entries: list[Entry], following: str) -> Answer:
    blobs = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>{size}</Content-Length><Etag>0x7</Etag>"
        "</Properties></Blob>"
        for name, size in entries
    )
    text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _amazon(entries: list[Entry], following: str) -> Answer:
    objects = "".join(
        f'<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>"7"</ETag></Contents>'
        for name, size in entries
    )
    more = (
        f"<IsTruncated>true</IsTruncated><NextContinuationToken>{following}</NextContinuationToken>"
    )
    text = f"<ListBucketResult>{objects}{more if following else ''}</ListBucketResult>"
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _queried(name: str) -> Callable[[str], bool]:
    return lambda path: name in parse_qs(urlsplit(path).query)


STORES = {
    "gs": Store("gs://lake", _google, _queried("fields"), "generation:7", {"X-Goog-Generation": "7"}),
    "az": Store("az://lake", _azure, _queried("comp"), 'etag:"0x7"', {"ETag": '"0x7"'}),
    "s3": Store("s3://lake", _amazon, _queried("list-type"), 'etag:"7"', {"ETag": '"7"'}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _env(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_env.setenv("HOME", str(tmp_path))  # no credentials of gcloud, az or netrc
    clean_env.setenv("NO_GCE_CHECK", "true")
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY"):
        clean_env.setenv(f"AZURE_STORAGE_{name}", {"ACCOUNT_KEY": KEY}.get(name, "acme"))
    clean_env.setenv("AWS_ACCESS_KEY_ID", "AKIA0000000000000000")
    clean_env.setenv("AWS_SECRET_ACCESS_KEY", "s" * 40)
    clean_env.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> Store:
    """Each kind of store."""
    return STORES[request.param]


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as one:
        yield one


def source_of(url: str, endpoint: str, **more: object) -> Source:
    source = Source("s", SourceSettings(url=url, endpoint=endpoint, **more))  # type: ignore[arg-type]
    source._policy.retry_for_s = 0.0
    return source


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_store_leads_into_this_host(store: Store, web: Web, status: int) -> None:
    with serving(Web()) as inside:
        inside.files["/secret"] = b"s" * 1000
        for place in (f"{inside.url}/secret", "http://169.254.169.254/latest/meta-data/"):
            more = {"Location": place, "x-amz-bucket-region": "eu-west-1"}
            web.spoil = lambda _path, _headers, more=more: (status, more, b"")  # type: ignore[misc]
            source = source_of(store.url, web.url)
            with pytest.raises(P2PCacheError):
                source.files("m")
            with pytest.raises(P2PCacheError):
                read(source, SourceFile("a", "m/a", 1000, store.validator))
            source.close()
        assert not inside.seen


@pytest.mark.parametrize(
    "entry",
    [
        ("m/../x", 1), ("m//etc/passwd", 1), ("m/a\x7fb", 1), ("m/" + "x" * 2000, 1), ("m/b", -1), ("m/b", "many"),
        ("m/config.json", 2), ("m/" + "d/" * 600 + "x", 1), ("m/..", 1), ("m/a\\b", 1), ("m/./b", 1),
    ],
)  # fmt: skip
def test_names_and_sizes_that_cannot_be(store: Store, web: Web, entry: Entry) -> None:
    listed = store.listing([("m/config.json", 2), entry], "")
    web.spoil = lambda path, _: listed if store.asks_for_list(path) else (404, {}, b"")
    source = source_of(store.url, web.url)
    with pytest.raises(P2PCacheError) as caught:
        source.files("m")
    assert caught.value.exit_code in (2, 6), caught.value
    source.close()


def test_a_name_beside_the_prefix_is_none_of_the_models(store: Store, web: Web) -> None:
    web.spoil = lambda path, _: (
        store.listing([("other/secret", 9)], "") if store.asks_for_list(path) else None
    )
    source = source_of(store.url + "/lake", web.url)
    found = source.files("m")
    # Whatever it is called, its key lies below the prefix that the operator named.
    assert all(file.key.startswith("m/") for file in found)
    source.close()


def test_lists_that_do_not_end(store: Store, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.io.sources.base.MAX_FILES", 1000)
    pages = iter(range(1_000_000))

    def page(path: str, _: dict[str, str]) -> Answer | None:
        number = next(pages)
        return store.listing([(f"m/f{number}-{n}", 1) for n in range(150)], f"t{number}")

    web.spoil = page
    source = source_of(store.url, web.url)
    with pytest.raises(UsageError, match="more than 1,000 files"):
        source.files("m")
    assert next(pages) <= 9
    source.close()


@pytest.mark.parametrize("body", [b"", b"[" * 2_000_000, b"<a>" * 1000, b"{}[", b"\xff", b"hello"])
def test_lists_that_are_none(store: Store, web: Web, body: bytes) -> None:
    web.spoil = lambda path, _: (200, {}, body) if store.asks_for_list(path) else None
    source = source_of(store.url, web.url)
    with pytest.raises(P2PCacheError):
        source.files("m")
    source.close()


def test_bytes_that_are_not_those_that_were_asked_for(store: Store, web: Web) -> None:
    whole = b"a" * 1000
    source = source_of(store.url, web.url)
    file = SourceFile("a", "m/a", 1000, store.validator)
    other = {name: value.replace("7", "8") for name, value in store.tag.items()}
    for answer in (
        (200, store.tag, whole),
        (206, {**store.tag, "Content-Range": "bytes 0-9/1000"}, whole[:9]),
        (206, {**other, "Content-Range": "bytes 10-19/1000"}, whole[:10]),
        (206, {"Content-Range": "bytes 10-19/1000"}, whole[:10]),
        (412, {}, b""), (403, {}, b"<Error><Code>AccessDenied</Code></Error>"), (500, {}, b""), (404, {}, b""),
    ):  # fmt: skip
        web.spoil = lambda _path, _headers, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(P2PCacheError):
            read(source, file, 10, 10)
    source.close()


def test_a_body_that_stops_is_gone_on_with(store: Store, web: Web) -> None:
    """A server that breaks off is asked for the rest, and not for more."""
    data, asked = bytes(range(250)) * 4, []

    def half(_: str, headers: dict[str, str]) -> Answer:
        asked.append(headers["range"])
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        more = {**store.tag, "Content-Range": f"bytes {first}-{last}/1000"}
        body = data[first : last + 1]
        if len(asked) == 1:
            more["Content-Length"], body = str(len(body)), body[:400]
            more["Connection"] = "close"
        return 206, more, body

    web.spoil = half
    source = Source("s", SourceSettings(url=store.url, endpoint=web.url))
    assert read(source, SourceFile("a", "m/a", 1000, store.validator)) == data
    assert asked == ["bytes=0-999", "bytes=400-999"]
    source.close()


# -- Google ------------------------------------------------------------------------------------------


class Credentials:
    """What google-auth finds."""

    def __init__(self) -> None:
        self.token, self.valid, self.quota_project_id, self.refreshed = "", False, "payer", 0

    def refresh(self, _: object) -> None:
        self.refreshed += 1
        self.token, self.valid = f"ya29.token-{self.refreshed}", True


@pytest.fixture
def own_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on loopback counts as one with TLS."""
    for name in ("google", "guarded_http"):
        module: Any = importlib.import_module(f"p2pcache.io.sources.{name}")
        monkeypatch.setattr(module, "site_of", lambda url: site_of(url)._replace(scheme="https"))


def test_googles_token_goes_to_google_alone(
    web: Web, monkeypatch: pytest.MonkeyPatch, own_site: None
) -> None:
    found = Credentials()
    auth = importlib.import_module("google.auth")
    monkeypatch.setattr(auth, "default", lambda **_: (found, "project"))
    with serving(Web()) as elsewhere:
        elsewhere.files["/b"] = b"a" * 1000
        listed = _google([("m/a", 1000)], "")
        web.spoil = lambda path, _: (
            listed if _queried("fields")(path) else (302, {"Location": f"{elsewhere.url}/b"}, b"")
        )
        source = source_of("gs://lake", web.url, private=True)
        (file,) = source.files("m")
        with pytest.raises(OriginChanged):  # no generation there
            read(source, file)
        assert [headers["authorization"] for _, _, headers in web.seen] == [
            "Bearer ya29.token-1"
        ] * 2
        assert web.seen[0][2]["x-goog-user-project"] == "payer"
        assert elsewhere.seen
        assert all("authorization" not in headers for _, _, headers in elsewhere.seen)
        found.valid = False
        source.files("m")
        assert web.seen[-1][2]["authorization"] == "Bearer ya29.token-2"
    assert "ya29" not in redaction.hide("sent ya29.token-1 and ya29.token-2")
    source.close()


def test_a_service_account_of_google(
    web: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_site: None
) -> None:
    """The real google-auth signs for a token, and says so in its own words when it gets none."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": private.decode(),
        "client_email": "reader@p.iam.gserviceaccount.com", "token_uri": f"{web.url}/token",
    }  # fmt: skip
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    token = {"access_token": "ya29.of-a-real-account", "expires_in": 3600, "token_type": "Bearer"}
    listed = _google([("m/a", 1000)], "")
    web.spoil = lambda path, _: (
        (200, {"Content-Type": "application/json"}, json.dumps(token).encode()) if path == "/token" else listed
    )  # fmt: skip
    source = source_of("gs://lake", web.url)
    assert [file.validator for file in source.files("m")] == ["generation:7"]
    assert web.seen[-1][2]["authorization"] == "Bearer ya29.of-a-real-account"
    source.close()
    refused = json.dumps({"error": "invalid_grant", "error_description": "no secret here"}).encode()
    web.spoil = lambda _path, _headers: (400, {"Content-Type": "application/json"}, refused)
    source = source_of("gs://lake", web.url)
    with pytest.raises(NotAllowed, match=r"\(RefreshError\); check GOOGLE_APPLICATION_CREDENTIALS"):
        source.files("m")
    source.close()
    for bad in ("none.json", ""):  # it doesn't exist; it is a directory
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / bad))
        source = source_of("gs://lake", web.url)
        with pytest.raises(NotAllowed, match="GOOGLE_APPLICATION_CREDENTIALS"):
            source.files("m")
        source.close()


def test_strangers_read_public_buckets(web: Web, own_site: None) -> None:
    listed = _google([("m/a", 1000)], "")
    web.spoil = lambda _path, _headers: listed
    source = source_of("gs://lake", web.url)
    assert len(source.files("m")) == 1
    assert "authorization" not in web.seen[0][2]
    web.spoil = lambda _path, _headers: (401, {}, b"")
    with pytest.raises(NotAllowed, match="strangers read gs://lake"):
        source.files("m")
    source.close()


def test_without_tls_google_gets_no_token(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = importlib.import_module("google.auth")
    monkeypatch.setattr(auth, "default", lambda **_: pytest.fail("asked"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{web.port}")
    web.spoil = lambda _path, _headers: _google([("m/a", 1)], "")
    source = Source("s", SourceSettings(url="gs://lake"))
    assert len(source.files("m")) == 1
    source.close()


def test_what_google_would_unpack_is_refused(web: Web) -> None:
    entry = {"name": "m/a", "size": "10", "generation": "7", "contentEncoding": "gzip"}
    web.spoil = lambda _path, _headers: (200, {}, json.dumps({"items": [entry]}).encode())
    source = source_of("gs://lake", web.url)
    with pytest.raises(UsageError, match="Content-Encoding"):
        source.files("m")
    source.close()


@pytest.mark.parametrize(
    "url", ["gs://", "gs://A", "gs://../x", "gs://a b", "gs://x/../y?z", "az://", "az://UP"]
)
def test_urls_that_name_no_store(url: str) -> None:
    source = source_of(url, "http://127.0.0.1:1")
    with pytest.raises(P2PCacheError) as caught:
        source.files("..")
    assert caught.value.exit_code in (2, 6)


# -- Azure -------------------------------------------------------------------------------------------


def test_azures_key_signs_and_stays_here(web: Web) -> None:
    web.spoil = lambda _path, _headers: _azure([("m/a", 1000)], "")
    source = source_of("az://lake", web.url)
    source.files("m")
    _, path, headers = web.seen[0]
    scheme, _, rest = headers["authorization"].partition(" ")
    account, _, signature = rest.partition(":")
    assert (scheme, account) == ("SharedKey", "acme")
    query = "\n".join(
        f"{name}:{value[0]}" for name, value in sorted(parse_qs(urlsplit(path).query).items())
    )
    text = (
        "GET"
        + "\n" * 12
        + f"x-ms-date:{headers['x-ms-date']}\nx-ms-version:{headers['x-ms-version']}\n"
        f"/acme/lake\n{query}"
    )
    made = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    assert base64.b64decode(signature) == made
    source.close()


def test_azures_signed_token_goes_to_azure_alone(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    words = f"BlobEndpoint={web.url};SharedAccessSignature=sv=2022-11-02&sig=hush%2Fhush%3D"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words)
    with serving(Web()) as elsewhere:
        web.spoil = lambda path, _: (302, {"Location": f"{elsewhere.url}/b"}, b"")
        source = Source("s", SourceSettings(url="az://lake", private=True))
        source._policy.retry_for_s = 0.0
        with pytest.raises(P2PCacheError) as caught:
            read(source, SourceFile("a", "m/a", 1000, 'etag:"0x7"'))
        assert "hush" not in str(caught.value)
        assert web.seen[0][1] == "/lake/m/a?sv=2022-11-02&sig=hush%2Fhush%3D"
        assert "hush" not in str(elsewhere.seen)
        assert elsewhere.seen
        source.close()


def test_an_identity_of_entra(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(UsageError, match=r"p2pcache\[azure\]"):
        source_of("az://lake", web.url).files("m")

    class AzureError(Exception):
        pass

    class DefaultAzureCredential:
        def get_token(self, scope: str) -> Any:
            assert scope == "https://storage.azure.com/.default"
            if web.files:
                raise AzureError("a text with an answer in it")
            return types.SimpleNamespace(token="eyJ.of.entra")

    identity: Any = types.ModuleType("azure.identity")
    identity.DefaultAzureCredential = DefaultAzureCredential
    errors: Any = types.ModuleType("azure.core.exceptions")
    errors.AzureError = AzureError
    for name, module in (("azure.identity", identity), ("azure.core.exceptions", errors)):
        monkeypatch.setitem(sys.modules, name, module)
    web.spoil = lambda _path, _headers: _azure([("m/a", 1000)], "")
    source = source_of("az://lake", web.url)
    source.files("m")
    assert web.seen[0][2]["authorization"] == "Bearer eyJ.of.entra"
    web.files["/x"] = b""
    with pytest.raises(NotAllowed, match=r"no token for az:// \(AzureError\)") as caught:
        source.files("m")
    assert "answer" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("AZURE_STORAGE_ACCOUNT_KEY", "no key!", 4), ("AZURE_STORAGE_ACCOUNT_NAME", "evil.example/", 2)],
)  # fmt: skip
def test_credentials_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(P2PCacheError) as caught:
        source_of("az://lake", "").files("m")
    assert caught.value.exit_code == code
    assert "no key!" not in str(caught.value)


def account_sas() -> str:
    """A SAS token for reading, of the stand-in's account, as Azure's protocol makes one."""
    words = {"sp": "rl", "ss": "b", "srt": "co", "st": "", "se": "2100-01-01T00:00:00Z", "sip": "", "spr": "https,http",
             "sv": "2021-08-06", "ses": ""}  # fmt: skip
    text = "\n".join([clouds.AZURE_ACCOUNT, *words.values(), ""])
    key = base64.b64decode(clouds.AZURE_KEY)
    words["sig"] = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    return urlencode({name: value for name, value in words.items() if value})


def test_real_azurite_takes_a_sas_token_and_no_wrong_key(
    monkeypatch: pytest.MonkeyPatch, azure_endpoint: str
) -> None:
    clouds.make_container(azure_endpoint, "signed")
    clouds.put_blob(azure_endpoint, "signed", "m/a b+c.bin", b"a" * 1000)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", clouds.AZURE_ACCOUNT)
    with pytest.raises(NotAllowed, match="Azure doesn't allow az://signed"):
        source_of("az://signed", azure_endpoint).files("m")
    words = f"BlobEndpoint={azure_endpoint}/;SharedAccessSignature={account_sas()}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    source = Source("s", SourceSettings(url="az://signed"))
    (file,) = source.files("m")
    assert (file.path, read(source, file, 10, 20)) == ("a b+c.bin", b"a" * 20)
    assert source.files("m/a b+c.bin") == [file]
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words.replace("sp=rl", "sp=rlw"))
    with pytest.raises(NotAllowed):
        Source("s", SourceSettings(url="az://signed")).files("m")
