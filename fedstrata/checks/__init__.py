"""The rules of an experiment that concern several sections. Each rule refuses impossible values, by key and value."""
