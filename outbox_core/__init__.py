"""Outboard's engine."""
