"""Help the user at a terminal: handle interrupts, open the browser, and write readable numbers."""
