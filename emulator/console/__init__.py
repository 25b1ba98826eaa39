"""What the user at a terminal needs: interrupts, the browser, and readable numbers."""
