"""One function a metric, pure; its docstring is the definition (docs/reference/definitions.md is made from them)."""
