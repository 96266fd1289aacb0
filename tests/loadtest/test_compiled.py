"""What `make sim-10k` compiles is there; that it decides the same it checks itself before each storm."""

from loadtest.compiled import CORE, ROOT, SIM


def test_each_module_that_is_compiled_exists() -> None:
    for room, names in (("core", CORE), ("sim", SIM)):
        assert all((ROOT / "p2pcache" / room / f"{name}.py").is_file() for name in names)
        assert list(names) == sorted(names)
