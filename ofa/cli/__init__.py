"""The `ofa` command: one module a group of subcommands, listed in `main`."""
