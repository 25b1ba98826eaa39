"""The additions to Fedstrata's modules: example experiments, chart, data sets, optional packages."""
