"""What comes with Fedstrata besides its modules: example experiments, the chart, data sets, optional packages."""
