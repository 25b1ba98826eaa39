"""Read finished runs, and show them as values, tables and pages."""
