//! Yardsticks that lose nothing either: a transaction of SQLite, and one of redb.

use crate::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Time in ns of one of `count` transactions of SQLite, each of which adds a row with `bytes` bytes: write-ahead log, and each commit durable.
pub(super) fn sqlite(directory: &Path, bytes: usize, count: usize) -> Result<f64, Error> {
    let database = directory.join("sqlite");
    let system = |error| Error::system("running sqlite3", error);
    let mut script =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);\n"
            .to_owned();
    (0..count).for_each(|key| script.push_str(&format!("INSERT INTO t VALUES ({key}, randomblob({bytes}));\n")));
    script.push_str("SELECT count(*) FROM t;\n");
    let start = Instant::now();
    let mut child = Command::new("sqlite3")
        .args(["-batch".as_ref(), database.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(system)?;
    let mut input = child.stdin.take().expect("the stream is piped");
    input.write_all(script.as_bytes()).map_err(system)?;
    drop(input);
    let output = child.wait_with_output().map_err(system)?;
    let elapsed = start.elapsed().as_secs_f64() * 1e9 / count as f64;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.lines().last() != Some(count.to_string().as_str()) {
        return Err(system(std::io::Error::other(format!("it said {said}"))));
    }
    for name in ["sqlite", "sqlite-wal", "sqlite-shm"] {
        super::disk::remove(&directory.join(name));
    }
    Ok(elapsed)
}

/// Time in ns of one of `count` transactions of redb, each of which adds a value of `bytes` bytes.
pub(super) fn redb(directory: &Path, bytes: usize, count: usize) -> Result<f64, Error> {
    const TABLE: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("t");
    let path = directory.join("redb");
    let failed = |error: redb::Error| Error::system("redb", std::io::Error::other(error));
    let database = redb::Database::create(&path).map_err(|error| failed(error.into()))?;
    let value = vec![5; bytes];
    let start = Instant::now();
    for key in 0..count as u64 {
        let transaction = database.begin_write().map_err(|error| failed(error.into()))?;
        let mut table = transaction.open_table(TABLE).map_err(|error| failed(error.into()))?;
        table.insert(key, &value[..]).map_err(|error| failed(error.into()))?;
        drop(table);
        transaction.commit().map_err(|error| failed(error.into()))?;
    }
    let elapsed = start.elapsed().as_secs_f64() * 1e9 / count as f64;
    drop(database);
    super::disk::remove(&path);
    Ok(elapsed)
}
