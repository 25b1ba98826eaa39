"""The commands of `fedstrata`: they parse what the user typed, and call functions of the other rooms."""
