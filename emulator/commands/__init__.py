"""Define the commands of `fedstrata`. They parse the user's arguments, and call functions of other subpackages."""
