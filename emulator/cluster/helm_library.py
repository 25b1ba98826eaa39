"""Call Helm's library in a separate process with the name helm. The name matters, because Kubernetes stores which
program has set each field of an object. If a program with another name changes the field, Kubernetes refuses the
change.

The process reads a request as JSON from standard input, and writes the answer to standard output. This module imports
no other module of Fedstrata, because it is started by its path.
"""

import json
import sys
from typing import Any

HELM_S = 300


def answer(request: dict[str, Any]) -> Any:
    """Carry out a request. Return its result. If the request has no result, return None."""
    from helm_python import Chart, Config

    name = request["release"]
    if request["call"] == "render":
        with Chart.load(request["chart"]) as chart:
            chart.render(request["values"], name=name, namespace=request["config"]["namespace"])
        return None
    with Config(**request["config"]) as config:
        if request["call"] == "list":
            return [dict(found) for found in config.list(all_states=True, name_filter=f"^{name}$")]
        if request["call"] == "values":
            return dict(config.get_values(name) or {})
        if request["call"] == "rollback":
            config.rollback(name, version=request["revision"], timeout=HELM_S)
        elif request["call"] == "uninstall":
            config.uninstall(name, timeout=HELM_S, wait="watcher")
        elif request["call"] == "upgrade":
            config.upgrade(request["chart"], name, request["values"], reset_values=True, timeout=HELM_S)
        else:
            config.install(request["chart"], name, request["values"], timeout=HELM_S)
    return None


def main() -> None:
    """Read one request, and write the answer. The answer has the key `result` after success, or `error` with the
    library's text. It has the key `missing` if the library is not installed.
    """
    request = json.load(sys.stdin)
    try:
        from helm_python import HelmError
    except ImportError:
        json.dump({"missing": True}, sys.stdout)
        return
    try:
        json.dump({"result": answer(request)}, sys.stdout)
    except HelmError as error:
        json.dump({"error": str(error)}, sys.stdout)


if __name__ == "__main__":
    main()
