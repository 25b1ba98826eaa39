"""Parts of Fedstrata that are not modules: example experiments, the chart, data sets, optional packages."""
