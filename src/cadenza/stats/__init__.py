"""One function per metric, pure; its docstring is the definition (docs/definitions.md is made from them)."""
