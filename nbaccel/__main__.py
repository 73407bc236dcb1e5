"""``python -m nbaccel``: the same as ``nbaccel``."""

from nbaccel.cli import main

if __name__ == "__main__":
    main()
