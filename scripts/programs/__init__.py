"""What scripts/bench-programs.py measures. `case` has what all share, the others a kind of program each."""
