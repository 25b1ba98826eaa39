"""The run record: each table is declared once. The GPS writes the tables, and the experimenter reads them."""
