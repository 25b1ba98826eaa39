"""The commands of `fedstrata`. They parse the user's input, and call functions of other subpackages."""
