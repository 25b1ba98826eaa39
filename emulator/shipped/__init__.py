"""Find what Fedstrata needs besides its own modules: example experiments, the chart, data sets and optional
packages.
"""
