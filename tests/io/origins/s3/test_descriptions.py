"""Descriptions of services: what is read quickly is what botocore reads."""

import json
from pathlib import Path

import botocore.session
import pytest
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader

from p2pcache.io.origins.s3.descriptions import read_quickly


@pytest.mark.parametrize("service", ["s3", "sts", "sso", "sso-oidc"])
@pytest.mark.parametrize("kind", ["service-2", "endpoint-rule-set-1"])
def test_they_are_botocores_own(clean_env: pytest.MonkeyPatch, service: str, kind: str) -> None:
    session = botocore.session.Session()
    read_quickly(session)
    quick = session.get_component("data_loader").load_service_model(service, kind)
    assert json.dumps(quick) == json.dumps(create_loader().load_service_model(service, kind))


def test_an_unknown_service_is_refused(clean_env: pytest.MonkeyPatch) -> None:
    session = botocore.session.Session()
    read_quickly(session)
    with pytest.raises(BotoCoreError):
        session.create_client("s4", region_name="us-east-1")


def test_the_operators_own_descriptions_come_first(
    clean_env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_env.setenv("AWS_DATA_PATH", f"$HERE/none:{tmp_path}")
    (tmp_path / "s3" / "2006-03-01").mkdir(parents=True)
    (tmp_path / "s3" / "2006-03-01" / "paginators-1.json").write_text('{"own": 1}')
    session = botocore.session.Session()
    read_quickly(session)
    found = session.get_component("data_loader").load_service_model("s3", "paginators-1")
    assert found["own"] == 1
