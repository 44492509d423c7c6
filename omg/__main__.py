"""`python -m omg` is `omg`."""

from omg.cli import entry

if __name__ == "__main__":
    entry()
