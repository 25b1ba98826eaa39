"""Finished runs as values, tables and pages."""
