"""The command line: one file per verb, each with `configure(parser)` and `run(args) -> exit code`."""
