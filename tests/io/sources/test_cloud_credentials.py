"""Who we say that we are at stores of clouds, and that nobody else hears it."""

import base64
import hashlib
import hmac
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from loadtest.kit import clouds
from p2pcache.errors import NotAllowed, OriginChanged, P2PCacheError, UsageError
from p2pcache.io import redaction
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.guarded_connections import site_of
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.cloud_kit import KEY, azure, google, queried, source_of
from tests.io.sources.kit import Web, serving
from tests.io.sources.test_conformance import read

pytestmark = pytest.mark.usefixtures("cloud_env")


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
        listed = google([("m/a", 1000)], "")
        web.spoil = lambda path, _: (
            listed if queried("fields")(path) else (302, {"Location": f"{elsewhere.url}/b"}, b"")
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
    listed = google([("m/a", 1000)], "")
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
    listed = google([("m/a", 1000)], "")
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
    web.spoil = lambda _path, _headers: google([("m/a", 1)], "")
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
    web.spoil = lambda _path, _headers: azure([("m/a", 1000)], "")
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
    web.spoil = lambda _path, _headers: azure([("m/a", 1000)], "")
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
