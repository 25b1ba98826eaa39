"""An experiment of four devices and two tasks."""

TWO_TASKS = """
name: good
data: {name: digits}
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 20}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 20}
"""
