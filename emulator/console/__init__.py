"""The interface to the person at the terminal: interrupts, the browser, and readable numbers."""
