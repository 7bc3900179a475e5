"""Builders of the dashboards and recording rules that `scripts/generate_observe.py` writes."""
