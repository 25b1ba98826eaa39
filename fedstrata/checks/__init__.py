"""The rules of an experiment that concern several sections. A refusal names the key and the value."""
