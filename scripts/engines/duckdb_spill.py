"""Sorts more than DuckDB's memory holds, so that it spills to the mount, and checks the result.

    duckdb_spill.py DIR ROWS
"""

import hashlib
import os
import sys
import threading

import duckdb

directory, rows = sys.argv[1], int(sys.argv[2])
spill = os.path.join(directory, "spill")
most = 0
ended = threading.Event()


def watch():
    global most
    while not ended.wait(0.01):
        try:
            most = max(most, sum(entry.stat().st_size for entry in os.scandir(spill)))
        except FileNotFoundError:
            pass


watcher = threading.Thread(target=watch)
watcher.start()
try:
    connection = duckdb.connect(
        os.path.join(directory, "database"),
        config={"temp_directory": spill, "memory_limit": "100MB", "threads": 2},
    )
    # Each row carries its number through the sort, beside a key that scatters it. The table compares neighbours: it is in
    # order, and no row is lost, doubled or changed.
    connection.execute(
        f"""create table sorted as
            select row_number() over (order by key) as place, number, key
            from (select md5(number::varchar) || repeat('x', 60) as key, number from range({rows}) source(number))"""
    )
    wrong = connection.execute(
        "select count(*) from (select key, lag(key) over (order by place) as before from sorted) where key < before"
    ).fetchone()[0]
    count, total, broken = connection.execute(
        "select count(distinct number), sum(number), count(*) filter (key <> md5(number::varchar) || repeat('x', 60)) from sorted"
    ).fetchone()
    first = connection.execute("select key from sorted where place = 1").fetchone()[0]
finally:
    ended.set()
    watcher.join()
# Python's own sort and md5 are the judge of the first place.
expected = min(hashlib.md5(str(number).encode()).hexdigest() for number in range(rows)) + "x" * 60
assert (wrong, count, total, broken) == (0, rows, rows * (rows - 1) // 2, 0), (wrong, count, total, broken)
assert first == expected, first
assert most > 8 << 20, f"DuckDB spilled {most} bytes only"
print(f"{rows} rows sorted, {most >> 20} MiB of them spilled; all there, in order")
