"""A client that returns the received arrays."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def echo(message: Message, context: Context) -> Message:
    """Return the received arrays, with a weight of ten examples."""
    arrays = message.content.array_records["arrays"]
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})})
    return Message(content=content, reply_to=message)
