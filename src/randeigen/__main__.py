"""`python -m randeigen` is the command."""

from randeigen.cli import main

main()
