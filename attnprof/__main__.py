"""``python -m attnprof``."""

from attnprof.cli.main import main

if __name__ == "__main__":
    main()
