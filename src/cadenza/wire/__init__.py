"""Bytes to events, sans-IO: SSE, HTTP/1.1 framing, and one file per dialect. Nothing here waits or opens anything."""
