"""The parent's side of a round: its children, their calls, and what the round gathers from them."""
