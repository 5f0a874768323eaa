"""Guests with several NUMA nodes, in which claims about nodes are measured. docs/lab.md tells what for and how."""
