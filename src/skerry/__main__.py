"""`python -m skerry`: the command line."""

from skerry.entry import main

if __name__ == "__main__":
    main()
