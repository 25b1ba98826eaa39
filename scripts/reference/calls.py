"""docs/reference/calls.md: which process may make which call."""

from fedstrata.trust.call_table import TABLE, Rule
from fedstrata.trust.names import Role
from scripts.reference.markdown import code, table

CALLERS: tuple[Role, ...] = ("device", "lps", "operator", "gps")
FOR_ITSELF, IN_ITS_CLUSTER, YES, NO = "for itself", "for itself, in its cluster", "yes", "–"

TOP = f"""<!-- Written by `make reference` from fedstrata/trust/call_table.py. -->
# Who may call what

With certificates a server looks up every call, and every message of a stream, in this table. It refuses all other calls
with PERMISSION_DENIED. [Security](../security.md#who-may-call-what) says what this protects.

- *{FOR_ITSELF}*: the message must not name another sender.
- *{IN_ITS_CLUSTER}*: the caller must also belong to the cluster in the message. A local parameter
  server (LPS) belongs to a cluster during its term there. The GPS is the global parameter server.
- *{YES}*: messages of this call name no sender.
"""


def page() -> str:
    """Return the page: a row per call, a column per kind of caller."""
    rows = [[code(_short(call)), *(cell_of(rule, caller) for caller in CALLERS)] for call, rule in TABLE.items()]
    return TOP + table(["call", "a device", "an LPS", "an operator", "the GPS"], rows)


def cell_of(rule: Rule, caller: Role) -> str:
    """Return what a kind of caller may do under a rule."""
    if caller not in rule.roles:
        return NO
    if rule.claims is None:
        return YES
    return IN_ITS_CLUSTER if rule.is_of_cluster else FOR_ITSELF


def _short(call: str) -> str:
    service, name = call.split("/")[1:]
    return f"{service.rpartition('.')[2]}/{name}"
