"""The person at the terminal: interrupts, the browser, and numbers as people read them."""
