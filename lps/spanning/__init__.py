"""The LPS's part in clusters that have devices at several local parameter servers (LPSs).

The global parameter server keeps the models of these clusters. A group of tensors that are averaged together is called
a stream.
"""
