"""The run record. Each table is declared once. The GPS writes the tables, and the experimenter's programs read them."""
