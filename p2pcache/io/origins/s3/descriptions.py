"""botocore's descriptions of services, read as quickly as they can be: two thirds of what a client costs to make.

By itself botocore lists the folders of all four hundred services to see whether S3 is one, and parses with Python's
own JSON.
"""

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec
from botocore.loaders import JSONFileLoader, Loader
from botocore.session import Session


class _Files(JSONFileLoader):  # type: ignore[misc]
    def _load_file(self, full_path: str, open_method: Callable[[str, str], BinaryIO]) -> Any:
        if not os.path.isfile(full_path):  # noqa: PTH113 - a string of botocore's, hundreds of times
            return None
        with open_method(full_path, "rb") as file:
            return msgspec.json.decode(file.read())


class _Descriptions(Loader):  # type: ignore[misc]
    FILE_LOADER_CLASS = _Files

    def load_service_model(
        self, service_name: str, type_name: str, api_version: str | None = None
    ) -> Any:
        # The base looks for the name in the list of all services. One without a folder has no versions either.
        self.named = service_name
        return super().load_service_model(service_name, type_name, api_version)

    def list_available_services(self, type_name: str) -> list[str]:
        return [self.named]


def read_quickly(session: Session) -> None:
    """Let clients of a session, of S3 and of what gives credentials for it, be made of quickly read files."""
    path = session.get_config_variable("data_path") or ""
    folders = [os.path.expanduser(os.path.expandvars(one)) for one in path.split(os.pathsep) if one]  # noqa: PTH111 - as botocore
    session.register_component("data_loader", _Descriptions(extra_search_paths=folders))
