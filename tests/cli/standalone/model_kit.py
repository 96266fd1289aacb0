"""What tests of pulled models share."""

from pathlib import Path


def make_removable(folder: Path) -> None:
    """Read-only trees of models: nobody but root could remove them."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def same(left: Path, right: Path) -> bool:
    return all(
        (left / name).read_bytes() == (right / name).read_bytes()
        for name in ("weights.bin", "sub/config.json")
    )
