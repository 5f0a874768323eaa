"""Checks packaging/grafana.json by the types of Grafana's own project, and each of its queries by a Prometheus that reads a live pool and loads
packaging/prometheus-alerts.yml.

The first argument is the program homenode. Needs root, prometheus, and the package grafana-foundation-sdk.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

PACKAGING = Path(__file__).resolve().parent.parent / "packaging"
FILE = PACKAGING / "grafana.json"
ALERTS = PACKAGING / "prometheus-alerts.yml"
# Queries that have no answer on a pool of memory: nothing is cached there, nor spilled on one node.
MAY_BE_EMPTY = re.compile(r"homenode_(cache|spilled)_|place=\"remote\"")
PORT = 7077


def differences(one: object, other: object, at: str) -> list[str]:
    """Where a dashboard that was read and written again is not the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [line for key in one for line in differences(one[key], other.get(key), f"{at}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [line for nth, part in enumerate(one) for line in differences(part, other[nth], f"{at}/{nth}")]
    return [] if one == other else [f"{at}: {one} became {other}"]


def ask(path: str) -> dict:
    """What Prometheus tells; nothing while it does not listen yet."""
    try:
        return json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/{path}"))["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"check-dashboard: Prometheus refuses {path}: {error.read().decode()}")
    except (urllib.error.URLError, ConnectionError):
        return {}


def answer(query: str) -> list:
    """The result of a query; empty while there is none."""
    return ask("query?" + urllib.parse.urlencode({"query": query})).get("result", [])


def unhealthy() -> list[str]:
    """Alerts of the file that Prometheus has not loaded, or cannot evaluate."""
    rules = [rule for group in ask("rules?type=alert").get("groups", []) for rule in group["rules"]]
    healthy = {rule["name"] for rule in rules if rule["health"] == "ok"}
    return [name for name in re.findall(r"- alert: (\w+)", ALERTS.read_text()) if name not in healthy]


def main() -> None:
    homenode = sys.argv[1]
    # Ends what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("check-dashboard: ended"))
    plugins.register_default_plugins()
    dashboard = json.loads(FILE.read_text())
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    if lost := differences(dashboard, again, ""):
        sys.exit("check-dashboard: not as Grafana's types have it:\n" + "\n".join(lost))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries = [query.replace("$__rate_interval", "10s").replace("$pool", ".*") for query in queries]

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        mount, socket, configuration = directory / "mount", directory / "web", directory / "prometheus.yml"
        mount.mkdir()
        configuration.write_text(
            f"global: {{evaluation_interval: 1s}}\nrule_files: ['{ALERTS}']\n"
            "scrape_configs:\n- job_name: homenode\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  authorization: {credentials: "
            f"{'t' * 16}}}\n  static_configs: [{{targets: ['127.0.0.1:{PORT + 1}']}}]\n"
        )
        token = directory / "token"
        token.write_text("t" * 16)
        token.chmod(0o600)
        subprocess.run([homenode, "up", "--data", "pool", "--size-per-node", "64M", mount], check=True, stdout=subprocess.DEVNULL)
        started = []
        try:
            web = [homenode, "web", "--listen", f"127.0.0.1:{PORT + 1}", "--token-file", token]
            started.append(subprocess.Popen(web, stdout=subprocess.DEVNULL))
            prometheus = ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={directory}/data"]
            prometheus += [f"--web.listen-address=127.0.0.1:{PORT}", "--log.level=error"]
            started.append(subprocess.Popen(prometheus))
            waiting, end = list(queries), time.monotonic() + 60
            while (waiting or unhealthy()) and time.monotonic() < end:
                (mount / "file").write_bytes(bytes(1 << 20))
                (mount / "file").read_bytes()
                time.sleep(0.5)
                if any(process.poll() is not None for process in started):
                    sys.exit(f"check-dashboard: homenode web or prometheus has ended: are ports {PORT} and {PORT + 1} free?")
                waiting = [query for query in waiting if not answer(query) and not MAY_BE_EMPTY.search(query)]
            for query in queries:
                answer(query)
            if alerts := unhealthy():
                sys.exit("check-dashboard: Prometheus has not these alerts, or cannot evaluate them:\n" + "\n".join(alerts))
            if waiting:
                sys.exit("check-dashboard: nothing is shown for\n" + "\n".join(waiting))
        finally:
            for process in started:
                process.terminate()
                process.wait()
            subprocess.run([homenode, "down", mount], check=True, stdout=subprocess.DEVNULL)
    shown = sum(1 for query in queries if not MAY_BE_EMPTY.search(query))
    print(f"check-dashboard: {len(dashboard['panels'])} panels as Grafana has them, {len(queries)} queries taken, {shown} with data, alerts loaded")


main()
