"""Prometheus, its rules and alerts, Alertmanager and Grafana for an engine and its cards: made, checked, run."""
