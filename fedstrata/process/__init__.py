"""What every process needs: starting and stopping, logs, metrics, HTTP, deadlines and pauses."""
