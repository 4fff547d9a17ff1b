"""Builders, recorded machines and landscapes."""
