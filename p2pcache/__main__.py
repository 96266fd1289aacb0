"""`python -m p2pcache`: the program, where no script of it is on the PATH."""

from p2pcache.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
