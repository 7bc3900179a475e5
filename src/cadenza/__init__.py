"""cadenza: how many people an LLM server can hold at a steady typing cadence.

The package is a set of rooms (see docs/explanation/architecture.md); `cadenza.record` holds the words that all use.
"""

__version__ = "0.1.0"
