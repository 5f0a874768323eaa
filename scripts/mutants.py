#!/usr/bin/python3
"""Breaks each module of the policy in turn, and checks that some figure of the simulator changes.

A figure that stays the same whatever the policy decides shows nothing. Each mutant is a change of one line in a copy of
crates/policy; the copy is built and all figures are made anew at a small size. Takes some minutes: `make mutants`.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Module, what stands there, and what is put in its place.
MUTANTS = [
    ("pool/monitor.rs", "fat_percent: 98,\n            candidate_percent: 95,", "fat_percent: 60,\n            candidate_percent: 50,"),
    ("pool/monitor.rs", "(*asking != home, latency, home, member)", "(false, u32::MAX - latency, home, member)"),
    ("pool/buddy.rs", "self.free_blocks -= 1 << order;", "self.free_blocks -= 1;"),
    ("queue_map.rs", "(0..queues.len()).min_by_key(load)", "(0..queues.len()).max_by_key(load)"),
    ("queue_map.rs", "users[*queue] == Some(*node)", "users[*queue] != Some(*node)"),
    ("eviction.rs", "const SMALL_PART: u32 = 10;", "const SMALL_PART: u32 = 2;"),
    ("eviction.rs", "const LOOKS_MAX: u32 = 64;", "const LOOKS_MAX: u32 = 1;"),
    ("eviction/ghosts.rs", "set[0].store(fingerprint, ", "set[0].store(EMPTY, "),
    ("slices.rs", "const OWN_PERCENT: u128 = 125;", "const OWN_PERCENT: u128 = 10_000;"),
    ("slices.rs", "gain * product(other.returned, one.frames)", "100 * gain * product(other.returned, one.frames)"),
    ("mover.rs", "const MOVE_COST: u64 = 4;", "const MOVE_COST: u64 = 4_000;"),
    ("mover.rs", "const DOMINANCE: u64 = 3;", "const DOMINANCE: u64 = u64::MAX;"),
    ("topology.rs", "claimed[cpu.0 as usize] = Some(node.id);", "claimed[cpu.0 as usize] = Some(parts.nodes[0].id);"),
    ("affinity.rs", "search::improve(ruled)", "ruled"),
    ("affinity.rs", "rules::apply(&mut ruled);", ""),
    ("affinity/config.rs", "hysteresis_percent: 10,", "hysteresis_percent: 100_000,"),
    ("affinity/cost.rs", "pub const OVERLOAD_BYTES_PER_CPU: u64 = 4_000_000_000;", "pub const OVERLOAD_BYTES_PER_CPU: u64 = 1_000_000_000;"),
    ("affinity/cost.rs", "beyond.clamp(CACHE_PERCENT, DISTANCE_PERCENT_MAX)", "CACHE_PERCENT"),
    ("affinity/load.rs", "(took + waited).min(self.most)", "0"),
    ("affinity/channels.rs", "RECEIVE_NS_PER_KIB * (bytes_per_s >> 10)", "RECEIVE_NS_PER_KIB * (bytes_per_s >> 63)"),
    ("affinity/domains.rs", "_ => distances.percent(a.node, b.node),", "_ => 0,"),
    ("affinity/rules.rs", "may.min_by_key(|cpu| (count[*cpu], *cpu))", "may.max_by_key(|cpu| (count[*cpu], *cpu))"),
    ("affinity/search.rs", "const PASSES: usize = 6;", "const PASSES: usize = 0;"),
    ("affinity/search/steps.rs", "if bytes >= best.0 {", "if bytes < best.0 {"),
    ("affinity/state.rs", "signed(rate * self.reach[channel][domain])", "signed(rate)"),
    ("affinity/tasks.rs", "class: Class::of(bytes.network, bytes.disk, bytes.memory, least),", "class: Class::of(0, 0, 0, least),"),
    ("affinity/model.rs", "each(*channel, *rate);", "each(*channel, 0);"),
    ("affinity/previous.rs", "next.period += 1;", "next.period += 1000;"),
]


def rows(source: pathlib.Path, target: pathlib.Path) -> str:
    command = ["cargo", "run", "--quiet", "--offline", "--package", "homenode-sim", "--example", "rows"]
    # A mutant that runs for ever is found as well.
    try:
        done = run(command, source, target)
    except subprocess.TimeoutExpired:
        return "runs for ever"
    # A policy that panics is found as well; one that does not compile is a fault of the list.
    if "could not compile" in done.stderr:
        sys.exit(f"mutants: a mutant does not compile:\n{done.stderr}")
    if done.returncode and "panicked" not in done.stderr:
        sys.exit(f"mutants: {done.returncode}: {done.stderr}")
    return "panics" if done.returncode else done.stdout


def run(command: list[str], source: pathlib.Path, target: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run(command, timeout=600, cwd=source, env=os.environ | {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-Awarnings"}, capture_output=True, text=True)


def figures(told: str) -> dict[str, str]:
    """Rows by figure. Blocks are separated by empty lines; the first line of each names the figure."""
    return dict(block.split("\n", 1) for block in told.split("\n\n") if "\n" in block)


def medians(figure: str) -> dict[str, float]:
    """Medians of a figure's rows."""
    rows = [line.rsplit(",", 3) for line in figure.splitlines()[1:]]
    return {row: float(median) for row, _, median, _ in rows}


def moved_percent(before: str, after: str) -> float:
    """By how much the median that moved most did, in percent; a row that is gone moved by 100."""
    new = medians(after)
    return max((abs(new.get(row, 0) - old) / max(old, 1e-4) * 100 for row, old in medians(before).items()), default=0)


def main() -> int:
    survivors, weak, without = [], 0, 0
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("target", ".git", "docs", "*.png"))
        # New each time: cargo would take what an earlier mutant left for up to date, as copies keep the times of their files.
        target = copy / "target"
        before = rows(copy, target)
        if "\n" not in before or before != rows(copy, target):
            sys.exit("mutants: the figures of the unchanged policy differ from run to run, or fail")
        still = set(figures(before))
        for module, old, new in MUTANTS:
            path = copy / "crates/policy/src" / module
            text = path.read_text()
            if text.count(old) != 1:
                sys.exit(f"mutants: {module} has {old!r} {text.count(old)} times instead of once: mend the list")
            path.write_text(text.replace(old, new))
            after = rows(copy, target)
            path.write_text(text)
            changed = [name for name, figure in figures(before).items() if figures(after).get(name) != figure]
            still -= set(changed) if "\n" in after else set()
            if "\n" in after and changed:
                moved = max(moved_percent(figures(before)[name], figures(after).get(name, "")) for name in changed)
                told = f"{', '.join(changed)} (a median by {moved:.1f} %)"
                weak += moved < 1
            else:
                told = "" if "\n" in after else after
                without += "\n" not in after
            print(f"{module:<24} {' '.join(new.split()) or 'nothing':<60.60} {told or 'CHANGES NO FIGURE'}", flush=True)
            if not changed:
                survivors.append(module)
    if survivors:
        print(f"mutants: {len(survivors)} of {len(MUTANTS)} change no figure")
        return 1
    # Figure 1a is hardware alone: whose cores reach which memory.
    if still - {"mbs-lvm-1a"}:
        print(f"mutants: no mutant changes {', '.join(sorted(still))}")
        return 1
    print(f"mutants: each of {len(MUTANTS)} changes a figure, and each figure but 1a is changed")
    print(f"mutants: {without} of them end without figures, {weak} move no median by 1 %")
    return 0


sys.exit(main())
