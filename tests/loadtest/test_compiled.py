"""What `make sim-10k` compiles is there; that it decides the same it checks itself before each storm."""

from loadtest.compiled import CORE, ROOT, SIM


def test_each_module_that_is_compiled_exists() -> None:
    for room, names in (("core", CORE), ("sim", SIM)):
        assert set(names) <= {path.stem for path in (ROOT / "p2pcache" / room).glob("*.py")}
        assert list(names) == sorted(names)
