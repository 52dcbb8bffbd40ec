"""Hooks of this part."""
