"""The settings of a client command, as tests write them."""

from p2pcache.cli.support.client_options import ClientSettings, Loaded
from p2pcache.io import config


def loaded(sources: dict[str, str] | None = None, **settings: str) -> Loaded:
    made = ClientSettings(**settings)  # type: ignore[arg-type]
    known = dict.fromkeys(ClientSettings.__struct_fields__, "default")
    return Loaded(made, known | (sources or {}), config.ConfigFile(None, {}))
