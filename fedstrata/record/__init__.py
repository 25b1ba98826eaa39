"""The run record: each table is declared once, written by the GPS and read by whoever looks at a run."""
