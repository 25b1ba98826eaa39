"""The tensors that travel, and how far, and the model of each device."""
