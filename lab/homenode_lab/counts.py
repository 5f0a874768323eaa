"""The counter's output as one document."""

import json
import os
from pathlib import Path

from .errors import LabError
from .machine import Machine

OUTPUT_VERSION = 1


def read(descriptor: int) -> list[dict]:
    """The lines that the counter wrote: those that are whole."""
    with open(os.dup(descriptor), encoding="ascii") as lines:
        lines.seek(0)
        return [json.loads(line) for line in lines if line.endswith("\n")]


def write(file: Path, machine: Machine, delay_ns: int, lines: list[dict]) -> None:
    """Writes the document: what was counted during the command, and in each marked interval, in the order they ended."""
    document = {
        "output_version": OUTPUT_VERSION,
        "nodes": len(machine.memory_mib),
        "cpu_nodes": machine.cpu_nodes,
        "cache": {"bytes": 1 << 20, "line_bytes": 64},
        "model_delay_ns": delay_ns,
        "command": [row for line in lines for row in line.get("command", [])],
        "intervals": [line["interval"] for line in lines if "interval" in line],
    }
    try:
        file.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise LabError(f"the counts cannot be written to {file}: {error.strerror}") from error
