"""Helpers for the user at a terminal: interrupts, the browser, and readable numbers."""
