"""Choose a topology: predict the cost of many experiments, train a few, and take the cheapest that reaches a target."""
