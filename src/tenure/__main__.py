"""`python -m tenure` is the `tenure` command."""

from tenure.cli import main

main()
