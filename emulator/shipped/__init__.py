"""What comes with Fedstrata or can be had beside it: example experiments, chart, data sets, optional packages."""
