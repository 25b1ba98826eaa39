"""The commands of `fedstrata`. They parse what the user typed, and call functions of other subpackages."""
