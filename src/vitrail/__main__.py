"""`python -m vitrail` is the command line."""

from vitrail.apps.cli import main

if __name__ == "__main__":
    main()
