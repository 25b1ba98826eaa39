"""Check the rules that concern several sections of an experiment. An error message names the key and the value."""
