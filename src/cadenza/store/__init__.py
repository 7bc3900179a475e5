"""A run directory: manifest, append-only records, summary. Written while it happens, read back even if it broke off."""
