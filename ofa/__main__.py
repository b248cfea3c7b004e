"""`python -m ofa`: the same as the `ofa` command."""

from .cli.main import run

run()
